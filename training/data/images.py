"""Labelled images as arrays."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.samples import DataError, Indices, Targets

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Images:
    """`pixels` N x channels x height x width from 0 to `white`; `labels` N."""

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
