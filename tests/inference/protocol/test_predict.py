import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from inference.engine.interface import InputError, TensorSpec
from inference.protocol.images import read_images
from inference.protocol.multipart import files_of
from inference.protocol.predict import read_json, write_answer
from tests.inference.protocol.models import SERVED, answer, taking

ONE = [[[0, 0.5], [1, 0]]]
COLORS = taking(TensorSpec("images", "FP32", (-1, 3, 2, 2)))


@pytest.mark.parametrize("document", [ONE, [ONE], {"inputs": ONE}, {"inputs": {"images": [ONE]}}])
def test_one_sample_may_come_without_a_batch(document: Any) -> None:
    request = read_json(json.dumps(document).encode(), SERVED)
    assert request.inputs["images"].tolist() == [ONE]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "inputs is missing"),
        ({"inputs": 5}, "nested list of numbers for 'images'"),
        ({"inputs": {"image": ONE}}, "inputs.image is not an input"),
        ({"inputs": [0, 0.5, 1, 0]}, r"nested as \[4\]: it must be as one sample, \[1, 2, 2\]"),
        ({"inputs": [[[0, 0.5], [1]]]}, "rows of different lengths"),
        ({"inputs": [[["0", 0.5], [1, 0]]]}, "nothing but numbers"),
        ({"inputs": []}, r"nested as \[0\]"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused(document: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_json(json.dumps(document).encode(), SERVED)


def test_the_answer_has_an_object_for_each_sample() -> None:
    document = json.loads(write_answer(answer([0.25, 0.75], [1, 0])))
    assert document["predictions"] == [
        {"probabilities": [0.25, 0.75], "class": 1, "label": "yes"},
        {"probabilities": [1, 0], "class": 0, "label": "no"},
    ]


def image(array: Any, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.array(array)).save(stream, kind, **options)
    return stream.getvalue()


def read(content: bytes, served: Any = SERVED, max_pixels: int = 100) -> np.ndarray[Any, Any]:
    request = read_images([("the image", content)], served, max_pixels)
    return request.inputs["images"]


def test_pixels_go_from_0_to_1_with_the_channels_first() -> None:
    gray = np.array([[0, 51], [102, 255]], np.uint8)
    assert read(image(gray)).tolist() == pytest.approx(np.array([[[[0, 0.2], [0.4, 1]]]]))
    colors = np.stack([gray, gray // 3, gray * 0], 2)
    assert read(image(colors), COLORS)[0] == pytest.approx(colors.transpose(2, 0, 1) / 255)


def test_images_are_made_gray_or_rgb_and_of_the_models_size() -> None:
    white = np.full((6, 4, 3), 255, np.uint8)
    assert read(image(white)).tolist() == [[[[1, 1], [1, 1]]]]
    assert read(image(white, "JPEG"), COLORS) == pytest.approx(1, abs=0.01)
    sixteen_bits = np.full((2, 2), 65535 // 2, np.uint16)
    assert read(image(sixteen_bits)) == pytest.approx(0.5, abs=0.01)


def test_an_image_is_turned_as_its_camera_says() -> None:
    rotated = Image.Exif()
    rotated[0x0112] = 3
    turned = read(image(np.array([[0, 0], [0, 255]], np.uint8), exif=rotated))
    assert turned[0, 0].tolist() == [[1, 0], [0, 0]]


def bomb() -> bytes:
    """A PNG of which a small text becomes a large one."""
    stream, info = io.BytesIO(), PngImagePlugin.PngInfo()
    info.add_text("a", "x" * 2**21, zip=True)
    Image.new("L", (2, 2)).save(stream, "PNG", pnginfo=info)
    return stream.getvalue()


GOOD = image(np.zeros((2, 2), np.uint8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the image is neither PNG nor JPEG"),
        (b"GIF89a", "neither PNG nor JPEG"),
        (GOOD[:45], "the image is a damaged image"),
        (GOOD[:40] + b"\0" * 30, "damaged image|neither"),
        (bomb(), "damaged image"),
        (image(np.zeros((11, 10), np.uint8)), "10 x 11 pixels: the most of all"),
    ],
)
def test_what_is_no_good_image_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(content)


def test_images_of_one_request_share_the_limit() -> None:
    with pytest.raises(InputError, match="6 x 10 pixels: the most of all images"):
        read_images([("a", image(np.zeros((10, 6), np.uint8)))] * 2, SERVED, 100)


def test_a_model_of_no_images_says_so() -> None:
    with pytest.raises(InputError, match="takes no images: send JSON"):
        read(GOOD, taking(TensorSpec("tokens", "INT64", (-1, -1))))


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n'
    b'--b\r\nContent-Disposition: form-data; name="one"; filename="1.png"\r\n\r\nPNG1\r\n'
    b'--b\r\nContent-Disposition: form-data; name="two"; filename="2.png"\r\n\r\nPNG2\r\n--b--\r\n'
)


def test_the_files_of_a_form_are_taken_in_their_order() -> None:
    assert files_of(FORM, "multipart/form-data; boundary=b") == [("one", b"PNG1"), ("two", b"PNG2")]


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (FORM, "multipart/form-data", "has no boundary"),
        (FORM, "multipart/form-data; boundary=c", "the form has no end"),
        (FORM[:52] + b"\r\n--b--\r\n", "multipart/form-data; boundary=b", "has no file"),
        (b"--bx" + FORM, "multipart/form-data; boundary=b", "the form cannot be read"),
        (FORM[:-40], "multipart/form-data; boundary=b", "has no end"),
        (b"", "multipart/form-data; boundary=b", "has no file"),
    ],
)
def test_a_form_that_is_damaged_is_refused(body: bytes, content_type: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        files_of(body, content_type)
