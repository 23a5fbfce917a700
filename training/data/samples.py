"""What a run trains on and is judged by, whatever it is and wherever it lies. No torch."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
"""Numbers of samples, N."""

Targets = NDArray[np.int64]
"""The right outputs: N classes, or N x tokens of the token that comes next."""


class DataError(Exception):
    """A data set is missing or not what it should be; the message names the file."""


class Samples(Protocol):
    """A fixed number of samples, each of which can be had at any time by its number."""

    @property
    def white(self) -> int:
        """What inputs are divided by on the device: of bytes that are pixels; 0 for tokens."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Inputs N x sample shape, as they are stored, and targets. Raises DataError."""

    def order(self, random: np.random.Generator) -> Indices:
        """All numbers, each once, in an order that is good for training and cheap to read."""


@dataclass(frozen=True)
class Dataset:
    """What a run trains on, what it is judged by, and what a model's outputs mean.

    `shape` is that of one input; `outputs` the number of classes, or of different tokens;
    `classes` has the classes' names, and is empty for tokens.
    """

    train: Samples
    held_out: Samples
    shape: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...] = ()
