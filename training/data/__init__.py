"""The data sets, by name."""

from pathlib import Path

from training.config import DatasetName
from training.data.cifar import CIFAR10_CLASSES, cifar10, cifar100
from training.data.digits import TEN_DIGITS, digits, held_out_digits
from training.data.download import ALSO, FOLDERS, fetch
from training.data.glyphs import glyphs
from training.data.images import Images, Shape, fit, fitted
from training.data.photos import CLASSES as PHOTOS_CLASSES
from training.data.photos import photos
from training.data.progress import Tell, tell_run
from training.data.samples import DataError, Dataset
from training.data.shards import shards
from training.data.synthetic import synthetic
from training.data.text import text
from training.data.tokens import tokens
from training.data.vision import FASHION_CLASSES, mnist

__all__ = ["DataError", "Dataset", "Images", "fit", "held_out_digits", "load"]


def load(
    name: DatasetName,
    folder: Path,
    shape: Shape | None,
    seed: int,
    *,
    download: bool = False,
    verify: bool = True,
    tell: Tell = tell_run,
) -> Dataset:
    """Load a data set in the shape that a model takes; `seed` is of synthetic data only.

    Where `shape` is None the samples keep their own. With `download` what is published as files is
    fetched first; all processes may ask for it, and one does it for its machine. Shards and tokens
    are compared with the digests of their manifest where `verify`, so one process of a machine is
    enough; `tell` is given a line of progress every two seconds. Raises DataError that names the
    file which is missing or damaged.
    """
    if download:
        fetch(name, folder)
    match name:
        case "text":
            return text(folder / "text", shape)
        case "tokens":
            return tokens(folder / "tokens", shape, verify, tell)
        case "shards":
            data = shards(folder / "shards", verify, tell)
        case _:
            data = _in_memory(name, folder, shape, seed)
    if shape is None:
        return data
    train, held_out = (fitted(part, data.shape, shape) for part in (data.train, data.held_out))
    return Dataset(train, held_out, shape, data.outputs, data.classes)


def _in_memory(name: DatasetName, folder: Path, shape: Shape | None, seed: int) -> Dataset:
    classes = TEN_DIGITS
    match name:
        case "digits":
            train, held_out = digits()
        case "glyphs":
            train, held_out = glyphs()
        case "photos":
            train, held_out = photos()
            classes = PHOTOS_CLASSES
        case "mnist":
            train, held_out = mnist(folder / FOLDERS[name] / "raw", folder / ALSO[name])
        case "fashion-mnist":
            train, held_out = mnist(folder / FOLDERS[name] / "raw", folder / ALSO[name])
            classes = FASHION_CLASSES
        case "cifar10":
            train, held_out = cifar10(folder / FOLDERS[name])
            classes = CIFAR10_CLASSES
        case "cifar100":
            train, held_out, classes = cifar100(folder / FOLDERS[name])
        case "synthetic":
            train, held_out = synthetic(shape or (3, 32, 32), seed)
        case _:
            raise DataError(f"data set {name} is not known")
    return Dataset(train, held_out, train.pixels.shape[1:], len(classes), classes)
