"""How a model is asked: four hooks, which run in the worker's process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from inference.engine.datatypes import NUMPY
from inference.engine.interface import Tensors, TensorSpec
from workload.manifest import Manifest


@dataclass(frozen=True)
class Source:
    """What a handler loads its model from. `network` reads it by the configured backend.

    The network is on `device`, in evaluation mode and ready to compute; its file's digest was
    compared. It raises ExportError.
    """

    folder: Path
    manifest: Manifest
    device: torch.device
    network: Callable[[], nn.Module]


class Handler(ABC):
    """Loads one model, and turns batches of requests into their outputs.

    All hooks see whole batches: rows of the inputs are samples, and rows of the outputs must be
    the same samples in the same order. A hook that raises InputError refuses one sample with its
    message: the batch is then computed again, one request after the other. What else it raises is
    told as the request's fault, too, since the model has computed before.
    """

    inputs: tuple[TensorSpec, ...]
    """Set by `load`. What requests must look like; they are checked before they come here."""

    outputs: tuple[TensorSpec, ...]
    """Set by `load`."""

    @abstractmethod
    def load(self, source: Source) -> None:
        """Get the model, and tell its inputs and outputs. Raises ExportError."""

    def decode(self, inputs: Tensors) -> Any:
        """Arrays to what `predict` takes. They are in shared memory and must not be changed."""
        return inputs

    @abstractmethod
    def predict(self, decoded: Any) -> Any:
        """Compute. Called without autograd (torch.inference_mode)."""

    def encode(self, predicted: Any) -> Tensors:
        """What `predict` gave to arrays, by the outputs' names, each with the batch first."""
        encoded: Tensors = predicted
        return encoded

    def examples(self, largest: int) -> Iterator[Tensors]:
        """Inputs with which the model is tried and warmed up before it is ready.

        By default zeros, one sample and `largest`, with 1 for every size that is not fixed.
        """
        for samples in sorted({1, largest}):
            yield {spec.name: _zeros(spec, samples) for spec in self.inputs}

    def compute(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Decode, predict, encode."""
        with torch.inference_mode():
            return dict(self.encode(self.predict(self.decode(inputs))))


def _zeros(spec: TensorSpec, samples: int) -> NDArray[Any]:
    shape = (samples, *(1 if size == -1 else size for size in spec.shape[1:]))
    if spec.datatype == "BYTES":
        return np.full(shape, b"", np.object_)
    return np.zeros(shape, NUMPY[spec.datatype])
