"""MNIST and CIFAR-10 from their files."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.data.images import Images
from training.data.samples import DataError

# fmt: off
CIFAR10_CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
# fmt: on


def mnist(folder: Path) -> tuple[Images, Images]:
    """Those to train on, and those held out."""

    def part(name: str) -> Images:
        pixels = _read_idx(folder / f"{name}-images-idx3-ubyte", dimensions=3)
        labels = _read_idx(folder / f"{name}-labels-idx1-ubyte", dimensions=1)
        return _checked(folder / f"{name}-*", pixels[:, None], labels)

    return part("train"), part("t10k")


def cifar10(folder: Path) -> tuple[Images, Images]:
    """Those to train on, and those held out."""

    def part(*names: str) -> Images:
        records = np.concatenate([_read_cifar10(folder / name) for name in names])
        pixels = records[:, 1:].reshape(-1, 3, 32, 32)
        return _checked(folder, pixels, records[:, 0])

    train = part(*(f"data_batch_{number}.bin" for number in range(1, 6)))
    return train, part("test_batch.bin")


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
