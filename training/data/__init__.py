"""Loading data sets by name.

Custom data sets are written as `package.module:factory`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.builtin import (
    TEN_DIGITS,
    digits,
    glyphs,
    held_out_digits,
    synthetic,
)
from training.data.images import Images, Shape, enlarge_images, with_shape
from training.data.manifest import (
    Manifest,
    ShardsManifest,
    Verification,
    read_manifest,
    verify,
)
from training.data.progress import Report, report_event
from training.data.published import (
    CIFAR10_CLASSES,
    DIRECTORIES,
    FASHION_CLASSES,
    cifar10,
    cifar100,
    fetch,
    mnist,
)
from training.data.samples import (
    DataError,
    Dataset,
    Indices,
    Targets,
    digest_of,
    read_error,
    spread,
)
from training.data.shards import read_index, scan, shards
from training.data.text import text, tokens
from workload.configuration import ConfigurationError
from workload.custom import find

_IDENTITY_SAMPLES: Final = 64
"""Number of targets per split to hash if a data set has no `digest` method."""
__all__ = [
    "DataError",
    "Dataset",
    "Images",
    "check_prepared",
    "enlarge_images",
    "held_out_digits",
    "load",
]


FULL_VERIFICATION: Final = Verification()
"""Verification of all files at every start, without a record of verified files."""


class Items:
    """Samples of a map-style data set: pairs of an input and the index of its class."""

    def __init__(self, source: str, items: Any, first: NDArray[Any], classes: int) -> None:
        self._source, self._items, self._classes = source, items, classes
        self._shape, self._dtype = first.shape, first.dtype

    @property
    def divisor(self) -> int:
        """Divisor that scales inputs on the device: 255 for bytes, 1 for floating-point numbers."""
        return 255 if self._dtype == np.uint8 else 1

    def __len__(self) -> int:
        return len(self._items)

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Return inputs of shape (N, *sample shape) and targets of shape (N,).

        Raise DataError if a sample is invalid.
        """
        inputs = np.empty((len(indices), *self._shape), self._dtype)
        targets = np.empty(len(indices), np.int64)
        for row, index in enumerate(indices.tolist()):
            array, targets[row] = _sample(self._source, self._items, index)
            if array.shape != self._shape or array.dtype != self._dtype:
                raise DataError(
                    f"sample {index} of {self._source} is {array.dtype} {list(array.shape)}, but "
                    f"the first is {self._dtype} {list(self._shape)}: all must have the same type "
                    "and shape"
                )
            if not 0 <= targets[row] < self._classes:
                raise DataError(
                    f"sample {index} of {self._source} has class {targets[row]}, but there are "
                    f"{self._classes} classes, counted from 0"
                )
            inputs[row] = array
        return inputs, targets

    def order(self, random: np.random.Generator) -> Indices:
        """Return a random permutation."""
        return random.permutation(len(self)).astype(np.int64)


def load_custom(name: str, directory: Path, shape: tuple[int, ...] | None) -> Dataset:
    """Load training samples with `factory(data_dir=…, train=True)`, held-out ones with train=False.

    `shape` is the input shape of the model, or None if it is not fixed. Only uint8 images with
    three dimensions may have a different shape. Raise ConfigurationError or DataError for errors
    that would recur after every restart.
    """
    source = f"dataset {name}"
    factory = find(source, name)
    parts, classes = [], tuple[str, ...]()
    for train in (True, False):
        try:
            part = factory(data_dir=directory, train=train)
            length = len(part)
        except Exception as error:
            raise ConfigurationError(
                f"{source} failed with data_dir={directory} and train={train}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not length:
            raise DataError(f"{source} has no samples with data_dir={directory} and train={train}")
        classes = classes or _classes(source, part)
        parts.append(part)
    first, _ = _sample(source, parts[0], 0)
    if first.dtype not in (np.uint8, np.float32):
        raise DataError(f"inputs of {source} are {first.dtype}: return uint8 or float32")
    resizable = first.dtype == np.uint8 and first.ndim == 3
    if not resizable and shape not in (None, first.shape):
        actual, wanted = ("x".join(map(str, each)) for each in (first.shape, shape or ()))
        raise DataError(f"inputs of {source} are {actual}, but the model takes {wanted}")
    train_part = Items(source, parts[0], first, len(classes))
    held_out = Items(f"{source}, train=False", parts[1], first, len(classes))
    # Report held-out samples of a different shape or type now, not in the first evaluation.
    held_out.batch(np.zeros(1, np.int64))
    return Dataset(
        train_part, held_out, first.shape, len(classes), classes, _identity(source, parts, classes)
    )


def _sample(source: str, items: Any, index: int) -> tuple[NDArray[Any], int]:
    try:
        found, target = items[index]
        array, class_index = np.asarray(found), int(target)
        if float(target) != class_index:
            raise ValueError(f"its class is {float(target)}, which is not an integer")
    except Exception as error:
        raise read_error(
            f"sample {index} of {source} cannot be read: {type(error).__name__}: {error} (a sample "
            "must be a pair of an input, as a tensor or array, and the index of its class)",
            error,
        ) from error
    return array, class_index


def _classes(source: str, part: Any) -> tuple[str, ...]:
    found = getattr(part, "classes", ())
    # Convert to a tuple: `not names` would raise ValueError for a NumPy array.
    names = tuple(found) if isinstance(found, Iterable) and not isinstance(found, str) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"{source} has no valid `classes` attribute: set it to the list of class names, in "
            "index order"
        )
    return tuple(map(str, names))


def _identity(source: str, parts: Sequence[Any], classes: Sequence[str]) -> str:
    """Return a digest of the classes and of both parts.

    A part contributes its `digest()` or, if it has no such method, its size and some targets.
    """
    described = [np.array([*classes])]
    for part in parts:
        digest = getattr(part, "digest", None)
        if callable(digest):
            described.append(np.array([str(digest())]))
            continue
        chosen = spread(len(part), _IDENTITY_SAMPLES).tolist()
        targets = [_sample(source, part, index)[1] for index in chosen]
        described.append(np.array([len(part), *targets]))
    return digest_of(*described)


def load(
    name: str,
    directory: Path,
    shape: Shape | None,
    seed: int,
    *,
    download: bool = False,
    verification: Verification | None = FULL_VERIFICATION,
    report: Report = report_event,
) -> Dataset:
    """Load a data set in a model's input shape; `seed` applies to synthetic data only.

    If `shape` is None, samples keep their original shape. With `download`, published files are
    downloaded first; all processes may set it, but only one per machine downloads. If
    `verification` is set, shards and tokens are compared with their digests; one process per
    machine should do this. `report` is called with a progress line at most once every two seconds.
    Raise DataError if a file is missing or damaged; the message names the file.
    """
    if download:
        fetch(name, directory)
    match name:
        case "text":
            return text(directory / "text", shape)
        case "tokens":
            return tokens(directory / "tokens", shape, verification, report)
        case "shards":
            data = shards(directory / "shards", verification, report)
        case _ if ":" in name:
            data = load_custom(name, directory, shape)
        case _:
            data = _in_memory(name, directory, shape, seed)
    if shape is None:
        return data
    train, held_out = (with_shape(part, data.shape, shape) for part in (data.train, data.held_out))
    return replace(data, train=train, held_out=held_out, shape=shape)


def _in_memory(name: str, directory: Path, shape: Shape | None, seed: int) -> Dataset:
    classes = TEN_DIGITS
    match name:
        case "digits":
            train, held_out = digits()
        case "glyphs":
            train, held_out = glyphs()
        case "mnist" | "fashion-mnist":
            train, held_out = mnist(directory / DIRECTORIES[name] / "raw", directory / name)
            classes = TEN_DIGITS if name == "mnist" else FASHION_CLASSES
        case "cifar10":
            train, held_out = cifar10(directory / DIRECTORIES[name])
            classes = CIFAR10_CLASSES
        case "cifar100":
            train, held_out, classes = cifar100(directory / DIRECTORIES[name])
        case "synthetic":
            train, held_out = synthetic(shape or (3, 32, 32), seed)
        case _:
            raise DataError(f"unknown data set {name}")
    identity = digest_of(train.pixels, train.labels, held_out.pixels, held_out.labels)
    return Dataset(train, held_out, train.pixels.shape[1:], len(classes), classes, identity)


def check_prepared(directory: Path, report: Report) -> Manifest:
    """Compare all files of a prepared data set with its manifest, and shards with their index.

    Raise DataError if a file is damaged; the message names the first one.
    """
    manifest = read_manifest(directory)
    verify(directory, manifest.parts(), FULL_VERIFICATION, report)
    if isinstance(manifest, ShardsManifest):
        for split in (manifest.train, manifest.held_out):
            index = read_index(directory, split, len(manifest.classes))
            for number, part in enumerate(split.parts):
                rows = index[index[:, 0] == number]
                if not np.array_equal(rows, scan(directory / part.file, number)):
                    raise DataError(
                        f"{directory / split.index.file} is not the index of {part.file}: "
                        "prepare the data set again"
                    )
    return manifest
