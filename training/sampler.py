"""Who sees which sample when: the same for any number of processes, and from any point on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """One step: this process's samples, and how far the epoch is for all processes together."""

    indices: NDArray[np.int64]
    seen: int


class GangSampler:
    """Deals the samples of an epoch out to `size` processes in an order made from the seed.

    Every sample is seen once an epoch. Only the last step may repeat up to `size` - 1 samples, so
    that all processes have equally many.
    """

    def __init__(self, count: int, batch_size: int, rank: int, size: int, seed: int) -> None:
        self.count, self.rank, self.size, self.seed = count, rank, size, seed
        self.step = batch_size * size
        self.set_epoch(0)

    def set_epoch(self, epoch: int, seen: int = 0) -> None:
        """Choose the order of `epoch` and leave out the `seen` samples it has had already."""
        self._order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
        self._seen = seen

    def __iter__(self) -> Iterator[Batch]:
        for start in range(self._seen, self.count, self.step):
            samples = self._order[start : start + self.step]
            padding = np.resize(self._order, -len(samples) % self.size)
            mine = np.concatenate([samples, padding])[self.rank :: self.size]
            yield Batch(mine, min(start + self.step, self.count))
