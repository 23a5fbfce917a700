"""The served models, and the requests that all servers receive. Needs no PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

Compute = Callable[[Array], Array]
"""Computes the probabilities of each sample of a batch; the no-op returns the batch."""

SAMPLES: Final = 16
"""Number of different requests, sent in turn."""

MAX_BATCH: Final = 16
MAX_DELAY_MS: Final = 2
MAX_QUEUE: Final = 96
"""Queue limit of every server that has one. Each workload answers a full queue in its deadline."""


@dataclass(frozen=True)
class Workload:
    """One model, the length of its measurement, and the deadline of an answer."""

    title: str
    name: str
    """Name in workload.catalog; the no-op has no network and returns its input."""
    shape: tuple[int, ...]
    deadline: float
    """Deadline in seconds, longer than 64 clients wait that are served one after another."""
    patience: float = 1
    """Factor of the measurement's length, for models with fewer answers per second."""

    @property
    def computes(self) -> bool:
        """True if there is a network."""
        return self.name != "no-op"

    @property
    def options(self) -> dict[str, Any]:
        """Options of the model."""
        return {"image_size": self.shape[-1]} if self.name == "resnet18" else {}

    def samples(self) -> Array:
        """Return the requests, one per row, always the same: noise with increasing brightness."""
        noise = np.random.default_rng(0).random((SAMPLES, *self.shape), dtype=np.float32)
        brightness = np.linspace(0.1, 1, SAMPLES, dtype=np.float32)
        return noise * brightness.reshape(-1, *[1] * len(self.shape))


WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload("no-op", "no-op", (16,), deadline=0.05, patience=1.5),
        Workload("SimpleCNN", "simple-cnn", (3, 32, 32), deadline=0.1, patience=2),
        Workload("ResNet-18", "resnet18", (3, 32, 32), deadline=1.25, patience=6),
    )
}
