"""MNIST and Fashion-MNIST, read and fetched by torchvision."""

import gzip
import tempfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.images import Images
from training.data.samples import DataError

# fmt: off
FASHION_CLASSES: Final = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)
# fmt: on


def mnist(*folders: Path) -> tuple[Images, Images]:
    """Those to train on, and those held out, from the first of `folders` that is there.

    Files are in the IDX format, also compressed as .gz. Raises DataError.
    """
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])

    def part(name: str) -> Images:
        pixels = _read(folder / f"{name}-images-idx3-ubyte")
        labels = _read(folder / f"{name}-labels-idx1-ubyte")
        channel = pixels.reshape(len(pixels), 1, *pixels.shape[1:])
        return checked(folder / f"{name}-*", channel, labels, 10)

    return part("train"), part("t10k")


def checked(source: Path, pixels: NDArray[np.uint8], labels: NDArray[Any], classes: int) -> Images:
    """Images N x channels x height x width, when there are as many labels. Raises DataError."""
    if len(pixels) != len(labels):
        raise DataError(f"{source} has {len(pixels)} images and {len(labels)} labels")
    if not len(labels) or labels.max() >= classes:
        raise DataError(
            f"{source} must have at least one image, and labels from 0 to {classes - 1}"
        )
    return Images(pixels, labels.astype(np.int64), white=255)


def _read(path: Path) -> NDArray[Any]:
    """Images N x height x width, or labels N, as the name tells."""
    # Imported here: it imports torch, and whoever needs other data needs neither.
    from torchvision.datasets import mnist as torchvision

    read = torchvision.read_image_file if "-idx3-" in path.name else torchvision.read_label_file
    compressed = path.with_name(path.name + ".gz")
    try:
        if path.exists() or not compressed.exists():
            return np.asarray(read(str(path)))
        # torchvision would write the uncompressed file beside it; a mounted folder is read only.
        with tempfile.NamedTemporaryFile() as uncompressed:
            uncompressed.write(gzip.decompress(compressed.read_bytes()))
            uncompressed.flush()
            return np.asarray(read(uncompressed.name))
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # All that torchvision raises for a file of another format, or of another length.
        raise DataError(
            f"{path} is damaged, or no IDX file of this kind: {error or 'wrong header'}"
        ) from None


def missing(path: Path) -> DataError:
    """What to say about a file that is not there."""
    return DataError(
        f"{path} is missing: put the data set there, write another data_dir, or have it fetched "
        "with download"
    )
