"""The digits that come with scikit-learn: 1,797 pictures of 8 x 8."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.data.images import Images, Shape, fit

HELD_OUT_SHARE: Final = 0.2
SPLIT_SEED: Final = 20
"""Fixed and apart from a run's seed, so that all runs and clients hold out the same images."""

TEN_DIGITS: Final = tuple("0123456789")


def held_out_digits(shape: Shape = (1, 8, 8)) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The digits that no run has trained on: pixels from 0 to 1 in a model's shape, and labels."""
    images = fit(digits()[1], shape)
    return images.scaled(), images.labels


def digits() -> tuple[Images, Images]:
    """Those to train on, and those held out."""
    # Imported here: scikit-learn takes a second, and only this data set needs it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    train, held_out = train_test_split(
        np.arange(len(bunch.target)),
        test_size=HELD_OUT_SHARE,
        stratify=bunch.target,
        random_state=SPLIT_SEED,
    )
    pixels = bunch.images.astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = bunch.target.astype(np.int64)
    return (
        Images(pixels[train], labels[train], white=16),
        Images(pixels[held_out], labels[held_out], white=16),
    )
