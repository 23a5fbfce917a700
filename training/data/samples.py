"""Interface to the samples of any data set. This module does not import torch."""

import errno
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from workload.files import UNAVAILABLE

Indices = NDArray[np.int64]
"""Sample indices, of shape N."""

Targets = NDArray[np.int64]
"""Expected outputs: a class per sample (N), or the next token at each position (N x tokens)."""


class DataError(Exception):
    """A data set is missing or invalid; the message names the file."""


class UnavailableError(DataError):
    """Data cannot be read at the moment. A restart may help."""


def read_error(message: str, cause: Exception) -> DataError:
    """Return an UnavailableError if `cause` is an error of network storage, else a DataError."""
    is_unavailable = isinstance(cause, OSError) and cause.errno in UNAVAILABLE
    return UnavailableError(message) if is_unavailable else DataError(message)


def require_available(path: Path, error: Exception) -> None:
    """Raise UnavailableError if `error` is an error of network storage."""
    found = read_error(f"{path} cannot be read: {getattr(error, 'strerror', error)}", error)
    if isinstance(found, UnavailableError):
        raise found from None


def require_readable(path: Path, error: Exception) -> None:
    """Raise DataError if `error` means that a file cannot be read, not that its content is damaged.

    For damaged files, decoders raise errors without an errno, or EINVAL for an invalid position. A
    file that no longer exists counts as damaged.
    """
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL, errno.ENOENT):
        message = f"{path} cannot be read: {error.strerror} (make it readable, or remove it)"
        raise read_error(message, error) from None


class Samples(Protocol):
    """A fixed number of samples with random access by index."""

    @property
    def divisor(self) -> int:
        """Divisor that scales inputs: the largest pixel value, 1 for floats, or 0 for tokens."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Return inputs of shape (N, *sample shape), as stored, and targets.

        Raise DataError if a sample is damaged or cannot be read.
        """

    def order(self, random: np.random.Generator) -> Indices:
        """Return a random permutation in which the samples can be read efficiently."""


@dataclass(frozen=True)
class Dataset:
    """Training and held-out samples, and the meaning of a model's outputs.

    `shape` is the shape of one input; `outputs` is the number of classes or of different tokens.
    `classes` contains the class names; it is empty for tokens. `identity` is a digest of the
    samples.
    """

    train: Samples
    held_out: Samples
    shape: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...] = ()
    identity: str = ""


def spread(length: int, count: int) -> Indices:
    """Return the indices of up to `count` evenly spaced samples out of `length`."""
    return np.linspace(0, length - 1, min(count, length)).astype(np.int64)


def is_visible(name: str) -> bool:
    """Return whether a file or directory belongs to a data set.

    Hidden directories contain copies: `.snapshot` of network storage, `.ipynb_checkpoints` of
    notebooks, and `..data` of mounted ConfigMaps. The root of an ext4 volume has a `lost+found`.
    """
    return not name.startswith(".") and name != "lost+found"


def visible_files(directory: Path) -> list[Path]:
    """Return the visible files below a directory, sorted.

    Links to directories are followed, and each directory is read once. Raise DataError if a
    directory cannot be read.
    """

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise read_error(f"{error.filename} cannot be read: {error.strerror}", error)

    found: list[Path] = []
    visited: set[str] = set()
    for parent, directories, names in os.walk(directory, onerror=fail, followlinks=True):
        # A link may lead back to a parent.
        target = os.path.realpath(parent)
        if target in visited:
            directories.clear()
            continue
        visited.add(target)
        # The order determines which of several links to a directory is followed.
        directories[:] = sorted(filter(is_visible, directories))
        found += (Path(parent, name) for name in names if is_visible(name))
    return sorted(found)


def digest_of(*arrays: NDArray[Any]) -> str:
    """Return the hexadecimal SHA-256 of arrays: their types, shapes and values."""
    complete = hashlib.sha256()
    for array in arrays:
        complete.update(f"{array.dtype} {array.shape} ".encode())
        complete.update(np.ascontiguousarray(array).data)
    return complete.hexdigest()


def local_order(sizes: Sequence[int], window: int, random: np.random.Generator) -> Indices:
    """Return a permutation of the samples in files; `sizes` is the number of samples in each file.

    The files are ordered randomly and split into groups of `window` files. Samples are shuffled
    only within a group, so that all samples of a group are read before the next group begins.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    files = random.permutation(len(sizes))
    mixed = [np.empty(0, np.int64)]
    for first in range(0, len(files), window):
        numbers = [
            np.arange(ends[file] - sizes[file], ends[file])
            for file in files[first : first + window]
        ]
        mixed.append(random.permutation(np.concatenate(numbers)))
    return np.concatenate(mixed)
