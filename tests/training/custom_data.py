"""Examples of custom data sets, some with mistakes that users make."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

SIZES = {True: 60, False: 20}


class Squares:
    """Float images of 1x8x8, whose class is the half that is brighter."""

    classes: Any = ("left", "right")

    def __init__(self, data_dir: Path, train: bool) -> None:
        self.data_dir, self.train = data_dir, train

    def __len__(self) -> int:
        return SIZES[self.train]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        random = torch.Generator().manual_seed(2 * index + self.train)
        image = torch.rand((1, 8, 8), generator=random) / 2
        target = index % 2
        image[:, :, 4 * target : 4 * target + 4] += 0.5
        return image, target


class Bytes(Squares):
    """The images of `Squares` as uint8."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, target = super().__getitem__(index)
        return (image * 255).to(torch.uint8), target


class Digested(Squares):
    """A data set that defines its digest and transforms its samples randomly."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, target = super().__getitem__(index)
        return image + torch.rand(()) / 100, target

    def digest(self) -> str:
        """Return the version of the data."""
        return "version 3"


class Nameless(Squares):
    """A data set without the names of its classes."""

    classes = ()


class Array(Squares):
    """A data set whose class names are in a NumPy array."""

    classes: Any = np.array(["left", "right"])


class Numbered(Squares):
    """A data set with class numbers in a NumPy array, instead of names."""

    classes: Any = np.array([0, 1])


class Counted(Squares):
    """A data set with the number of its classes instead of their names."""

    classes: Any = 2


class Flat(Bytes):
    """Grayscale uint8 images without a channel dimension."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, target = super().__getitem__(index)
        return image[0], target


class Empty(Squares):
    """A data set without samples."""

    def __len__(self) -> int:
        return 0


class Doubles(Squares):
    """A data set whose inputs are double-precision floats."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, target = super().__getitem__(index)
        return image.double(), target


class Ragged(Squares):
    """A data set whose inputs have different sizes."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, target = super().__getitem__(index)
        return image[:, : 8 - index % 2], target


class HeldOutBytes(Squares):
    """A data set whose held-out inputs have a different type."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, target = super().__getitem__(index)
        return (image if self.train else (image * 255).to(torch.uint8)), target


class FromOne(Squares):
    """A data set whose classes are numbered from 1."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, target = super().__getitem__(index)
        return image, target + 1


class Fractions(Squares):
    """A data set whose targets are not class indices."""

    def __getitem__(self, index: int) -> tuple[Tensor, float]:  # type: ignore[override]
        image, target = super().__getitem__(index)
        return image, target + 0.75


class Unreadable(Squares):
    """A data set whose samples cannot be read."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise OSError("disk failed")


def refuses(data_dir: Path) -> list[np.ndarray]:
    """Reject the expected arguments: the parameter `train` is missing."""
    return []
