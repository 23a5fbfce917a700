import json
from typing import Any

import numpy as np
import pytest

from inference.engine.interface import InputError, TensorSpec
from inference.protocol.tensors import to_binary
from inference.protocol.v2_json import read_request, write_answer
from tests.inference.protocol.models import SERVED, engine_answer, model_with_inputs

IMAGES = np.arange(8, dtype="<f4")
TENSOR: dict[str, Any] = {
    "name": "images",
    "shape": [2, 1, 2, 2],
    "datatype": "FP32",
    "parameters": {"binary_data_size": 32},
}


def packed(tensor: dict[str, Any], blob: bytes, **document: Any) -> tuple[bytes, str]:
    head = json.dumps({"inputs": [tensor], **document}).encode()
    return head + blob, str(len(head))


def test_binary_values_equal_json_values() -> None:
    body, length = packed(TENSOR, IMAGES.tobytes())
    images = read_request(body, SERVED, length).inputs["images"]
    assert images.tolist() == IMAGES.reshape(2, 1, 2, 2).tolist()


def test_binary_outputs_can_be_requested_per_output_or_for_all() -> None:
    outputs = [{"name": "label"}, {"name": "class", "parameters": {"binary_data": False}}]
    parameters = {"binary_data_output": True}
    body, length = packed(TENSOR, IMAGES.tobytes(), outputs=outputs, parameters=parameters)
    head, values = write_answer(read_request(body, SERVED, length), engine_answer([1, 0], [0, 1]))
    document = json.loads(head)
    assert document["outputs"] == [
        {"name": "label", "datatype": "BYTES", "shape": [2]}
        | {"parameters": {"binary_data_size": 13}},
        {"name": "class", "datatype": "INT64", "shape": [2], "data": [0, 1]},
    ]
    assert values == [b"\2\0\0\0no\3\0\0\0yes"]


def test_outputs_without_values_are_empty_in_binary_form() -> None:
    # A memoryview with a zero in its shape cannot be sent.
    assert to_binary(np.zeros((3, 0), np.float32), TensorSpec("a", "FP32", (-1, -1))) == b""


def test_binary_strings_are_prefixed_with_their_lengths() -> None:
    served = model_with_inputs(TensorSpec("x", "BYTES", (-1,)))
    tensor = {"name": "x", "shape": [2], "datatype": "BYTES"}
    blob = b"\0\0\0\0\3\0\0\0abc"
    body, length = packed(tensor | {"parameters": {"binary_data_size": len(blob)}}, blob)
    assert read_request(body, served, length).inputs["x"].tolist() == [b"", b"abc"]


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"\3\0\0", "ends inside the length prefix of string 0"),
        (b"\3\0\0\0ab", "ends inside string 0, which has 3 bytes"),
        (b"\0\0\0\0", "has 1 values"),
        # Reading stops at the third string, although its length is invalid.
        (b"\0\0\0\0" * 2 + b"\1", "has more values than its shape .* allows"),
    ],
)
def test_wrong_strings_are_refused(blob: bytes, message: str) -> None:
    served = model_with_inputs(TensorSpec("x", "BYTES", (-1,)))
    tensor = {"name": "x", "shape": [2], "datatype": "BYTES"}
    body, length = packed(tensor | {"parameters": {"binary_data_size": len(blob)}}, blob)
    with pytest.raises(InputError, match=message):
        read_request(body, served, length)


NAN = np.full(8, np.nan, "<f4").tobytes()


@pytest.mark.parametrize(
    ("change", "blob", "message"),
    [
        ({}, IMAGES.tobytes()[:-1], "32, but 31 bytes remain"),
        ({}, IMAGES.tobytes() + b"x", "1 bytes after the JSON belong to no input"),
        ({}, NAN, "is NaN or too large for FP32"),
        ({"parameters": {"binary_data_size": -1}}, b"", "is -1, but 0 bytes remain"),
        ({"parameters": {"binary_data_size": True}}, b"", "is true"),
        ({"parameters": {"binary_data_size": 8}}, b"x" * 8, "needs 32"),
        ({"data": [1]}, IMAGES.tobytes(), "has both data and"),
    ],
)
def test_inconsistent_binary_tensors_are_refused(
    change: dict[str, Any], blob: bytes, message: str
) -> None:
    body, length = packed(TENSOR | change, blob)
    with pytest.raises(InputError, match=message):
        read_request(body, SERVED, length)


@pytest.mark.parametrize("length", ["", "-1", "1e3", "9999", "²", "9" * 5000])
def test_invalid_header_length_is_refused(length: str) -> None:
    with pytest.raises(InputError, match="Inference-Header-Content-Length"):
        read_request(b"{}", SERVED, length)
