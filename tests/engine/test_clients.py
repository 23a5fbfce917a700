"""Third-party clients of the model server: tritonclient, KServe's client and schemathesis."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.inference.serving import Server, digits
from tools.environments import environment, run
from workload.export import load_network
from workload.manifest import read_manifest

CLIENT_FOLDER = Path(__file__).parent / "clients"


@pytest.fixture(scope="module")
def python() -> Path:
    """A virtual environment with the clients, which is rebuilt if the pinned versions change."""
    return environment("clients")


@pytest.fixture(scope="module")
def answers(python: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Any:
    images = tmp_path_factory.mktemp("clients") / "images.npy"
    np.save(images, digits(4))
    received: dict[str, Any] = {}
    # The clients run in separate processes, because they define protobuf messages with equal names.
    for program in ("triton_client.py", "kserve_client.py"):
        asking = CLIENT_FOLDER / program
        ports = [str(server.port), str(server.admin.base_url.port)]
        output = run([str(python), str(asking), *ports, str(images)])
        received |= json.loads(output.splitlines()[-1])
    return received


CLIENTS = ("triton http", "triton http json", "kserve rest", "kserve rest json")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", CLIENTS)
def test_third_party_clients_receive_the_predictions_of_the_model(
    client: str, answers: Any, trained: Path
) -> None:
    with torch.no_grad():
        network = load_network(trained, read_manifest(trained))
        expected = network(torch.from_numpy(digits(4))).softmax(1).numpy()
    received = answers[client]
    assert received["ready"] is True
    assert received["id"] == "mine"
    actual = np.array(received["probabilities"]).reshape(expected.shape)
    assert actual == pytest.approx(expected, abs=1e-6)
    classes = expected.argmax(1).tolist()
    assert received["classes"] == classes
    assert received["labels"] == [str(best) for best in classes]
    if "error" in received:
        assert "inputs[0].shape is [4, 64]" in received["error"]
    if "versions" in received:
        assert len(received["versions"]) == 1
        assert (received["live"], received["other"]) == (True, False)


def test_every_supported_call_of_tritonclient_works(answers: Any) -> None:
    accepted = answers["triton accepted"]
    assert accepted["server"] == ["binary_tensor_data"]
    assert accepted["index"] == ["READY"]
    classes = answers["triton http"]["classes"]
    assert accepted["async"] == accepted["uncompressed"] == classes
    assert answers["kserve rest"]["live"] is answers["kserve rest"]["server ready"] is True


def test_every_unsupported_call_is_refused_with_a_reason(answers: Any) -> None:
    refusals = answers["triton refused"]
    assert {name for name, refusal in refusals.items() if not refusal} == set()
    for name, (status, message) in refusals.items():
        assert 400 <= int(status) < 500 or status == "501", (name, status, message)
        # The message is the server's, not the client's complaint about an unreadable answer.
        assert message.startswith(
            ("no such path", "model ", "version ", "Content-Encoding", "parameters", "inputs[0]",
             "outputs[0]", "this path supports", "the body of a load request")
        ), (name, message)  # fmt: skip
    assert answers["kserve rest"]["explanation"] != ""


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
)


CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""
"""The server answers 504 if a generated deadline has passed."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("port", ["clients", "administration"])
def test_the_server_conforms_to_its_openapi_description(
    server: Server, tmp_path: Path, port: str
) -> None:
    client = server.client if port == "clients" else server.admin
    program = Path(sys.prefix) / "bin/schemathesis"
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    result = subprocess.run(
        [
            *(str(program), "run", f"{client.base_url}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"),
            *("--max-examples", "15", "--seed", "1", "--no-shrink", "--no-color"),
            *("--generation-database", "none", "--request-timeout", "30", "--warnings", "off"),
            *("--suppress-health-check", "all"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-1000:]
