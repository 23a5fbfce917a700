from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.data import Dataset, load
from workload.manifest import Manifest
from workload.models import build


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
