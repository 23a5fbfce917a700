"""Digits of 28 x 28 in the font that comes with Pillow: turned, moved, sized and noisy."""

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from training.data.images import Images

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = FreeTypeFont | ImageFont

SIDE: Final = 28
TRAINED_ON: Final = 6000
HELD_OUT: Final = 1000
SEED: Final = 28
"""Fixed and apart from a run's seed, so that all runs hold out the same images."""

SIZES: Final = range(16, 25)
LARGEST_TURN: Final = 25.0
"""Degrees either way: a 6 is never taken for a 9."""
LARGEST_MOVE: Final = 4
NOISE: Final = 24.0
"""Standard deviation, of 255."""


def glyphs() -> tuple[Images, Images]:
    """Those to train on, and those held out; the same for every run on the same Pillow."""
    # Imported here: whoever needs other data needs no Pillow.
    from PIL import ImageFont

    fonts = [ImageFont.load_default(size) for size in SIZES]
    random = np.random.default_rng(SEED)
    labels = np.arange(TRAINED_ON + HELD_OUT) % 10
    drawn = np.stack(
        [_draw(str(label), fonts[random.integers(len(fonts))], random) for label in labels]
    )
    noise = random.normal(0, NOISE, drawn.shape)
    pixels = np.clip(drawn + noise, 0, 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    return (
        Images(pixels[HELD_OUT:], labels[HELD_OUT:], white=255),
        Images(pixels[:HELD_OUT], labels[:HELD_OUT], white=255),
    )


def _draw(digit: str, font: "Font", random: np.random.Generator) -> NDArray[np.uint8]:
    """One digit in white on black, `SIDE` x `SIDE`."""
    from PIL import Image, ImageDraw

    across, down = random.integers(-LARGEST_MOVE, LARGEST_MOVE + 1, 2)
    middle = SIDE / 2 + across, SIDE / 2 + down
    image = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(image).text(middle, digit, fill=255, font=font, anchor="mm")
    turn = random.uniform(-LARGEST_TURN, LARGEST_TURN)
    return np.asarray(image.rotate(turn, Image.Resampling.BILINEAR, center=middle))
