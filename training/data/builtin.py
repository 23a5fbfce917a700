"""Data sets that need no `data_dir`: they are part of this package or generated from a seed."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from training.data.images import Images, Shape, enlarge_images

if TYPE_CHECKING:
    import PIL.Image
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = FreeTypeFont | ImageFont

DIGITS_FILE: Final = Path(__file__).with_name("digits.npz")
"""Test part of Optical Recognition of Handwritten Digits: `pixels` (1797 x 8 x 8, uint8 from 0 to
16) and `labels` (1797, uint8).

E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49,
CC BY 4.0. The images are shuffled, and the held-out images come last.
"""
DIGITS_HELD_OUT: Final = 360
"""Number of held-out digits (a fifth of all digits). Both parts have the same class
distribution, and all runs hold out the same images."""

TEN_DIGITS: Final = tuple("0123456789")


def held_out_digits(shape: Shape = (1, 8, 8)) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the held-out digits, which runs never train on: pixels from 0 to 1, and labels.

    `shape` is a model's input shape.
    """
    images = enlarge_images(digits()[1], shape)
    return images.scaled(), images.labels


def digits() -> tuple[Images, Images]:
    """Return training and held-out images: 1,797 handwritten digits (8 x 8)."""
    with np.load(DIGITS_FILE) as arrays:
        pixels = arrays["pixels"].reshape(-1, 1, 8, 8)
        labels = arrays["labels"].astype(np.int64)
    return (
        Images(pixels[:-DIGITS_HELD_OUT], labels[:-DIGITS_HELD_OUT], divisor=16),
        Images(pixels[-DIGITS_HELD_OUT:], labels[-DIGITS_HELD_OUT:], divisor=16),
    )


GLYPH_SIDE: Final = 28
GLYPHS_TRAIN: Final = 6000
GLYPHS_HELD_OUT: Final = 1000
GLYPHS_SEED: Final = 28
"""Seed of the images. It does not depend on a run's seed, so all runs use the same images."""

GLYPH_SIZES: Final = range(16, 25)
GLYPH_MAX_ROTATION: Final = 25.0
"""Maximum rotation in degrees, small enough that a 6 does not look like a 9."""
GLYPH_MAX_SHIFT: Final = 4
GLYPH_NOISE: Final = 24.0
"""Standard deviation of the noise; white is 255."""


def glyphs() -> tuple[Images, Images]:
    """Return training and held-out images: noisy digits (28 x 28) in Pillow's default font.

    They are rotated, shifted and scaled randomly, but are identical in all runs with the same
    version of Pillow.
    """
    # Imported here: other data sets do not need Pillow.
    from PIL import ImageFont

    fonts = [ImageFont.load_default(size) for size in GLYPH_SIZES]
    upright = [[_draw_glyph(digit, font) for font in fonts] for digit in TEN_DIGITS]
    random = np.random.default_rng(GLYPHS_SEED)
    labels = np.arange(GLYPHS_TRAIN + GLYPHS_HELD_OUT) % 10
    drawn = np.stack(
        [_place_glyph(upright[label][random.integers(len(fonts))], random) for label in labels]
    )
    noise = random.normal(0, GLYPH_NOISE, drawn.shape)
    pixels = np.clip(drawn + noise, 0, 255).astype(np.uint8).reshape(-1, 1, GLYPH_SIDE, GLYPH_SIDE)
    return (
        Images(pixels[GLYPHS_HELD_OUT:], labels[GLYPHS_HELD_OUT:], divisor=255),
        Images(pixels[:GLYPHS_HELD_OUT], labels[:GLYPHS_HELD_OUT], divisor=255),
    )


def _draw_glyph(digit: str, font: "Font") -> "PIL.Image.Image":
    """Draw a digit in white on black, in the middle of `GLYPH_SIDE` x `GLYPH_SIDE` pixels."""
    from PIL import Image, ImageDraw

    image = Image.new("L", (GLYPH_SIDE, GLYPH_SIDE))
    middle = GLYPH_SIDE / 2, GLYPH_SIDE / 2
    ImageDraw.Draw(image).text(middle, digit, fill=255, font=font, anchor="mm")
    return image


def _place_glyph(upright: "PIL.Image.Image", random: np.random.Generator) -> NDArray[np.uint8]:
    """Shift and rotate a drawn digit randomly. Drawing it again would take longer."""
    from PIL import Image

    across, down = random.integers(-GLYPH_MAX_SHIFT, GLYPH_MAX_SHIFT + 1, 2).tolist()
    image = Image.new("L", upright.size)
    image.paste(upright, (across, down))
    middle = GLYPH_SIDE / 2 + across, GLYPH_SIDE / 2 + down
    angle = random.uniform(-GLYPH_MAX_ROTATION, GLYPH_MAX_ROTATION)
    return np.asarray(image.rotate(angle, Image.Resampling.BILINEAR, center=middle))


def synthetic(shape: Shape, seed: int) -> tuple[Images, Images]:
    """Return training and held-out images: ten random images, each repeated with noise."""
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 256, (10, *shape))
    labels = np.arange(2560) % 10
    noise = random.normal(0, 64, (len(labels), *shape))
    pixels = np.clip(pictures[labels] + noise, 0, 255).astype(np.uint8)
    return (
        Images(pixels[512:], labels[512:], divisor=255),
        Images(pixels[:512], labels[:512], divisor=255),
    )
