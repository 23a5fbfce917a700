"""Model server handlers for inputs other than tensors: encoded images and form fields.

Set INFERENCE_HANDLER=handlers:EncodedImages, and mount this file or copy it into the image.
"""

import io
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from inference.engine.handlers import Classifier, Plain, Source
from inference.engine.interface import InputError, Tensors, TensorSpec

MAX_PIXELS: Final = 2**22
"""Maximum number of pixels, checked before decoding: a small file may contain a large image."""

_MODES: Final = {1: "L", 3: "RGB"}


class EncodedImages(Classifier):
    """Handler for PNG or JPEG files, sent as BYTES and scaled to the model's input size."""

    def load(self, source: Source) -> None:
        """Load the model, and declare encoded images as the input."""
        super().load(source)
        self._channels, self._height, self._width = source.manifest.input_shape
        self.inputs = (TensorSpec("image", "BYTES", (-1,)),)

    def examples(self, largest: int) -> Any:
        """Yield batches of black images."""
        content = io.BytesIO()
        size = (self._width, self._height)
        Image.new(_MODES[self._channels], size).save(content, format="PNG")
        for samples in sorted({1, largest}):
            yield {"image": np.array([content.getvalue()] * samples, np.object_)}

    def decode(self, inputs: Tensors) -> torch.Tensor:
        """Decode the images into pixel values from 0 to 1."""
        pixels = np.stack([self._pixels(content) for content in inputs["image"]])
        return torch.from_numpy(pixels).to(self.device)

    def _pixels(self, content: bytes) -> NDArray[np.float32]:
        try:
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Image.DecompressionBombError
                decoded: Image.Image = image
                if image.mode.startswith("I;16"):
                    # `convert` would clip values above 255.
                    decoded = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
                scaled = decoded.convert(_MODES[self._channels]).resize((self._width, self._height))
        except Image.DecompressionBombError as error:
            # Pillow also raises this error when it opens a very large image.
            raise InputError(f"image has more than {MAX_PIXELS} pixels") from error
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError("image must be a complete PNG or JPEG file") from error
        shape = (self._height, self._width, self._channels)
        values = np.asarray(scaled, np.float32).reshape(shape) / np.float32(255)
        return np.ascontiguousarray(values.transpose(2, 0, 1))


class FormFields(Plain):
    """Handler with one input per form field, such as {"name": "age", "shape": [1], …}."""

    fields: ClassVar[tuple[str, ...]] = ("age", "income", "years")
    """Names of the model's input features, in order."""

    def load(self, source: Source) -> None:
        """Load the model, and declare one input per form field."""
        super().load(source)
        self.inputs = tuple(TensorSpec(name, "FP32", (-1,)) for name in self.fields)

    def decode(self, inputs: Tensors) -> torch.Tensor:
        """Combine the fields into rows of features."""
        for name in self.fields:
            if (inputs[name] < 0).any():
                raise InputError(f"{name} must not be negative")
        columns = [inputs[name] for name in self.fields]
        return torch.from_numpy(np.stack(columns, 1)).to(self.device)
