"""Served models, and the requests that all servers receive. This module does not import PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

Compute = Callable[[Array], Array]
"""Function that computes the probabilities of a batch; the no-op model returns its input."""

SAMPLES: Final = 16
"""Number of different requests, which are sent in rotation."""

MAX_BATCH: Final = 16
MAX_DELAY_MS: Final = 2
MAX_QUEUE: Final = 96
"""Queue limit of the servers with a bounded queue. A full queue is served within the deadline."""


@dataclass(frozen=True)
class Workload:
    """A model, the duration of its measurement, and the deadline for its responses."""

    title: str
    model: str
    """Name in workload.catalog, or `no-op`, which returns its input."""
    shape: tuple[int, ...]
    deadline: float
    """Deadline in seconds, longer than it takes to serve 64 clients one after another."""
    duration_factor: float = 1
    """Factor for the duration of a measurement, for models with fewer responses per second."""
    plain: bool = False
    """True if all servers run the unoptimized PyTorch model; False if all use the optimizations and
    memory settings of our `eager` backend."""

    @property
    def name(self) -> str:
        """Name on the command line."""
        return f"{self.model}-plain" if self.plain else self.model

    @property
    def is_network(self) -> bool:
        """True if the model is a neural network; False for the no-op model."""
        return self.model != "no-op"

    @property
    def options(self) -> dict[str, Any]:
        """Options of the model."""
        return {"image_size": self.shape[-1]} if self.model == "resnet18" else {}

    def samples(self) -> Array:
        """Return the requests, one per row: reproducible noise with increasing brightness."""
        noise = np.random.default_rng(0).random((SAMPLES, *self.shape), dtype=np.float32)
        brightness = np.linspace(0.1, 1, SAMPLES, dtype=np.float32)
        return noise * brightness.reshape(-1, *[1] * len(self.shape))


WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload("no-op", "no-op", (16,), deadline=0.05, duration_factor=1.5),
        Workload("SimpleCNN", "simple-cnn", (3, 32, 32), deadline=0.1, duration_factor=2),
        Workload("SimpleCNN, plain", "simple-cnn", (3, 32, 32), 0.1, 2, plain=True),
        Workload("ResNet-18", "resnet18", (3, 32, 32), deadline=1.25, duration_factor=6),
        Workload("ResNet-18, plain", "resnet18", (3, 32, 32), 1.25, 6, plain=True),
    )
}
