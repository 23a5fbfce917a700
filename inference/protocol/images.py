"""PNG and JPEG images as inputs of a model: decoded, turned, resized, from 0 to 1."""

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from inference.engine.datatypes import NUMPY
from inference.engine.interface import InputError, Served, TensorSpec
from inference.protocol.request import InferRequest, all_outputs

FORMATS: Final = ("PNG", "JPEG")
_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}


def read_images(
    files: Sequence[tuple[str, bytes]], served: Served, max_pixels: int
) -> InferRequest:
    """A batch of images, each with a name for messages. Raises InputError."""
    spec = image_input(served)
    left, pixels = max_pixels, []
    for name, content in files:
        with _said_of(name):
            image = _opened(content)
            if image.width * image.height > left:
                raise InputError(
                    f"{name} has {image.width} x {image.height} pixels: the most of all images "
                    f"of a request is {max_pixels}"
                )
            left -= image.width * image.height
            pixels.append(_pixels(image, spec))
    return InferRequest("", {spec.name: np.stack(pixels)}, all_outputs(served, binary=False))


def image_input(served: Served) -> TensorSpec:
    """The one input of a model of images N x C x H x W. Raises InputError for other models."""
    if len(served.inputs) == 1:
        (spec,) = served.inputs
        channels = spec.shape[1] if len(spec.shape) == 4 else 0
        if channels in _MODES and min(spec.shape[2:]) > 0 and spec.datatype in ("FP32", "FP16"):
            return spec
    raise InputError("this model takes no images: send JSON")


@contextlib.contextmanager
def _said_of(name: str) -> Iterator[None]:
    """Every error of Pillow becomes an InputError that names the image."""
    try:
        yield
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(f"{name} is neither PNG nor JPEG") from None
    except Exception as error:
        # Its decoders raise OSError, SyntaxError, ValueError, struct.error and more.
        raise InputError(f"{name} is a damaged image: {error or type(error).__name__}") from None


def _opened(content: bytes) -> Image.Image:
    """Its head is read, and none of its pixels."""
    with warnings.catch_warnings():
        # Pillow only warns of images above its own limit; ours is checked with what this gives.
        warnings.simplefilter("ignore")
        return Image.open(io.BytesIO(content), formats=FORMATS)


def _pixels(image: Image.Image, spec: TensorSpec) -> NDArray[Any]:
    """C x H x W from 0 to 1.

    It is turned as its EXIF data say, made gray or RGB as the model has channels, and resized to
    the model's height and width, whatever its own proportions.
    """
    _, channels, height, width = spec.shape
    # A large JPEG is decoded at a size near to what is needed.
    image.draft(_MODES[channels], (width, height))
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        # Pillow would cut 16 bits off at 255 in place of scaling them.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert(_MODES[channels]).resize((width, height), Image.Resampling.BILINEAR)
    dtype = NUMPY[spec.datatype]
    pixels: NDArray[Any] = np.asarray(image, dtype) / dtype.type(255)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)
