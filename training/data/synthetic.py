"""Pictures made from a seed: they need no file and can be learnt."""

import numpy as np

from training.data.images import Images, Shape


def synthetic(shape: Shape, seed: int) -> tuple[Images, Images]:
    """Ten random pictures, each seen many times through noise: to train on, and held out."""
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 256, (10, *shape))
    labels = np.arange(2560) % 10
    noise = random.normal(0, 64, (len(labels), *shape))
    pixels = np.clip(pictures[labels] + noise, 0, 255).astype(np.uint8)
    return (
        Images(pixels[512:], labels[512:], white=255),
        Images(pixels[:512], labels[:512], white=255),
    )
