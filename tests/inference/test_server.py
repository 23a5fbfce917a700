"""A real server process, asked over HTTP."""

import contextlib
import json
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from inference.model import load_model
from tests.training.programs import Program, free_port, start, until
from training.data import held_out_digits

INFER = "/v2/models/digits/infer"


@dataclass
class Server:
    """A server process and a client for it."""

    program: Program
    client: httpx.Client
    port: int

    @property
    def ready(self) -> httpx.Response:
        return self.client.get("/v2/health/ready")


@contextlib.contextmanager
def serving(folder: Path, export: Path, **settings: object) -> Iterator[Server]:
    port = free_port()
    environment = {
        "INFERENCE_MODEL_NAME": "digits",
        "INFERENCE_MODEL_PATH": str(export),
        "INFERENCE_HOST": "127.0.0.1",
        "INFERENCE_PORT": str(port),
        "INFERENCE_POLL_SECONDS": "0.05",
        "INFERENCE_NOTICE_SECONDS": "0.5",
    } | {f"INFERENCE_{name.upper()}": str(value) for name, value in settings.items()}
    program = start("inference", [], environment, folder / "output")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        server = Server(program, client, port)
        try:
            until(lambda: answers(server))
            yield server
        finally:
            if program.process.is_alive():
                program.signal(signal.SIGKILL)


def answers(server: Server) -> bool:
    try:
        return server.client.get("/v2/health/live").status_code == 200
    except httpx.TransportError:
        assert server.program.process.is_alive(), server.program.text
        return False


@pytest.fixture(scope="module")
def server(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that several tests share, with a model and a small limit on bodies."""
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, trained, max_body_bytes=1_000_000) as running:
        until(lambda: running.ready.status_code == 200)
        yield running


def request_of(images: np.ndarray[Any, Any], **more: object) -> dict[str, object]:
    tensor = {"name": "images", "shape": list(images.shape), "datatype": "FP32"}
    return {"inputs": [tensor | {"data": images.ravel().tolist()}], **more}


def output(response: httpx.Response, name: str) -> list[Any]:
    outputs = response.json()["outputs"]
    return next(tensor["data"] for tensor in outputs if tensor["name"] == name)


def test_predictions_over_http_are_those_of_the_trained_model(
    server: Server, trained: Path
) -> None:
    images, labels = held_out_digits()
    response = server.client.post(INFER, json=request_of(images, id="all"))
    assert response.status_code == 200
    assert response.json()["id"] == "all"
    expected = load_model(trained, torch.device("cpu")).predict(images)
    got = np.array(output(response, "probabilities")).reshape(expected.shape)
    assert got == pytest.approx(expected, abs=1e-6)
    assert output(response, "class") == expected.argmax(1).tolist()
    facts = server.client.get("/v2/models/digits").json()
    accuracy = np.mean(np.array(output(response, "label")).astype(int) == labels)
    assert accuracy == pytest.approx(facts["parameters"]["metrics"]["accuracy"])
    assert response.json()["model_version"] == facts["versions"][0]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v2", 200),
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/models/digits/ready", 200),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/other/ready", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("GET", "/v2/models/digits/versions/1", 404),
        ("GET", INFER, 405),
        ("POST", "/v2", 405),
        ("GET", "/", 404),
        ("POST", INFER, 400),
    ],
)
def test_every_path_answers_as_the_protocol_says(
    method: str, path: str, code: int, server: Server
) -> None:
    response = server.client.request(method, path)
    assert response.status_code == code
    assert ("error" in response.json()) == (code >= 400)


def test_a_version_is_served_under_its_own_path_too(server: Server) -> None:
    [version] = server.client.get("/v2/models/digits").json()["versions"]
    path = f"/v2/models/digits/versions/{version}"
    images, _ = held_out_digits()
    assert server.client.get(f"{path}/ready").status_code == 200
    assert server.client.post(f"{path}/infer", json=request_of(images[:1])).status_code == 200


def test_large_bodies_are_refused_announced_or_not(server: Server) -> None:
    def unannounced() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    for content in (b" " * 1_000_001, unannounced()):
        try:
            response = server.client.post(INFER, content=content)
        except httpx.WriteError:
            continue  # The server had answered and closed before all was sent.
        assert response.status_code == 413
        assert "larger than 1000000 bytes" in response.json()["error"]


def test_the_binary_extension_is_declined_in_words(server: Server) -> None:
    headers = {"Inference-Header-Content-Length": "10"}
    response = server.client.post(INFER, content=b"x", headers=headers)
    assert response.status_code == 400
    assert "binary tensor extension" in response.json()["error"]


def test_metrics_count_requests_by_code_and_name_the_model(server: Server) -> None:
    images, _ = held_out_digits()
    before = server.client.get("/metrics").text
    server.client.post(INFER, json=request_of(images[:5]))
    server.client.post(INFER, content=b"{")
    after = server.client.get("/metrics").text
    for series, more in (
        ('inference_requests_total{code="200"}', 1),
        ('inference_requests_total{code="400"}', 1),
        ("inference_samples_total", 5),
        ("inference_request_seconds_count", 2),
    ):
        assert value(after, series) - value(before, series) == more
    [version] = server.client.get("/v2/models/digits").json()["versions"]
    assert f'version="{version}"' in after
    assert value(after, "inference_ready") == 1


def value(text: str, series: str) -> float:
    lines = [line for line in text.splitlines() if line.startswith(series + " ")]
    return float(lines[0].split()[-1]) if lines else 0


def test_probes_are_answered_while_the_model_computes(server: Server) -> None:
    images, _ = held_out_digits()
    body = json.dumps(request_of(np.repeat(images, 8, axis=0))).encode()[:999_999]
    many = json.dumps(request_of(np.zeros((3_000, 1, 8, 8)))).encode()
    assert len(many) < 1_000_000
    with ThreadPoolExecutor(4) as senders:
        sent = [senders.submit(server.client.post, INFER, content=many) for _ in range(8)]
        probed = 0
        while not all(one.done() for one in sent):
            assert server.client.get("/v2/health/live").elapsed.total_seconds() < 2
            probed += 1
    assert probed > 0
    assert {one.result().status_code for one in sent} == {200}
    assert server.client.post(INFER, content=body).status_code == 400


def test_a_server_waits_for_its_export_and_refuses_a_damaged_one(
    trained: Path, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    with serving(tmp_path, export) as server:
        assert server.ready.status_code == 503
        assert "is not there yet" in server.ready.json()["reason"]
        response = server.client.post(INFER, content=b"{}")
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        shutil.copytree(trained, tmp_path / "copy")
        weights = tmp_path / "copy/model.safetensors"
        good = weights.read_bytes()
        weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        (tmp_path / "copy").rename(export)
        until(lambda: "not those that were exported" in server.ready.json()["reason"])
        (export / "model.safetensors").write_bytes(good)
        until(lambda: server.ready.status_code == 200)
        server.program.says('"event": "loaded"')
        server.program.signal(signal.SIGTERM)
        assert server.program.exit_code() == 0


def test_sigterm_makes_it_unready_at_once_and_lets_a_request_in_flight_finish(
    trained: Path, tmp_path: Path
) -> None:
    images, _ = held_out_digits()
    body = json.dumps(request_of(images[:50])).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with serving(tmp_path, trained, notice_seconds=2) as server:
        until(lambda: server.ready.status_code == 200)
        with socket.create_connection(("127.0.0.1", server.port), 30) as slow:
            slow.sendall(head + body[:1000])
            until(lambda: in_flight(server) == 1)
            server.program.signal(signal.SIGTERM)
            until(lambda: server.ready.status_code == 503)
            assert server.ready.json()["reason"] == "the server is shutting down"
            late = server.client.post(INFER, json=request_of(images[:1]))
            assert late.status_code == 200
            until(lambda: not listens(server))
            slow.sendall(body[1000:])
            answer = read_all(slow)
        assert answer.startswith(b"HTTP/1.1 200")
        assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][1]["data"]) == 50
        assert server.program.exit_code() == 0
        server.program.says('"event": "stopped"')


def in_flight(server: Server) -> float:
    return value(server.client.get("/metrics").text, "inference_requests_in_flight")


def listens(server: Server) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), 1).close()
    except ConnectionRefusedError:
        return False
    return True


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_server_without_a_model_path_ends_with_64(tmp_path: Path) -> None:
    program = start("inference", [], {"INFERENCE_MODEL_NAME": "digits"}, tmp_path / "output")
    assert program.exit_code() == 64
    assert "INFERENCE_MODEL_PATH is missing" in json.loads(program.text)["message"]
