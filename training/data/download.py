"""Fetches the data sets that are published as files, when it is asked to."""

import fcntl
import shutil
import tempfile
import urllib.error
from pathlib import Path
from typing import Final

from training.config import DatasetName
from training.data.samples import DataError

FOLDERS: Final[dict[DatasetName, str]] = {
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "cifar10": "cifar-10-batches-bin",
    "cifar100": "cifar-100-binary",
}
"""Where a data set lies below data_dir: torchvision's names, and the archives' own."""
ALSO: Final[dict[DatasetName, str]] = {"mnist": "mnist", "fashion-mnist": "fashion-mnist"}
"""Where it may lie as well, as plain files."""

CIFAR: Final = {
    "cifar10": ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}
"""Files and their MD5 as https://www.cs.toronto.edu/~kriz/cifar.html gives them."""
CIFAR_SITE: Final = "https://www.cs.toronto.edu/~kriz/"


def fetch(name: DatasetName, folder: Path) -> None:
    """Fetch a data set into `folder` unless it is there; it appears there complete or not at all.

    torchvision compares digests. Processes on one machine wait for one another, and the first one
    fetches for all. Raises DataError.
    """
    if name not in FOLDERS:
        raise DataError(f"{name} cannot be fetched, only {', '.join(FOLDERS)}: leave out download")
    place = folder / FOLDERS[name]
    if place.is_dir() or (name in ALSO and (folder / ALSO[name]).is_dir()):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.is_dir():
                _download(name, place)
    except (OSError, RuntimeError, urllib.error.URLError) as error:
        raise DataError(f"{name} cannot be fetched into {folder}: {error}") from None


def _download(name: DatasetName, place: Path) -> None:
    # Imported here: it imports torch, and whoever has the data already needs neither.
    from torchvision import datasets
    from torchvision.datasets.utils import download_and_extract_archive

    unfinished = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=place.parent))
    try:
        if name in CIFAR:
            file, md5 = CIFAR[name]
            download_and_extract_archive(
                CIFAR_SITE + file, unfinished, md5=md5, remove_finished=True
            )
        else:
            kind = datasets.MNIST if name == "mnist" else datasets.FashionMNIST
            kind(unfinished, download=True)
        (unfinished / place.name).chmod(0o755)
        (unfinished / place.name).rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
