from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inference.serving import Server, serving
from training.config import TrainingConfig
from training.gang.world import World
from training.train import run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a short but real training run on digits. Read-only: tests change a copy."""
    run_dir = tmp_path_factory.mktemp("runs") / "digits"
    settings = {"model": "digits-net", "epochs": 4, "learning_rate": 0.01, "device": "cpu"}
    config = TrainingConfig.model_validate(settings | {"run_dir": str(run_dir)})
    run(config, World(rank=0, size=1, local_rank=0, master=""))
    return run_dir / "export"


@pytest.fixture(scope="session")
def server(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A shared server for the digits model, with low limits on the size of request bodies."""
    folder = tmp_path_factory.mktemp("server")
    limits = {"max_body_bytes": 1_000_000, "max_json_bytes": 500_000}
    with serving(folder, trained, **limits, request_log="none") as running:
        running.wait_until_ready()
        yield running
