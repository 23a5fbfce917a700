"""Labeled images, in memory or read on demand, and their conversion to a model's input shape."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.samples import DataError, Indices, Samples, Targets

Shape = tuple[int, ...]

MAX_ENLARGED_BYTES: Final = 256 * 2**20
"""Maximum size (bytes) of a data set that is enlarged in advance and kept in memory.

Images of larger data sets are enlarged per batch.
"""


@dataclass(frozen=True)
class Images:
    """Images in memory.

    `pixels` has the shape N x channels x height x width and values from 0 to `divisor`; `labels`
    has the shape N. To add a channel dimension to pixels, use reshape: indexing with None creates
    strides that PyTorch interprets as channels-last, and then gradients would not have the layout
    of DDP's buffers.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    divisor: int

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Return pixels and labels of the given images."""
        return self.pixels[indices], self.labels[indices]

    def order(self, random: np.random.Generator) -> Indices:
        """Return a random permutation."""
        return random.permutation(len(self))

    def scaled(self) -> NDArray[np.float32]:
        """Return pixels from 0 to 1, as models expect them."""
        return self.pixels.astype(np.float32) / np.float32(self.divisor)


@dataclass(frozen=True)
class EnlargedImages:
    """Images that are enlarged on access.

    In memory, 60,000 images of 3x224x224 would take 9 GB.
    """

    samples: Samples
    shape: Shape

    @property
    def divisor(self) -> int:
        """Divisor of the original images."""
        return self.samples.divisor

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Indices) -> tuple[NDArray[Any], Targets]:
        """Return pixels and labels of the given images; raise DataError if they cannot be read."""
        pixels, labels = self.samples.batch(indices)
        return enlarge(pixels, self.shape), labels

    def order(self, random: np.random.Generator) -> Indices:
        """Return the order of the original images."""
        return self.samples.order(random)


def enlarge_images(images: Images, shape: Shape) -> Images:
    """Convert images in memory to a different shape. Raise DataError if this would shrink them."""
    return Images(enlarge(images.pixels, shape), images.labels, images.divisor)


def with_shape(samples: Samples, current: Shape, shape: Shape) -> Samples:
    """Convert images to a different shape, in advance if this takes little memory, else on access.

    Raise DataError if this would shrink them.
    """
    if current == shape:
        return samples
    enlarge(np.empty((0, *current), np.uint8), shape)  # raises DataError now, not in the first step
    if isinstance(samples, Images) and len(samples) * math.prod(shape) <= MAX_ENLARGED_BYTES:
        return enlarge_images(samples, shape)
    return EnlargedImages(samples, shape)


def enlarge(pixels: NDArray[np.uint8], shape: Shape) -> NDArray[np.uint8]:
    """Enlarge images by an integer factor, center them on black, and convert grayscale to RGB.

    The result has the shape N x `shape`. Raise DataError if the images would have to be shrunk or
    converted from RGB to grayscale.
    """
    channels, height, width = pixels.shape[1:]
    factor = min(shape[1] // height, shape[2] // width) if len(shape) == 3 else 0
    if factor < 1 or shape[0] % channels:
        raise DataError(
            f"images of {channels}x{height}x{width} do not fit into {shape}, the model's input: "
            "prepare smaller images (or gray ones for one channel), or choose another model"
        )
    pixels = pixels.repeat(factor, axis=2).repeat(factor, axis=3)
    pixels = pixels.repeat(shape[0] // channels, axis=1)
    rows, columns = shape[1] - height * factor, shape[2] - width * factor
    border = ((0, 0), (0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
    return np.pad(pixels, border) if rows or columns else pixels
