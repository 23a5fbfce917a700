"""Pieces of the two photographs that come with scikit-learn: colour images of 32 x 32."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.data.images import Images

CLASSES: Final = ("china", "flower")
SIDE: Final = 32
BLOCK: Final = 64
"""Pixels: every block of a photograph is for training, or held out, as a whole."""
STEP: Final = 8
"""Pixels from one piece of a block to the next, so pieces of a block share pixels."""
EVERY: Final = 5
"""One block in so many is held out, in diagonals, so that every part of a scene is in both."""


def photos() -> tuple[Images, Images]:
    """Those to train on, and those held out; no pixel is in both."""
    # Imported here: scikit-learn takes a second, and only this data set needs it.
    from sklearn.datasets import load_sample_images

    pixels: tuple[list[NDArray[np.uint8]], ...] = ([], [])
    labels: tuple[list[int], ...] = ([], [])
    for label, photograph in enumerate(load_sample_images().images):
        for row in range(photograph.shape[0] // BLOCK):
            for column in range(photograph.shape[1] // BLOCK):
                part = (row * 2 + column) % EVERY == 0
                top, left = row * BLOCK, column * BLOCK
                pieces = _pieces(photograph[top : top + BLOCK, left : left + BLOCK])
                pixels[part].append(pieces)
                labels[part].extend([label] * len(pieces))
    train, held_out = (
        Images(np.concatenate(pixels[part]), np.array(labels[part], np.int64), white=255)
        for part in (False, True)
    )
    return train, held_out


def _pieces(block: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Of a block of height x width x 3: N x 3 x `SIDE` x `SIDE`."""
    windows = np.lib.stride_tricks.sliding_window_view(block, (SIDE, SIDE), axis=(0, 1))
    return windows[::STEP, ::STEP].reshape(-1, 3, SIDE, SIDE)
