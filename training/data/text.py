"""Text for language models: windows of tokens, each with the tokens that come next."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from training.data.order import local_order
from training.data.samples import DataError, Dataset, Indices, Targets

BYTES: Final = 256
"""Different tokens where each byte of a text is one."""
HELD_OUT_SHARE: Final = 0.1
"""The end of every file: what comes later is harder to guess than what lies in between."""
CONTEXT: Final = 256
"""Tokens of a sample for models that do not say how many they take."""
WINDOW: Final = 8
"""Files whose samples are mixed at a time."""


class Stream(Protocol):
    """Tokens that follow one another, in memory or in a file."""

    @property
    def name(self) -> str:
        """For messages."""

    def __len__(self) -> int: ...

    def tokens(self) -> NDArray[Any]:
        """All of them, perhaps memory mapped. Raises DataError."""


@dataclass(frozen=True)
class MemoryStream:
    """Bytes of text in memory."""

    name: str
    content: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.content)

    def tokens(self) -> NDArray[Any]:
        """The bytes."""
        return self.content


class Windows:
    """Every `context` tokens of the streams are one sample, and none is in two.

    A stream's last tokens are left out where they do not fill a sample and one token more.
    """

    white: Final = 0

    def __init__(self, streams: Sequence[Stream], context: int, outputs: int) -> None:
        self._streams, self._context, self._outputs = tuple(streams), context, outputs
        self._sizes = [max(len(stream) - 1, 0) // context for stream in streams]
        self._ends = np.cumsum(self._sizes, dtype=np.int64)

    def __len__(self) -> int:
        return sum(self._sizes)

    def order(self, random: np.random.Generator) -> Indices:
        """Mixed among a few files at a time."""
        return local_order(self._sizes, WINDOW, random)

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Tokens and the tokens after them, both N x context. Raises DataError."""
        found = np.empty((len(indices), self._context + 1), np.int64)
        holders = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(holders):
            mine = holders == number
            begin = self._ends[number] - self._sizes[number]
            first = (indices[mine] - begin) * self._context
            stream = self._streams[number]
            found[mine] = stream.tokens()[first[:, None] + np.arange(self._context + 1)]
            # On a GPU the first sign of a wrong token would be a crash that names nothing.
            if found[mine].max() >= self._outputs:
                raise DataError(f"{stream.name} has a token above {self._outputs - 1}")
        return found[:, :-1], found[:, 1:]


def text(folder: Path, shape: tuple[int, ...] | None) -> Dataset:
    """All *.txt below `folder` as bytes; the end of every file is held out. Raises DataError."""
    paths = sorted(folder.rglob("*.txt"))
    if not paths:
        raise DataError(f"{folder} has no *.txt file: put text there, or write another data_dir")
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        cut = train_length(len(content), HELD_OUT_SHARE)
        parts[0].append(content[:cut])
        parts[1].append(content[cut:])
    train, held_out = (
        MemoryStream(str(folder), np.frombuffer(b"".join(part), np.uint8)) for part in parts
    )
    return windows([train], [held_out], shape, BYTES, folder)


def train_length(length: int, held_out: float) -> int:
    """How much of a text is trained on, from its beginning."""
    return length - int(length * held_out)


def windows(
    train: Sequence[Stream],
    held_out: Sequence[Stream],
    shape: tuple[int, ...] | None,
    outputs: int,
    source: Path,
) -> Dataset:
    """A data set of streams. Raises DataError when there is not one sample of each part."""
    context = shape[0] if shape else CONTEXT
    parts = [Windows(part, context, outputs) for part in (train, held_out)]
    for part, streams, what in zip(
        parts, (train, held_out), ("to train on", "held out"), strict=True
    ):
        if not len(part):
            longest = max((len(stream) for stream in streams), default=0)
            raise DataError(
                f"{source} has {longest} tokens {what} in one piece, and a sample of {context} "
                f"needs {context + 1}: add text, or choose a smaller context"
            )
    return Dataset(parts[0], parts[1], (context,), outputs)
