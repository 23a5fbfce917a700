"""A first prediction from a server that parses and answers as the model server does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devcluster import DevclusterError
from devcluster.deploy import predict
from devcluster.deploy.predict import NoPredictionError
from inference.engine.handlers import input_spec
from inference.engine.interface import Answer, InputError, Served, TensorSpec
from inference.protocol import v2_json
from inference.protocol.v2_json import model_metadata
from tests.devcluster.conftest import Install
from training.data import held_out_digits
from training.data.published import FASHION_CLASSES
from workload.manifest import Manifest, Weights

SERVICE = {"service": "digits", "namespace": "ml", "model": "digits", "run": "digits-1"}
MANIFEST = Manifest(
    model="simple-cnn",
    input_shape=(1, 8, 8),
    classes=tuple("0123456789"),
    metrics={"accuracy": 0.97},
    weights=Weights(file="model.safetensors", size=1, sha256="a" * 64),
    run="digits-1",
    torch_version="2.15.0",
)


def served(manifest: Manifest) -> Served:
    """Return the model's metadata as the server's own code describes it."""
    best = TensorSpec("class", "INT64", (-1,))
    return Served("digits", manifest, "eager", (input_spec(manifest),), (best,))


class Server(ThreadingHTTPServer):
    """Server of one model that predicts the same digit for every image."""

    manifest = MANIFEST
    answer = 0
    not_ready = 0
    protected = False
    status = 200
    last_request: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.server.not_ready > 0:
            self.server.not_ready -= 1
            self._respond(503, {"error": "the export does not exist yet"})
        elif self.server.protected:
            self._respond(401, {"error": "API key required"})
        else:
            self._respond(200, model_metadata(served(self.server.manifest)))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        model = served(self.server.manifest)
        try:
            request = v2_json.read_request(body, model)
        except InputError as error:
            self._respond(400, {"error": str(error)})
            return
        self.server.last_request = request
        answer = Answer({"class": np.array([self.server.answer])}, model, 0.0, 0.0, 1)
        self._respond(self.server.status, json.loads(v2_json.write_answer(request, answer)[0]))

    def _respond(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # The proxy must not be used.
    with Server(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()


def test_url_is_the_cluster_address_of_the_service(install: Install) -> None:
    found = {"spec": {"clusterIP": "10.250.128.77", "ports": [{"port": 8080}]}}
    kubectl = install(
        "kubectl", f"[ \"$*\" = 'get service digits -n ml -o json' ] && echo '{json.dumps(found)}'"
    )
    assert predict.service_url([str(kubectl)], SERVICE) == "http://10.250.128.77:8080"


def test_missing_service_is_reported(install: Install) -> None:
    kubectl = install("kubectl", 'echo "Error from server (NotFound)" >&2; exit 1')
    with pytest.raises(DevclusterError, match=r"service digits in ml: Error from server"):
        predict.service_url([str(kubectl)], SERVICE)


def test_server_is_awaited_until_it_serves_the_model(server: Server) -> None:
    server.not_ready = 1
    reported: list[str] = []
    metadata = predict.wait_ready(server.url, "digits", "digits-1", reported.append)
    assert metadata["versions"] == [MANIFEST.version]
    assert reported == ['{"error": "the export does not exist yet"}']


def test_a_model_of_an_earlier_run_is_not_accepted(server: Server) -> None:
    server.manifest = MANIFEST.model_copy(update={"run": "digits-0"})
    reported: list[str] = []

    def report(line: str) -> None:
        reported.append(line)
        server.manifest = MANIFEST

    predict.wait_ready(server.url, "digits", "digits-1", report)
    assert reported == ["still serving digits-0"]


def test_run_that_only_the_server_knows_is_awaited(server: Server) -> None:
    server.not_ready = 1
    metadata = predict.wait_ready(server.url, "digits", None, lambda _: None)
    assert predict.served_run(metadata) == MANIFEST.run
    assert predict.served_digest(metadata) == MANIFEST.weights.sha256


def test_unreachable_server_is_reported_with_the_last_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predict, "READY_TIMEOUT", 0.1)
    with pytest.raises(DevclusterError, match=r"did not serve digits of digits-1.*ConnectError"):
        predict.wait_ready("http://127.0.0.1:9", "digits", "digits-1", lambda _: None)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_a_held_out_digit_is_sent_in_the_models_shape(
    server: Server, shape: tuple[int, ...]
) -> None:
    server.manifest = MANIFEST.model_copy(update={"input_shape": shape})
    metadata = model_metadata(served(server.manifest))
    predict.predict(server.url, "digits", metadata)
    images, _ = held_out_digits((shape[0], shape[1], shape[2]))
    np.testing.assert_array_equal(server.last_request.inputs["images"], images[:1])


@pytest.mark.parametrize("off", [0, 1])
def test_prediction_is_compared_with_the_label(server: Server, off: int) -> None:
    _, labels = held_out_digits()
    server.answer = (int(labels[0]) + off) % 10
    metadata = model_metadata(served(MANIFEST))
    prediction = predict.predict(server.url, "digits", metadata)
    assert (prediction.label, prediction.predicted) == (labels[0], server.answer)
    assert prediction.correct is (off == 0)


def test_no_sample_is_sent_to_a_model_that_does_not_classify_images() -> None:
    texts = {"inputs": [{"shape": [-1, 32]}], "outputs": [{"name": "class"}]}
    features = {"inputs": [{"shape": [-1, 1, 8, 8]}], "outputs": [{"name": "embedding"}]}
    for metadata in (texts, features):
        with pytest.raises(NoPredictionError, match="does not classify images"):
            predict.predict("http://127.0.0.1:9", "model", metadata)


@pytest.mark.parametrize("classes", [("china", "flower"), FASHION_CLASSES], ids=len)
def test_no_digit_is_sent_to_a_model_for_other_images(
    classes: tuple[str, ...], server: Server
) -> None:
    manifest = MANIFEST.model_copy(update={"classes": classes, "outputs": len(classes)})
    with pytest.raises(NoPredictionError, match="does not classify digits"):
        predict.predict(server.url, "flowers", model_metadata(served(manifest)))


def test_no_prediction_is_requested_from_a_server_that_requires_an_api_key(server: Server) -> None:
    server.protected = True
    with pytest.raises(NoPredictionError, match="requires an API key"):
        predict.wait_ready(server.url, "digits", "digits-1", lambda _: None)


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        ({"runtime": "vllm", "url": "http://chat"}, "the runtime is vllm"),
        ({"runtime": "torch", "url": "https://digits"}, "the server requires TLS"),
    ],
)
def test_no_prediction_is_requested_from_other_runtimes_or_over_tls(
    service: dict[str, str], reason: str
) -> None:
    with pytest.raises(NoPredictionError, match=reason):
        predict.check_supported(service)


def test_service_with_another_runtime_is_ready_once_its_first_pod_is(
    install: Install, tmp_path: Path
) -> None:
    (tmp_path / "answer").write_text('{"items": [{"endpoints": null}]}')
    kubectl = install("kubectl", f"echo $* > {tmp_path}/arguments; cat {tmp_path}/answer")
    reports: list[str] = []

    def report(line: str) -> None:
        reports.append(line)
        conditions = [{"conditions": {"ready": ready}} for ready in (False, len(reports) > 1)]
        (tmp_path / "answer").write_text(json.dumps({"items": [{"endpoints": conditions}]}))

    predict.wait_endpoint([str(kubectl)], SERVICE, report)
    assert reports == ["0 of 0 pods are ready", "0 of 2 pods are ready"]
    assert "--selector=kubernetes.io/service-name=digits" in (tmp_path / "arguments").read_text()


def test_a_service_without_a_ready_pod_is_an_error(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "READY_TIMEOUT", 0.1)
    kubectl = install("kubectl", """echo '{"items": []}'""")
    with pytest.raises(DevclusterError, match=r"digits in ml: no pod was ready.*describe pods"):
        predict.wait_endpoint([str(kubectl)], SERVICE, lambda _: None)


def test_an_error_of_the_server_is_reported(server: Server) -> None:
    metadata = model_metadata(served(MANIFEST))
    metadata["inputs"][0]["name"] = "pictures"
    with pytest.raises(DevclusterError, match=r"responded with 400: .*pictures"):
        predict.predict(server.url, "digits", metadata)


def test_a_server_that_stops_before_the_prediction_is_reported() -> None:
    metadata = model_metadata(served(MANIFEST))
    with pytest.raises(DevclusterError, match="did not return a prediction: ConnectError"):
        predict.predict("http://127.0.0.1:9", "digits", metadata)
