"""Synthetic images with captions, in the format that SDXL's encoders return.

An image is a latent with 4 channels. A caption is a sequence of word vectors plus one vector for
the complete caption. For a real data set, SDXL's encoders would compute arrays of the same shapes
in advance (arXiv:2307.01952).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

COLORS: Final = ("red", "green", "blue", "white")
SHAPES: Final = ("disc", "square", "stripe", "frame")
WORDS: Final = ("a", *COLORS, *SHAPES)
ENCODER_SEED: Final = 20231
"""Seed of the word vectors, which are fixed like those of a frozen text encoder."""


@dataclass(frozen=True)
class Sizes:
    """Input sizes of the UNet: side of a latent, and widths of word vectors and caption vectors."""

    side: int
    word: int
    caption: int


class Pictures(Dataset[dict[str, Tensor]]):
    """A data set of images. With the same sizes and seed, it always contains the same images."""

    def __init__(self, count: int, sizes: Sizes, seed: int) -> None:
        self._count, self._sizes, self._seed = count, sizes, seed
        vectors = np.random.default_rng(ENCODER_SEED)
        self._words = vectors.standard_normal((len(WORDS), sizes.word), dtype=np.float32)
        self._captions = vectors.standard_normal((len(WORDS), sizes.caption), dtype=np.float32)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return the arrays of one image.

        Their shapes are `latent` (4, side, side), `words` (3, word), `caption` (caption,) and
        `time_ids` (6,).
        """
        rng = np.random.default_rng((self._seed, index))
        color, shape = int(rng.integers(len(COLORS))), int(rng.integers(len(SHAPES)))
        words = [0, 1 + color, 1 + len(COLORS) + shape]
        side = self._sizes.side
        top, left = map(int, rng.integers(side // 4, size=2))
        return {
            "latent": torch.from_numpy(draw(color, SHAPES[shape], side, top, left)),
            "words": torch.from_numpy(self._words[words]),
            "caption": torch.from_numpy(self._captions[words].mean(0)),
            # Original size, upper left corner of the crop, target size.
            "time_ids": torch.tensor([side, side, top, left, side, side], dtype=torch.float32),
        }


def draw(color: int, shape: str, side: int, top: int, left: int) -> NDArray[np.float32]:
    """Return a latent with values from -1 to 1 and the channels red, green, blue and mask.

    The drawn shape is shifted by `top` and `left`.
    """
    y, x = np.mgrid[:side, :side]
    y, x = y - top - side * 3 // 8, x - left - side * 3 // 8
    distance = np.maximum(abs(y), abs(x))
    inside = {
        "disc": x**2 + y**2 <= (side // 4) ** 2,
        "square": distance <= side // 4,
        "stripe": abs(y) <= side // 8,
        "frame": (distance <= side // 4) & (distance > side // 8),
    }[shape]
    channels = [inside if color in (channel, 3) else np.zeros_like(inside) for channel in range(3)]
    return np.stack([*channels, inside]).astype(np.float32) * 2 - 1
