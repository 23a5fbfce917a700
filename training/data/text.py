"""Text for language models: windows of tokens, in which each token's target is the next token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.manifest import (
    MANIFEST_FILE,
    TokensManifest,
    TokenSplit,
    Verification,
    read_verified,
)
from training.data.progress import Report
from training.data.samples import (
    DataError,
    Dataset,
    Indices,
    Targets,
    digest_of,
    local_order,
    read_error,
    visible_files,
)
from workload.files import sha256_of

BYTE_VOCABULARY: Final = 256
"""Number of different tokens if each byte is a token."""
HELD_OUT_SHARE: Final = 0.1
"""Share of every file that is held out, at the end of the file.

A part in the middle would be easier to predict, because it would be surrounded by training text.
"""
DEFAULT_CONTEXT: Final = 256
"""Number of tokens per sample for models that do not specify a context."""
WINDOW: Final = 8
"""Number of files whose samples are shuffled together."""


@dataclass(frozen=True)
class MemoryStream:
    """Bytes of text in memory, read from `path`."""

    path: Path
    content: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.content)

    def tokens(self) -> NDArray[Any]:
        """Return the bytes."""
        return self.content


DTYPES: Final[dict[str, np.dtype[Any]]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclass(frozen=True)
class TokenFile:
    """`count` tokens in a file.

    The file is memory-mapped again for every batch, which takes microseconds. Therefore, no file is
    open when processes fork, and only a path is pickled.
    """

    path: Path
    dtype: np.dtype[Any]
    count: int

    def __len__(self) -> int:
        return self.count

    def tokens(self) -> NDArray[Any]:
        """Return the memory-mapped tokens. Raise DataError if the file is truncated or missing."""
        try:
            return np.memmap(self.path, self.dtype, mode="r", shape=(self.count,))
        except (OSError, ValueError) as error:
            raise read_error(f"{self.path} can no longer be read: {error}", error) from None


Stream = MemoryStream | TokenFile
"""A sequence of tokens."""


class Windows:
    """Non-overlapping samples of `context` consecutive tokens.

    The last tokens of a stream are dropped if they do not fill a sample plus one token.
    """

    divisor: Final = 0

    def __init__(self, streams: Sequence[Stream], context: int, outputs: int) -> None:
        self._streams, self._context, self._outputs = tuple(streams), context, outputs
        self._sizes = [max(len(stream) - 1, 0) // context for stream in streams]
        self._ends = np.cumsum(self._sizes, dtype=np.int64)

    def __len__(self) -> int:
        return sum(self._sizes)

    def order(self, random: np.random.Generator) -> Indices:
        """Return a random permutation that shuffles within a few files at a time."""
        return local_order(self._sizes, WINDOW, random)

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Return the tokens of each sample and their targets, the next tokens; both N x context.

        Raise DataError if a token is out of range or cannot be read.
        """
        found = np.empty((len(indices), self._context + 1), np.int64)
        stream_numbers = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(stream_numbers):
            mine = stream_numbers == number
            begin = self._ends[number] - self._sizes[number]
            first = (indices[mine] - begin) * self._context
            stream = self._streams[number]
            found[mine] = stream.tokens()[first[:, None] + np.arange(self._context + 1)]
            # On a GPU, an out-of-range token would cause a crash without a useful message.
            if found[mine].max() >= self._outputs:
                raise DataError(f"{stream.path} has a token above {self._outputs - 1}")
        return found[:, :-1], found[:, 1:]


def text(directory: Path, shape: tuple[int, ...] | None) -> Dataset:
    """Load all visible *.txt files below `directory` as bytes, and hold out the end of each.

    Raise DataError if there are none, or if they contain too little text.
    """
    paths = [path for path in visible_files(directory) if path.suffix == ".txt"]
    if not paths:
        raise DataError(
            f"{directory} has no *.txt file: put text there, or choose another data_dir"
        )
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise read_error(f"{path} cannot be read: {error.strerror}", error) from None
        cut = train_length(len(content), HELD_OUT_SHARE)
        parts[0].append(content[:cut])
        parts[1].append(content[cut:])
    train, held_out = (
        MemoryStream(directory, np.frombuffer(b"".join(part), np.uint8)) for part in parts
    )
    data = windows([train], [held_out], shape, BYTE_VOCABULARY, directory)
    return replace(data, identity=digest_of(train.content, held_out.content))


def train_length(length: int, held_out: float) -> int:
    """Return the length of the leading part of a text that is used for training."""
    return length - int(length * held_out)


def windows(
    train: Sequence[Stream],
    held_out: Sequence[Stream],
    shape: tuple[int, ...] | None,
    outputs: int,
    source: Path,
) -> Dataset:
    """Build a data set from token streams. Raise DataError if a part has no complete sample."""
    context = shape[0] if shape else DEFAULT_CONTEXT
    parts = [Windows(part, context, outputs) for part in (train, held_out)]
    for part, streams, use in zip(parts, (train, held_out), ("training", "held-out"), strict=True):
        if not len(part):
            longest = max((len(stream) for stream in streams), default=0)
            raise DataError(
                f"{source} has at most {longest} consecutive {use} tokens, but a sample of "
                f"{context} needs {context + 1}: add text, or choose a smaller context"
            )
    return Dataset(parts[0], parts[1], (context,), outputs)


def tokens(
    directory: Path,
    shape: tuple[int, ...] | None,
    verification: Verification | None,
    report: Report,
) -> Dataset:
    """Load a prepared token data set and verify its files; raise DataError if one is damaged."""
    manifest = read_verified(directory, TokensManifest, verification, report)
    dtype = DTYPES[manifest.dtype]

    def files(split: TokenSplit) -> list[TokenFile]:
        return [TokenFile(directory / part.file, dtype, part.count) for part in split.parts]

    data = windows(
        files(manifest.train), files(manifest.held_out), shape, manifest.vocabulary, directory
    )
    return replace(data, identity=sha256_of(directory / MANIFEST_FILE))
