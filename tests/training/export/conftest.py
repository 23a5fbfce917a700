from pathlib import Path

import pytest

from tests.training.export.trained import Export, Trained, fitted
from training.config import TrainingConfig
from training.export import artifacts, write_export
from workload.manifest import Manifest

ALL = {"export_formats": "pt2", "prune": 0.75, "quantize": "static"}


@pytest.fixture(autouse=True)
def short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "TIMING_SECONDS", 0.0)


@pytest.fixture(scope="session")
def digits_net() -> Trained:
    """A model trained on digits. Read-only."""
    return fitted("digits-net", (1, 8, 8), steps=150)


def export_model(trained: Trained, folder: Path, settings: dict[str, object]) -> Manifest:
    values = {"model": "digits-net", "dataset": "digits", "run_dir": "/checkpoints/run-7"}
    config = TrainingConfig.model_validate(values | settings)
    metrics = artifacts.evaluate_on_cpu(trained.model.eval(), trained.data.held_out)
    return write_export(folder, trained.model, config, trained.data, metrics)


@pytest.fixture
def export(digits_net: Trained, tmp_path: Path) -> Export:
    """A function that writes an export below tmp_path. Its keyword arguments are settings."""

    def write(trained: Trained = digits_net, **settings: object) -> tuple[Path, Manifest]:
        return tmp_path / "export", export_model(trained, tmp_path / "export", settings)

    return write


@pytest.fixture(scope="session")
def complete(
    digits_net: Trained, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Manifest]:
    """An export with every kind of artifact. Read-only: tests change a copy."""
    folder = tmp_path_factory.mktemp("complete")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "TIMING_SECONDS", 0.0)
        return folder, export_model(digits_net, folder, dict(ALL))
