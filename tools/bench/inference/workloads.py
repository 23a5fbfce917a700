"""What is served: three models, and the requests that all servers get. Needs no PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

Compute = Callable[[Array], Array]
"""A batch of samples to the probabilities of each, or for the no-op to itself."""

SAMPLES: Final = 16
"""Different requests, sent in turn."""

MAX_BATCH: Final = 16
MAX_DELAY_MS: Final = 2
MAX_QUEUE: Final = 96
"""The same for every server that has such a bound; as many requests are computed within each
workload's deadline."""


@dataclass(frozen=True)
class Workload:
    """One model, how long it is measured, and within what an answer is useful."""

    title: str
    name: str
    """In workload.catalog; the no-op is none of them and answers what it was asked."""
    shape: tuple[int, ...]
    deadline: float
    """Seconds; more than 64 clients wait that are served one after another."""
    patience: float = 1
    """How much longer than the others it is measured, since it answers less often."""

    @property
    def computes(self) -> bool:
        """Whether there is a network."""
        return self.name != "no-op"

    @property
    def options(self) -> dict[str, Any]:
        """Of the model."""
        return {"image_size": self.shape[-1]} if self.name == "resnet18" else {}

    def samples(self) -> Array:
        """The requests, one a row, always the same: noise, each brighter than the one before."""
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
