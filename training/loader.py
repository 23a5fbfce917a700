"""Batches on the device, read ahead by processes of their own where that is asked for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import data

from training.data.samples import Samples
from training.sampler import Batch


@dataclass(frozen=True)
class Loaded:
    """A batch with its inputs N x sample shape (pixels from 0 to 1, or tokens) and targets."""

    batch: Batch
    inputs: Tensor
    targets: Tensor


class Loader:
    """Reads what a sampler names, in its order, and has no state of its own to be saved."""

    def __init__(
        self, samples: Samples, batches: Iterable[Batch], device: torch.device, workers: int
    ) -> None:
        self._samples, self._batches, self._device = samples, batches, device
        self._ahead: data.DataLoader[tuple[Batch, Tensor, Tensor]] | None = None
        if workers:
            self._ahead = data.DataLoader(
                _Read(samples),
                batch_size=None,
                sampler=_Again(batches),
                num_workers=workers,
                pin_memory=device.type == "cuda",
                collate_fn=_as_it_is,
                persistent_workers=True,
                # Its own, so that a resumed run draws the same random numbers as one that was not.
                generator=torch.Generator(),
            )

    def __iter__(self) -> Iterator[Loaded]:
        read = _Read(self._samples)
        for batch, inputs, targets in (
            map(read.__getitem__, self._batches) if self._ahead is None else self._ahead
        ):
            yield Loaded(
                batch,
                scale(inputs.to(self._device, non_blocking=True), self._samples.white),
                targets.to(self._device, non_blocking=True),
            )


def scale(inputs: Tensor, white: int) -> Tensor:
    """Pixels from 0 to 1 from bytes; tokens as they are."""
    return inputs.float() / white if white else inputs


def _as_it_is(read: Any) -> Any:
    return read


class _Read(data.Dataset[tuple[Batch, Tensor, Tensor]]):
    """What the workers do: from a batch's numbers to its tensors."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __getitem__(self, batch: Batch) -> tuple[Batch, Tensor, Tensor]:
        inputs, targets = self._samples.batch(batch.indices)
        return batch, torch.from_numpy(inputs), torch.from_numpy(targets)


class _Again(data.Sampler[Batch]):
    """A sampler that is asked anew at every epoch."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)
