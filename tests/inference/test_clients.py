"""Third-party clients: tritonclient and KServe's client."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.environments import environment, run
from tests.inference.serving import Server, digits
from workload.export import load_network
from workload.manifest import read_manifest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python() -> Path:
    """A virtual environment with the clients, created if it is missing or its pins changed."""
    return environment("clients")


@pytest.fixture(scope="module")
def answers(python: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Any:
    images = tmp_path_factory.mktemp("clients") / "images.npy"
    np.save(images, digits(4))
    received: dict[str, Any] = {}
    # Separately: the clients define protobuf messages with equal names.
    for program in ("triton_client.py", "kserve_client.py"):
        asking = ROOT / "tests/inference/clients" / program
        output = run([str(python), str(asking), str(server.port), str(images)])
        received |= json.loads(output.splitlines()[-1])
    return received


CLIENTS = ("triton http", "triton http json", "kserve rest", "kserve rest json")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", CLIENTS)
def test_third_party_clients_get_the_models_predictions(
    client: str, answers: Any, trained: Path
) -> None:
    with torch.no_grad():
        network = load_network(trained, read_manifest(trained))
        expected = network(torch.from_numpy(digits(4))).softmax(1).numpy()
    received = answers[client]
    assert received["ready"] is True
    assert received["id"] == "mine"
    got = np.array(received["probabilities"]).reshape(expected.shape)
    assert got == pytest.approx(expected, abs=1e-6)
    classes = expected.argmax(1).tolist()
    assert received["classes"] == classes
    assert received["labels"] == [str(best) for best in classes]
    if "error" in received:
        assert "inputs[0].shape is [4, 64]" in received["error"]
    if "versions" in received:
        assert len(received["versions"]) == 1
        assert (received["live"], received["other"]) == (True, False)
