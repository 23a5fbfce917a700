"""Loading of data sets by name."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from training.data.builtin import (
    PHOTO_CLASSES,
    TEN_DIGITS,
    digits,
    glyphs,
    held_out_digits,
    photos,
    synthetic,
)
from training.data.custom import load_custom
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
from training.data.samples import DataError, Dataset, digest_of
from training.data.shards import read_index, scan, shards
from training.data.text import text, tokens

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
        case "photos":
            train, held_out = photos()
            classes = PHOTO_CLASSES
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
