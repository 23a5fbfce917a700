from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.config import TrainingConfig
from training.data import Dataset, load
from training.export import artifacts, write_export
from workload.manifest import Manifest
from workload.models import build

ALL = {"export_formats": "pt2", "prune": 0.75, "quantize": "static"}


@dataclass(frozen=True)
class Trained:
    """A model that was trained for a few steps, and its data."""

    model: nn.Module
    data: Dataset
    inputs: Tensor
    targets: Tensor

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return accuracy and loss on the held-out digits."""
        with torch.no_grad():
            logits = model.eval()(self.inputs)
        right = (logits.argmax(1) == self.targets).float().mean()
        return {"accuracy": float(right), "loss": float(cross_entropy(logits, self.targets))}


def fitted(name: str, shape: tuple[int, ...], steps: int, **options: int) -> Trained:
    """Return a model that was trained on digits."""
    data = load("digits", Path("/nowhere"), shape, seed=0)
    torch.manual_seed(0)
    model = build(name, dict(options), data.outputs, data.shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    order = torch.randperm(len(data.train)).numpy()
    for step in range(steps):
        indices = order[step * 32 % 1024 : step * 32 % 1024 + 32]
        inputs, targets = map(torch.from_numpy, data.train.batch(indices))
        loss = cross_entropy(model(inputs.float() / data.train.divisor), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inputs, targets = map(
        torch.from_numpy, data.held_out.batch(torch.arange(len(data.held_out)).numpy())
    )
    return Trained(model, data, inputs.float() / data.held_out.divisor, targets)


Export = Callable[..., tuple[Path, Manifest]]


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
