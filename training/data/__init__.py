"""The data sets, by name."""

from pathlib import Path

from training.catalog import DatasetName
from training.data.digits import TEN_DIGITS, digits, held_out_digits
from training.data.images import Images, Shape, fit
from training.data.samples import DataError, Dataset
from training.data.synthetic import synthetic
from training.data.vision import CIFAR10_CLASSES, cifar10, mnist

__all__ = ["DataError", "Dataset", "Images", "fit", "held_out_digits", "load"]


def load(name: DatasetName, folder: Path, shape: Shape | None, seed: int) -> Dataset:
    """Load a data set in the shape that a model takes; `seed` is of synthetic data only.

    Where `shape` is None the samples keep their own. Raises DataError that names the file which is
    missing or damaged.
    """
    classes = TEN_DIGITS
    match name:
        case "digits":
            train, held_out = digits()
        case "mnist":
            train, held_out = mnist(folder / "mnist")
        case "cifar10":
            train, held_out = cifar10(folder / "cifar-10-batches-bin")
            classes = CIFAR10_CLASSES
        case "synthetic":
            train, held_out = synthetic(shape or (3, 32, 32), seed)
        case _:
            raise DataError(f"data set {name} cannot be loaded yet")
    if shape is not None:
        train, held_out = fit(train, shape), fit(held_out, shape)
    return Dataset(train, held_out, train.pixels.shape[1:], len(classes), classes)
