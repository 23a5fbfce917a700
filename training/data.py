"""Labelled images as arrays, with a fixed part held out. No torch: clients use it as well."""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.config import DatasetName

HELD_OUT_SHARE: Final = 0.2
SPLIT_SEED: Final = 20
"""Fixed and apart from a run's seed, so that all runs and clients hold out the same images."""

Shape = tuple[int, int, int]
TEN_DIGITS: Final = tuple("0123456789")
# fmt: off
CIFAR10_CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
# fmt: on


class DataError(Exception):
    """A data set is missing or not what it should be; the message names the file."""


@dataclass(frozen=True)
class Images:
    """`pixels` N x channels x height x width from 0 to `white`; `labels` N."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    white: int

    def __len__(self) -> int:
        return len(self.labels)

    def scaled(self) -> NDArray[np.float32]:
        """Pixels from 0 to 1, as the models take them."""
        return self.pixels.astype(np.float32) / np.float32(self.white)


@dataclass(frozen=True)
class Dataset:
    """What a run trains on, what it is judged by, and the names of the labels."""

    train: Images
    held_out: Images
    classes: tuple[str, ...]


def load(name: DatasetName, folder: Path, shape: Shape, seed: int) -> Dataset:
    """Load a data set in the shape that a model takes; `seed` is of synthetic data only.

    Raises DataError that names the file which is missing or damaged.
    """
    match name:
        case "digits":
            dataset = _digits()
        case "mnist":
            dataset = _mnist(folder / "mnist")
        case "cifar10":
            dataset = _cifar10(folder / "cifar-10-batches-bin")
        case "synthetic":
            dataset = _synthetic(shape, seed)
    return Dataset(fit(dataset.train, shape), fit(dataset.held_out, shape), dataset.classes)


def held_out_digits(shape: Shape = (1, 8, 8)) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The digits that no run has trained on: pixels from 0 to 1 in a model's shape, and labels."""
    images = fit(_digits().held_out, shape)
    return images.scaled(), images.labels


def fit(images: Images, shape: Shape) -> Images:
    """Enlarge images by a whole factor, centre them on black, and turn grey into colour.

    Raises DataError when they would have to be shrunk.
    """
    channels, height, width = images.pixels.shape[1:]
    factor = min(shape[1] // height, shape[2] // width)
    if factor < 1 or shape[0] % channels:
        raise DataError(f"images of {channels}x{height}x{width} do not fit into {shape}")
    pixels = images.pixels.repeat(factor, axis=2).repeat(factor, axis=3)
    pixels = pixels.repeat(shape[0] // channels, axis=1)
    rows, columns = shape[1] - height * factor, shape[2] - width * factor
    border = ((0, 0), (0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
    return Images(np.pad(pixels, border), images.labels, images.white)


def _digits() -> Dataset:
    # Imported here: scikit-learn takes a second, and only this data set needs it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    train, held_out = train_test_split(
        np.arange(len(bunch.target)),
        test_size=HELD_OUT_SHARE,
        stratify=bunch.target,
        random_state=SPLIT_SEED,
    )
    pixels = bunch.images.astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    return Dataset(
        Images(pixels[train], labels[train], white=16),
        Images(pixels[held_out], labels[held_out], white=16),
        TEN_DIGITS,
    )


def _synthetic(shape: Shape, seed: int) -> Dataset:
    """Ten random pictures, each seen many times through noise: needs no file and can be learnt."""
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 256, (10, *shape))
    labels = np.arange(2560) % 10
    noise = random.normal(0, 64, (len(labels), *shape))
    pixels = np.clip(pictures[labels] + noise, 0, 255).astype(np.uint8)
    return Dataset(
        Images(pixels[512:], labels[512:], white=255),
        Images(pixels[:512], labels[:512], white=255),
        TEN_DIGITS,
    )


def _mnist(folder: Path) -> Dataset:
    def part(name: str) -> Images:
        pixels = _read_idx(folder / f"{name}-images-idx3-ubyte", dimensions=3)
        labels = _read_idx(folder / f"{name}-labels-idx1-ubyte", dimensions=1)
        return _checked(folder / f"{name}-*", pixels[:, None], labels)

    return Dataset(part("train"), part("t10k"), TEN_DIGITS)


def _cifar10(folder: Path) -> Dataset:
    def part(*names: str) -> Images:
        records = np.concatenate([_read_cifar10(folder / name) for name in names])
        pixels = records[:, 1:].reshape(-1, 3, 32, 32)
        return _checked(folder, pixels, records[:, 0])

    train = part(*(f"data_batch_{number}.bin" for number in range(1, 6)))
    return Dataset(train, part("test_batch.bin"), CIFAR10_CLASSES)


def _checked(source: Path, pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Images:
    if len(pixels) != len(labels):
        raise DataError(f"{source} has {len(pixels)} images and {len(labels)} labels")
    if not len(labels) or labels.max() > 9:
        raise DataError(f"{source} must have at least one image, and labels from 0 to 9")
    return Images(pixels, labels.astype(np.int64), white=255)


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read the format of MNIST: magic 00 00 08 (bytes), number of dimensions, sizes, values."""
    content = _read(path)
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise DataError(f"{path} is no IDX file of {dimensions} dimensions")
    sizes = [int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4)]
    if len(content) - header != math.prod(sizes):
        raise DataError(f"{path} is damaged: {len(content) - header} values instead of {sizes}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def _read_cifar10(path: Path) -> NDArray[np.uint8]:
    """Records of one byte of label and 3x32x32 of pixels."""
    content = _read(path)
    if not content or len(content) % 3073:
        raise DataError(f"{path} is damaged: {len(content)} bytes is no multiple of 3073")
    return np.frombuffer(content, np.uint8).reshape(-1, 3073)


def _read(path: Path) -> bytes:
    """Read a file, or the same file compressed by gzip."""
    compressed = path.with_name(path.name + ".gz")
    try:
        if compressed.exists() and not path.exists():
            return gzip.decompress(compressed.read_bytes())
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: put the data set there, or write --data-dir") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
