"""Labelled images, in memory or not, and how they are brought into a model's shape."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.samples import DataError, Indices, Samples, Targets

Shape = tuple[int, ...]

LARGEST_ENLARGED: Final = 256 * 2**20
"""Bytes up to which images in memory are enlarged once; beyond, batch by batch."""


@dataclass(frozen=True)
class Images:
    """`pixels` N x channels x height x width from 0 to `white`; `labels` N.

    Give pixels a channel by reshape, not by an index of None: the strides of that look to PyTorch
    as if channels came last, and gradients then have another layout than DDP's buffers.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    white: int

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Pixels and labels of some images."""
        return self.pixels[indices], self.labels[indices]

    def order(self, random: np.random.Generator) -> Indices:
        """Any order is as cheap as any other in memory."""
        return random.permutation(len(self))

    def scaled(self) -> NDArray[np.float32]:
        """Pixels from 0 to 1, as the models take them."""
        return self.pixels.astype(np.float32) / np.float32(self.white)


@dataclass(frozen=True)
class Enlarged:
    """Images that get their size when they are read: 60,000 of 3x224x224 are 9 GB."""

    samples: Samples
    shape: Shape

    @property
    def white(self) -> int:
        """That of the images."""
        return self.samples.white

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Pixels and labels of some images. Raises DataError."""
        pixels, labels = self.samples.batch(indices)
        return enlarge(pixels, self.shape), labels

    def order(self, random: np.random.Generator) -> Indices:
        """That of the images."""
        return self.samples.order(random)


def fit(images: Images, shape: Shape) -> Images:
    """Images in memory in another shape. Raises DataError when they would have to be shrunk."""
    return Images(enlarge(images.pixels, shape), images.labels, images.white)


def fitted(samples: Samples, own: Shape, shape: Shape) -> Samples:
    """Images of shape `own` in another shape, at once where that takes little memory.

    Raises DataError when they would have to be shrunk.
    """
    if own == shape:
        return samples
    enlarge(np.empty((0, *own), np.uint8), shape)  # raises now and not in the first step
    if isinstance(samples, Images) and len(samples) * math.prod(shape) <= LARGEST_ENLARGED:
        return fit(samples, shape)
    return Enlarged(samples, shape)


def enlarge(pixels: NDArray[np.uint8], shape: Shape) -> NDArray[np.uint8]:
    """Enlarge images by a whole factor, centre them on black, and turn grey into colour.

    N x channels x height x width become N x `shape`. Raises DataError when they would have to be
    shrunk, or colour turned into grey.
    """
    channels, height, width = pixels.shape[1:]
    factor = min(shape[1] // height, shape[2] // width) if len(shape) == 3 else 0
    if factor < 1 or shape[0] % channels:
        raise DataError(f"images of {channels}x{height}x{width} do not fit into {shape}")
    pixels = pixels.repeat(factor, axis=2).repeat(factor, axis=3)
    pixels = pixels.repeat(shape[0] // channels, axis=1)
    rows, columns = shape[1] - height * factor, shape[2] - width * factor
    border = ((0, 0), (0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
    return np.pad(pixels, border) if rows or columns else pixels
