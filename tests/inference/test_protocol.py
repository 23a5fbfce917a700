import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol import BadRequestError, answer, metadata, read_request
from training.manifest import Manifest, Weights

MANIFEST = Manifest(
    model="digits-net",
    input_shape=(1, 2, 2),
    classes=("no", "yes"),
    metrics={"accuracy": 0.75},
    weights=Weights(size=1, sha256="ab" * 32),
    torch_version="2",
)
TENSOR: dict[str, Any] = {
    "name": "images",
    "shape": [2, 1, 2, 2],
    "datatype": "FP32",
    "data": [0, 0.5, 1, 0, 1, 1, 1, 1],
}


def body(change: dict[str, Any] | None = None, **document: Any) -> bytes:
    return json.dumps({"inputs": [TENSOR | (change or {})]} | document).encode()


def without(field: str) -> bytes:
    return json.dumps({"inputs": [{k: v for k, v in TENSOR.items() if k != field}]}).encode()


def test_data_may_be_flat_or_nested() -> None:
    nested = [[[[0, 0.5], [1, 0]]], [[[1, 1], [1, 1]]]]
    for data in (TENSOR["data"], nested):
        images = read_request(body({"data": data}), MANIFEST).images
        assert images.dtype == np.float32
        assert images.tolist() == nested


def test_the_answer_names_what_was_asked_for() -> None:
    request = read_request(body(id="42", outputs=[{"name": "label"}, {"name": "class"}]), MANIFEST)
    probabilities = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    assert answer(request, "digits", MANIFEST, probabilities) == {
        "model_name": "digits",
        "model_version": "abababababab",
        "id": "42",
        "outputs": [
            {"name": "label", "datatype": "BYTES", "shape": [2], "data": ["yes", "no"]},
            {"name": "class", "datatype": "INT64", "shape": [2], "data": [1, 0]},
        ],
    }


def test_all_outputs_are_given_when_none_is_named() -> None:
    probabilities = np.array([[0.25, 0.75]], np.float32)
    said = answer(read_request(body(), MANIFEST), "digits", MANIFEST, probabilities)
    assert "id" not in said
    assert [output["name"] for output in said["outputs"]] == ["probabilities", "class", "label"]
    assert said["outputs"][0]["data"] == [0.25, 0.75]


def test_the_metadata_tell_shapes_origin_and_quality() -> None:
    said = metadata("digits", MANIFEST)
    assert said["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 1, 2, 2]}]
    assert said["versions"] == ["abababababab"]
    assert said["parameters"]["sha256"] == "ab" * 32
    assert said["parameters"]["metrics"] == {"accuracy": 0.75}


MALFORMED = [
    (b"", "the body is no JSON"),
    (b"\xff\xfe", "the body is no JSON"),
    (b'{"inputs": [', "the body is no JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b"[]", "the body must be an object"),
    (b'{"id": NaN}', "NaN is no JSON"),
    (b"{}", "inputs must be a list of one tensor"),
    (body(inputs=[]), "inputs must be a list of one tensor"),
    (body(inputs=[TENSOR, TENSOR]), "inputs must be a list of one tensor"),
    (body(inputs={"images": TENSOR}), "inputs must be a list of one tensor"),
    (body(inputs=["images"]), "inputs[0] must be an object"),
    (body(id=7), "id is 7: it must be a string"),
    (body(parameters=[]), "parameters must be an object"),
    (without("name"), "inputs[0].name is missing"),
    (without("shape"), "inputs[0].shape is missing"),
    (without("datatype"), "inputs[0].datatype is missing"),
    (without("data"), "inputs[0].data is missing"),
    (body({"name": "image"}), 'inputs[0].name is "image"'),
    (body({"datatype": "FP64"}), 'inputs[0].datatype is "FP64"'),
    (body({"datatype": None}), "inputs[0].datatype is null"),
    (body({"parameters": 1}), "inputs[0].parameters must be an object"),
    (body({"shape": 8}), "inputs[0].shape is 8: it must be [N, 1, 2, 2]"),
    (body({"shape": []}), "inputs[0].shape is []"),
    (body({"shape": [2, 2, 2]}), "inputs[0].shape is [2, 2, 2]"),
    (body({"shape": [2, 1, 2, 3]}), "inputs[0].shape is [2, 1, 2, 3]"),
    (body({"shape": [0, 1, 2, 2], "data": []}), "inputs[0].shape is [0, 1, 2, 2]"),
    (body({"shape": [-2, 1, 2, 2]}), "inputs[0].shape is [-2, 1, 2, 2]"),
    (body({"shape": [2.0, 1, 2, 2]}), "inputs[0].shape is [2.0, 1, 2, 2]"),
    (body({"shape": [True, 1, 2, 2]}), "inputs[0].shape is [true, 1, 2, 2]"),
    (body({"shape": [10**30, 1, 2, 2]}), "inputs[0].data has 8 numbers"),
    (body({"data": "AAAA"}), "inputs[0].data must be a list"),
    (body({"data": []}), "inputs[0].data has 0 numbers"),
    (body({"data": [1] * 7}), "inputs[0].data has 7 numbers"),
    (body({"data": ["1"] * 8}), "nothing but numbers"),
    (body({"data": [None] * 8}), "nothing but numbers"),
    (body({"data": [True] * 8}), "nothing but numbers"),
    (body({"data": [True, *[1] * 7]}), "nothing but numbers"),
    (body({"data": [{}] * 8}), "nothing but numbers"),
    (body({"data": [10**400] * 8}), "nothing but numbers"),
    (body({"data": [1e300] * 8}), "too large for FP32"),
    (body({"data": [[1, 2], [3]]}), "rows of different lengths"),
    (body({"data": [[1, 2, 3, 4], [1, 2, 3, 4]]}), "nested as [2, 4]"),
    (body(outputs="class"), "outputs must be a list"),
    (body(outputs=["class"]), "outputs[0] must be an object"),
    (body(outputs=[{"name": "logits"}]), 'outputs[0].name is "logits"'),
    (body(outputs=[{}]), "outputs[0].name is null"),
    (body(outputs=[{"name": "class"}] * 2), "outputs[1].name is 'class' for the second time"),
]


@pytest.mark.parametrize(("malformed", "message"), MALFORMED)
def test_a_malformed_request_names_its_field(malformed: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_request(malformed, MANIFEST)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@given(field=st.sampled_from(list(TENSOR)), value=JSON)
def test_any_value_of_a_field_is_valid_or_refused(field: str, value: Any) -> None:
    try:
        request = read_request(body({field: value}), MANIFEST)
    except BadRequestError:
        return
    assert request.images.shape[1:] == (1, 2, 2)
    assert np.isfinite(request.images).all()


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_refused_in_words(malformed: bytes) -> None:
    with pytest.raises(BadRequestError):
        read_request(malformed, MANIFEST)
