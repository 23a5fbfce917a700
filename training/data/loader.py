"""Sample order of an epoch, and loading of its batches onto the device."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from training.data.samples import DataError, Indices, Samples


@dataclass(frozen=True)
class Batch:
    """This process's part of a batch.

    All processes have the same number of `indices`. `real` is the number of indices that are not
    padding; the padding comes last. `total` is the number of samples in the step, over all
    processes. `seen` is the number of the epoch's samples that have been used by the end of the
    step. `last` marks the last batch of the step, after which the optimizer updates the weights.
    """

    indices: Indices
    real: int
    total: int
    seen: int
    last: bool


class GangSampler:
    """Sampler that distributes the samples of an epoch over `size` processes.

    The order of the samples is derived from the seed and does not depend on the number of
    processes. Iteration can start at any sample. Every sample counts exactly once per epoch. A step
    consists of `accumulate` batches of `batch_size` samples per process; the last step of an epoch
    may be smaller.
    """

    def __init__(
        self, samples: Samples, batch_size: int, accumulate: int, rank: int, size: int, seed: int
    ) -> None:
        self._samples, self._batch_size, self._seed = samples, batch_size, seed
        self._rank, self._size = rank, size
        self._step = batch_size * accumulate * size
        self.set_epoch(0)

    def set_epoch(self, epoch: int, seen: int = 0, end: int | None = None) -> None:
        """Select the samples of `epoch` from `seen` to `end`, by default the end of the epoch."""
        self._order = self._samples.order(np.random.default_rng((self._seed, epoch)))[:end]
        self._seen = seen

    def __iter__(self) -> Iterator[Batch]:
        for start in range(self._seen, len(self._order), self._step):
            yield from process_batches(
                self._order[start : start + self._step],
                self._batch_size,
                self._rank,
                self._size,
                seen=start,
                padding=self._order[:2] if self._batch_size > 1 else None,
            )


def largest_batch(samples: Samples, batch_size: int, size: int) -> int:
    """Return the maximum number of samples in a batch of one of `size` processes."""
    # A batch of a single sample is padded unless `batch_size` is 1.
    return min(batch_size, max(-(-len(samples) // size), 2))


def process_batches(
    samples: Indices,
    batch_size: int,
    rank: int,
    size: int,
    seen: int = 0,
    padding: Indices | None = None,
) -> Iterator[Batch]:
    """Divide the `samples` of a step among the processes; yield the batches of process `rank`.

    `seen` is the number of samples of the epoch that were used before this step. If `padding` is
    set, it contains up to two samples, one of which is added to a batch with a single sample.
    """
    total, each = len(samples), -(-len(samples) // size)
    mine = samples[rank::size]
    padded = np.resize(mine, each) if len(mine) else np.repeat(samples[:1], each)
    for start in range(0, each, batch_size):
        part = padded[start : start + batch_size]
        real = min(max(len(mine) - start, 0), len(part))
        if padding is not None and len(part) == 1:
            # Batch norm cannot train on one sample. Its running statistics include the padding, so
            # pad with another sample of the epoch: two equal samples would have a variance of 0.
            others = padding[padding != part]
            part = np.append(part, others[:1] if len(others) else part)
        yield Batch(part, real, total, seen + total, last=start + batch_size >= each)


@dataclass(frozen=True)
class LoadedBatch:
    """A batch with its inputs (N x sample shape; pixels from 0 to 1, or tokens) and targets."""

    batch: Batch
    inputs: Tensor
    targets: Tensor


class Loader:
    """Loader that reads a sampler's batches in order. It has no state to save in a checkpoint."""

    def __init__(
        self, samples: Samples, batches: Iterable[Batch], device: torch.device, workers: int
    ) -> None:
        self._samples, self._batches, self._device = samples, batches, device
        self._prefetcher: data.DataLoader[_Loaded] | None = None
        if workers:
            self._prefetcher = data.DataLoader(
                _BatchDataset(samples),
                batch_size=None,
                sampler=batches,
                num_workers=workers,
                pin_memory=device.type == "cuda",
                worker_init_fn=_leave_process_group,
                persistent_workers=True,
                # Use a separate generator for the workers' seeds, so that a resumed run gets the
                # same random numbers as an uninterrupted one.
                generator=torch.Generator(),
            )

    def __iter__(self) -> Iterator[LoadedBatch]:
        read = _BatchDataset(self._samples)
        for loaded in (
            map(read.__getitem__, self._batches) if self._prefetcher is None else self._prefetcher
        ):
            if isinstance(loaded, DataError):
                raise loaded
            batch, inputs, targets = loaded
            yield LoadedBatch(
                batch,
                scale(inputs.to(self._device, non_blocking=True), self._samples.divisor),
                targets.to(self._device, non_blocking=True),
            )


def scale(inputs: Tensor, divisor: int) -> Tensor:
    """Scale pixels to the range from 0 to 1; return tokens unchanged."""
    return inputs.float() / divisor if divisor else inputs


def _leave_process_group(_: int) -> None:
    """Keep this loader process running if torchrun or a shell signals the whole process group.

    The training process needs its loader processes until it has saved the run.
    """
    os.setpgrp()


_Loaded = tuple[Batch, Tensor, Tensor] | DataError


class _BatchDataset(data.Dataset[_Loaded]):
    """Data set that returns a batch's tensors, in this process or in the loader processes.

    Errors are returned instead of raised: if a loader process raises an error, PyTorch replaces its
    message with a traceback.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __getitem__(self, batch: Batch) -> _Loaded:
        try:
            inputs, targets = self._samples.batch(batch.indices)
        except DataError as error:
            return error
        return batch, torch.from_numpy(inputs), torch.from_numpy(targets)
