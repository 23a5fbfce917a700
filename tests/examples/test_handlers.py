"""The example handlers, loaded and checked as a worker does at startup."""

import io
import zlib
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from examples.handlers import MAX_PIXELS, EncodedImages, FormFields
from inference.engine.handlers import Handler, Source
from inference.engine.interface import InputError, Tensors
from inference.engine.worker import check_outputs
from tests.inference.engine.exports import write_digits, write_probe
from workload.export import load_network
from workload.manifest import read_manifest

H = TypeVar("H", bound=Handler)


def loaded(handler: H, folder: Path, network: nn.Module) -> H:
    source = Source(folder, read_manifest(folder), torch.device("cpu"), lambda: network)
    handler.load(source)
    for example in handler.examples(4):
        samples = len(next(iter(example.values())))
        check_outputs(handler.compute(example), handler.outputs, samples)
    return handler


def png(size: tuple[int, int], mode: str = "L", value: int = 200) -> bytes:
    content = io.BytesIO()
    Image.new(mode, size, value if mode == "L" else (value,) * 3).save(content, format="PNG")
    return content.getvalue()


GRAYSCALE_HEADER = b"\x08\0\0\0\0"
TEXT_CHUNK = (b"zTXt", b"a\0\0" + zlib.compress(bytes(2**21)))


def png_starting_with(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG file whose header chunk is replaced by other chunks."""
    content = png((8, 8))
    chunk_bytes = b"".join(
        len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)
        for kind, data in chunks
    )
    return content[:8] + chunk_bytes + content[33:]


def images(*contents: bytes) -> Tensors:
    return {"image": np.array(contents, np.object_)}


@pytest.fixture
def image_handler(tmp_path: Path) -> EncodedImages:
    write_digits(tmp_path)
    network = load_network(tmp_path, read_manifest(tmp_path))
    return loaded(EncodedImages(), tmp_path, network)


def test_encoded_images_are_classified_like_their_pixels(image_handler: EncodedImages) -> None:
    found = image_handler.compute(images(png((8, 8)), png((40, 30), "RGB")))
    with torch.no_grad():
        expected = image_handler.network(torch.full((1, 1, 8, 8), 200 / 255)).softmax(1).numpy()
    for row in found["probabilities"]:
        assert row == pytest.approx(expected[0], abs=1e-5)


def test_16_bit_grayscale_images_are_classified_like_8_bit_images(
    image_handler: EncodedImages,
) -> None:
    content = io.BytesIO()
    Image.fromarray(np.full((8, 8), 200 << 8, np.uint16)).save(content, format="PNG")
    found = image_handler.compute(images(content.getvalue(), png((8, 8))))["probabilities"]
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GIF89a", "image must be a complete PNG or JPEG file"),
        (png((64, 64))[:60], "image must be a complete PNG or JPEG file"),
        (png((MAX_PIXELS // 1024 + 1, 1024)), "image has more than"),
        (
            png_starting_with((b"IHDR", b"\0\0\x75\x30" * 2 + GRAYSCALE_HEADER)),
            "image has more than",
        ),
        (
            png_starting_with((b"IHDR", b"\0\0\0\x08" * 2 + GRAYSCALE_HEADER), TEXT_CHUNK),
            "image must be a complete",
        ),
    ],
    ids=["unsupported format", "truncated", "too large", "decompression bomb", "large text chunk"],
)
def test_invalid_images_are_rejected(
    image_handler: EncodedImages, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        image_handler.compute(images(content))


def test_form_fields_become_input_columns(tmp_path: Path) -> None:
    write_probe(tmp_path)
    network = nn.Linear(3, 1)
    form = loaded(FormFields(), tmp_path, network)
    fields = {"age": [1.0, 2.0], "income": [3.0, 4.0], "years": [5.0, 6.0]}
    inputs = {name: np.array(values, np.float32) for name, values in fields.items()}
    with torch.no_grad():
        expected = network(torch.tensor([[1.0, 3, 5], [2, 4, 6]])).numpy()
    assert form.compute(inputs)["outputs"] == pytest.approx(expected)
    with pytest.raises(InputError, match="age must not be negative"):
        form.compute({**inputs, "age": np.array([-1, 0], np.float32)})
