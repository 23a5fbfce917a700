"""Who sees which sample when: the same for any number of processes, and from any point on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.data.samples import Indices, Samples


@dataclass(frozen=True)
class Batch:
    """This process's part of what is computed at once.

    All processes have equally many `indices`; only the first `real` of them count. The step that it
    belongs to has `total` samples in all processes together, and the epoch has had `seen` of them
    once that step is done. `last` of the step's batches, its optimizer follows.
    """

    indices: Indices
    real: int
    total: int
    seen: int
    last: bool


class GangSampler:
    """Deals the samples of an epoch out to `size` processes in an order made from the seed.

    Every sample counts exactly once an epoch. A step has `accumulate` batches of `batch_size`
    samples for each process; the last step of an epoch may have fewer.
    """

    def __init__(
        self, samples: Samples, batch_size: int, accumulate: int, rank: int, size: int, seed: int
    ) -> None:
        self._samples, self._batch_size, self._seed = samples, batch_size, seed
        self._rank, self._size = rank, size
        self._step = batch_size * accumulate * size
        self.set_epoch(0)

    def set_epoch(self, epoch: int, seen: int = 0) -> None:
        """Choose the order of `epoch` and leave out the `seen` samples it has had already."""
        self._order = self._samples.order(np.random.default_rng((self._seed, epoch)))
        self._seen = seen

    def __iter__(self) -> Iterator[Batch]:
        for start in range(self._seen, len(self._order), self._step):
            yield from deal(
                self._order[start : start + self._step],
                self._batch_size,
                self._rank,
                self._size,
                seen=start,
            )


def deal(samples: Indices, batch_size: int, rank: int, size: int, seen: int = 0) -> Iterator[Batch]:
    """One process's batches of a step over `samples`; `seen` of its epoch came before."""
    total, each = len(samples), -(-len(samples) // size)
    mine = samples[rank::size]
    padded = np.resize(mine, each) if len(mine) else np.repeat(samples[:1], each)
    for start in range(0, each, batch_size):
        part = padded[start : start + batch_size]
        real = min(max(len(mine) - start, 0), len(part))
        yield Batch(part, real, total, seen + total, last=start + batch_size >= each)
