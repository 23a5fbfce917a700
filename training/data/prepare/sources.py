"""Where images to be prepared come from: folders of classes, or a known data set."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from training.config import DatasetName
from training.data import load
from training.data.samples import DataError, Samples

ImageShape = tuple[Literal[1, 3], int, int]

ORDER_SEED: Final = 0
"""Files are written in a random order that is always the same, so every shard has all classes."""
AT_ONCE: Final = 512
"""Images in memory at a time."""


@dataclass(frozen=True)
class Picture:
    """One image as it will be stored: PNG in the shape of the data set."""

    content: bytes
    digest: bytes
    label: int
    held_out: bool


@dataclass(frozen=True)
class Dropped:
    """An image that will not be stored, and why."""

    reason: str


@dataclass(frozen=True)
class Source:
    """`pictures` can be gone through once."""

    classes: tuple[str, ...]
    shape: ImageShape
    total: int
    pictures: Iterator[Picture | Dropped]


def from_folder(
    folder: Path, shape: ImageShape, smallest: int, held_out: float, workers: int
) -> Source:
    """Images in folders that are named after their classes, cut and scaled to `shape`.

    Which are held out is decided by their pixels, so more images change nothing for those that were
    there. Raises DataError when there is no image.
    """
    try:
        classes = tuple(sorted(path.name for path in folder.iterdir() if _is_class(path)))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from None
    files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    ]
    if not files:
        raise DataError(f"{folder} has no file in a folder: write one that has a folder per class")

    def picture(file: tuple[Path, int]) -> Picture | Dropped:
        return _from_file(*file, shape, smallest, held_out)

    def pictures() -> Iterator[Picture | Dropped]:
        order = np.random.default_rng(ORDER_SEED).permutation(len(files))
        with ThreadPoolExecutor(workers) as pool:
            for start in range(0, len(order), AT_ONCE):
                yield from pool.map(picture, [files[n] for n in order[start : start + AT_ONCE]])

    return Source(classes, shape, len(files), pictures())


def from_dataset(name: DatasetName, data_dir: Path) -> Source:
    """All images of a known data set, with those held out that it holds out. Raises DataError."""
    data = load(name, data_dir, None, seed=0)
    channels, height, width = data.shape
    shape: ImageShape = (1 if channels == 1 else 3, height, width)

    def pictures() -> Iterator[Picture]:
        # Those held out come first: what is in both is not trained on.
        for samples, held_out in ((data.held_out, True), (data.train, False)):
            order = np.random.default_rng(ORDER_SEED).permutation(len(samples))
            for start in range(0, len(order), AT_ONCE):
                yield from _from_samples(samples, order[start : start + AT_ONCE], held_out)

    return Source(data.classes, shape, len(data.train) + len(data.held_out), pictures())


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _from_samples(
    samples: Samples, indices: NDArray[np.int64], held_out: bool
) -> Iterator[Picture]:
    pixels, labels = samples.batch(indices)
    bright = (pixels.astype(np.uint16) * 255 // samples.white).astype(np.uint8)
    for image, label in zip(bright.transpose(0, 2, 3, 1), labels.tolist(), strict=True):
        picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
        yield Picture(_encoded(picture), _digest(picture), label, held_out)


def _from_file(
    path: Path, label: int, shape: ImageShape, smallest: int, held_out: float
) -> Picture | Dropped:
    channels, height, width = shape
    try:
        with Image.open(path) as image:
            if min(image.size) < smallest:
                return Dropped("too small")
            upright = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    # Whatever a decoder raises for a damaged file: it is counted, and told in the end.
    except Exception:
        return Dropped("unreadable")
    picture = ImageOps.fit(upright, (width, height), Image.Resampling.BICUBIC)
    digest = _digest(picture)
    share = int.from_bytes(digest[:8], "big") / 2**64
    return Picture(_encoded(picture), digest, label, share < held_out)


def _digest(picture: Image.Image) -> bytes:
    return hashlib.sha256(picture.tobytes()).digest()


def _encoded(picture: Image.Image) -> bytes:
    stream = BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def distinct(pictures: Iterator[Picture | Dropped]) -> Iterator[Picture | Dropped]:
    """The same, but what has the pixels of an earlier one is dropped."""
    seen: set[bytes] = set()
    for picture in pictures:
        if isinstance(picture, Picture):
            if picture.digest in seen:
                yield Dropped("duplicate")
                continue
            seen.add(picture.digest)
        yield picture
