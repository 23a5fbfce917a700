"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, read from files or downloaded.

CIFAR is read from its binary version (https://www.cs.toronto.edu/~kriz/cifar.html). torchvision
reads only the pickled version, and unpickling a file from shared storage can run arbitrary code.
"""

import fcntl
import gzip
import shutil
import tempfile
import urllib.error
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.images import Images
from training.data.samples import DataError, UnavailableError, read_error
from workload.files import exists

DIRECTORIES: Final[dict[str, str]] = {
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "cifar10": "cifar-10-batches-bin",
    "cifar100": "cifar-100-binary",
}
"""Directory of a data set below data_dir, as named by torchvision or by the archive."""
PLAIN: Final = ("mnist", "fashion-mnist")
"""Data sets that may also be in data_dir/<name>, without a `raw` subdirectory."""

CIFAR_ARCHIVES: Final = {
    "cifar10": ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}
"""Archives and their MD5 digests, as published at https://www.cs.toronto.edu/~kriz/cifar.html."""
CIFAR_SITE: Final = "https://www.cs.toronto.edu/~kriz/"


def fetch(name: str, directory: Path) -> None:
    """Download a data set to `directory` unless it already exists there.

    The data set's directory appears only when it is complete. torchvision verifies the digests. If
    several processes on one machine call this function, the first one downloads and the others
    wait. Raise UnavailableError if the download fails, and DataError if the directory is not
    writable.
    """
    if name not in DIRECTORIES:
        raise DataError(
            f"{name} cannot be downloaded (only {', '.join(DIRECTORIES)} can be): unset download"
        )
    target = directory / DIRECTORIES[name]
    try:
        if exists(target) or (name in PLAIN and exists(directory / name)):
            return
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f".{name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not exists(target):
                _download(name, target)
    except (RuntimeError, urllib.error.URLError, ConnectionError, TimeoutError) as error:
        raise UnavailableError(f"{name} cannot be downloaded to {directory}: {error}") from None
    except OSError as error:
        raise read_error(f"{name} cannot be downloaded to {directory}: {error}", error) from None


def _download(name: str, target: Path) -> None:
    # Imported here: torchvision imports torch, which other data sets do not need.
    from torchvision import datasets
    from torchvision.datasets.utils import download_and_extract_archive

    unfinished = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
    try:
        if name in CIFAR_ARCHIVES:
            file, md5 = CIFAR_ARCHIVES[name]
            download_and_extract_archive(
                CIFAR_SITE + file, unfinished, md5=md5, remove_finished=True
            )
        else:
            kind = datasets.MNIST if name == "mnist" else datasets.FashionMNIST
            kind(unfinished, download=True)
        (unfinished / target.name).chmod(0o755)
        (unfinished / target.name).rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


# fmt: off
FASHION_CLASSES: Final = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)
# fmt: on


def mnist(*directories: Path) -> tuple[Images, Images]:
    """Return training and held-out images from the first of `directories` that exists.

    Files are in the IDX format, optionally compressed as .gz. Raise DataError if a file is missing
    or damaged.
    """
    try:
        directory = next((each for each in directories if exists(each)), directories[0])
    except OSError as error:
        raise read_error(f"{error.filename} cannot be read: {error.strerror}", error) from None

    def part(name: str) -> Images:
        pixels = _read_idx(directory / f"{name}-images-idx3-ubyte")
        labels = _read_idx(directory / f"{name}-labels-idx1-ubyte")
        channel = pixels.reshape(len(pixels), 1, *pixels.shape[1:])
        return _checked_images(directory / f"{name}-*", channel, labels, 10)

    return part("train"), part("t10k")


def _checked_images(
    source: Path, pixels: NDArray[np.uint8], labels: NDArray[Any], classes: int
) -> Images:
    """Return images (N x channels x height x width) with their labels, after checking both."""
    if len(pixels) != len(labels):
        raise DataError(f"{source} has {len(pixels)} images and {len(labels)} labels")
    if not len(labels) or labels.max() >= classes:
        raise DataError(
            f"{source} must have at least one image, and labels from 0 to {classes - 1}"
        )
    return Images(pixels, labels.astype(np.int64), divisor=255)


def _read_idx(path: Path) -> NDArray[Any]:
    """Read images (N x height x width) or labels (N), depending on the file name."""
    # Imported here: torchvision imports torch, which other data sets do not need.
    from torchvision.datasets import mnist as torchvision

    read = torchvision.read_image_file if "-idx3-" in path.name else torchvision.read_label_file
    compressed = path.with_name(path.name + ".gz")
    try:
        if exists(path) or not exists(compressed):
            return np.asarray(read(str(path)))
        # torchvision would write the uncompressed file next to the compressed one, where the volume
        # may be read-only.
        with tempfile.NamedTemporaryFile() as uncompressed:
            uncompressed.write(gzip.decompress(compressed.read_bytes()))
            uncompressed.flush()
            return np.asarray(read(uncompressed.name))
    except FileNotFoundError:
        raise _missing_error(path) from None
    except (OSError, EOFError, zlib.error) as error:
        raise read_error(f"{path} cannot be read: {error}", error) from None
    except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # torchvision raises these errors for a file with a different format or length.
        raise DataError(
            f"{path} is damaged, or not an IDX file of this kind: {error or 'wrong header'}"
        ) from None


def _missing_error(path: Path) -> DataError:
    """Return the error for a missing file."""
    return DataError(
        f"{path} is missing: put the data set there, choose another data_dir, or set download"
    )


# fmt: off
CIFAR10_CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
# fmt: on

CIFAR_PIXELS: Final = 3 * 32 * 32


def cifar10(directory: Path) -> tuple[Images, Images]:
    """Return training and held-out images; raise DataError if a file is missing or damaged."""
    train = _read_cifar([directory / f"data_batch_{number}.bin" for number in range(1, 6)], 1, 10)
    return train, _read_cifar([directory / "test_batch.bin"], 1, 10)


def cifar100(directory: Path) -> tuple[Images, Images, tuple[str, ...]]:
    """Return training images, held-out images and the class names.

    Raise DataError if a file is missing or damaged.
    """
    path = directory / "fine_label_names.txt"
    try:
        classes = tuple(path.read_text("ascii").split())
    except FileNotFoundError:
        raise _missing_cifar_error(path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise read_error(f"{path} cannot be read: {error}", error) from None
    if len(set(classes)) != 100:
        raise DataError(f"{path} has {len(set(classes))} different classes instead of 100")
    return (
        _read_cifar([directory / "train.bin"], 2, 100),
        _read_cifar([directory / "test.bin"], 2, 100),
        classes,
    )


def _read_cifar(paths: list[Path], labels: int, classes: int) -> Images:
    """Read records of `labels` label bytes and 3x32x32 pixels; use only the last label byte."""
    length, parts = labels + CIFAR_PIXELS, []
    for path in paths:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise _missing_cifar_error(path) from None
        except OSError as error:
            raise read_error(f"{path} cannot be read: {error}", error) from None
        if not content or len(content) % length:
            raise DataError(
                f"{path} is damaged: {len(content)} bytes is not a multiple of {length}"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, length)
        pixels = records[:, labels:].reshape(-1, 3, 32, 32)
        parts.append(_checked_images(path, pixels, records[:, labels - 1], classes))
    return Images(
        np.concatenate([part.pixels for part in parts]),
        np.concatenate([part.labels for part in parts]),
        divisor=255,
    )


def _missing_cifar_error(path: Path) -> DataError:
    for python in ("cifar-10-batches-py", "cifar-100-python"):
        if (path.parent.parent / python).is_dir() and python[:8] == path.parent.name[:8]:
            return DataError(
                f"{path} is missing: {path.parent.parent / python} is the pickled version, which "
                "is not supported: put the binary version next to it, or set download"
            )
    return _missing_error(path)
