import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.interface import Answer, InputError, TensorSpec
from inference.protocol.v2_json import (
    MAX_PLAN_BYTES,
    MAX_PLANS,
    MAX_STRINGS,
    InferRequest,
    check_output_size,
    model_metadata,
    read_request,
    write_answer,
)
from tests.inference.protocol.models import SERVED, engine_answer, model_with_inputs
from tests.unicode import ALPHABET

DEEP = "brackets"
"""Placeholder for a list that is nested too deeply for a conversion."""

TENSOR: dict[str, Any] = {
    "name": "images",
    "shape": [2, 1, 2, 2],
    "datatype": "FP32",
    "data": [0, 0.5, 1, 0, 1, 1, 1, 1],
}


def body(change: dict[str, Any] | None = None, **document: Any) -> bytes:
    text = json.dumps({"inputs": [TENSOR | (change or {})]} | document)
    return text.replace(f'"{DEEP}"', "[" * 1015 + "]" * 1015).encode()


def without(field: str) -> bytes:
    return json.dumps({"inputs": [{k: v for k, v in TENSOR.items() if k != field}]}).encode()


def answer_to(request: bytes, *probabilities: list[float]) -> dict[str, Any]:
    content, values = write_answer(read_request(request, SERVED), engine_answer(*probabilities))
    assert not values
    document: dict[str, Any] = json.loads(content)
    return document


def test_tensor_data_may_be_flat_or_nested() -> None:
    nested = [[[[0, 0.5], [1, 0]]], [[[1, 1], [1, 1]]]]
    for data in (TENSOR["data"], nested):
        images = read_request(body({"data": data}), SERVED).inputs["images"]
        assert images.dtype == np.float32
        assert images.tolist() == nested


def test_answer_contains_only_the_requested_outputs() -> None:
    request = body(id="42", outputs=[{"name": "label"}, {"name": "class"}])
    assert answer_to(request, [0.25, 0.75], [0.5, 0.5]) == {
        "model_name": "digits",
        "model_version": "abababababab",
        "id": "42",
        "outputs": [
            {"name": "label", "datatype": "BYTES", "shape": [2], "data": ["yes", "no"]},
            {"name": "class", "datatype": "INT64", "shape": [2], "data": [1, 0]},
        ],
    }


def test_all_outputs_are_returned_if_none_is_requested() -> None:
    document = answer_to(body(), [0.25, 0.75])
    assert "id" not in document
    names = [output["name"] for output in document["outputs"]]
    assert names == ["probabilities", "class", "label"]
    assert document["outputs"][0]["data"] == [0.25, 0.75]


def test_metadata_contains_shapes_digest_and_metrics() -> None:
    document = model_metadata(SERVED)
    assert document["inputs"] == [{"name": "images", "datatype": "FP32", "shape": (-1, 1, 2, 2)}]
    assert document["versions"] == ["abababababab"]
    assert document["parameters"]["sha256"] == "ab" * 32
    assert document["parameters"]["metrics"] == {"accuracy": 0.75}


def test_null_parameters_are_accepted_like_missing_ones() -> None:
    tensor = {**json.loads(body())["inputs"][0], "parameters": None}
    outputs = [{"name": "class", "parameters": None}]
    read = read_request(body(inputs=[tensor], outputs=outputs, parameters=None), SERVED)
    assert read.plan.timeout is None
    assert [output.spec.name for output in read.plan.outputs] == ["class"]


def test_request_timeout_is_in_microseconds() -> None:
    assert read_request(body(parameters={"timeout": 250_000}), SERVED).plan.timeout == 0.25
    assert read_request(body(parameters={"timeout": 0}), SERVED).plan.timeout is None


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("BOOL", [True, False]),
        ("UINT8", [0, 255]),
        ("INT8", [-128, 127]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("UINT64", [0, 2**64 - 1]),
        ("FP16", [0.5, -2]),
        ("FP64", [1e-300, 1e300]),
        ("BYTES", ["", "é"]),
    ],
)
def test_values_of_every_datatype_are_preserved(datatype: Any, data: list[Any]) -> None:
    served = model_with_inputs(TensorSpec("x", datatype, (-1, 1)))
    tensor = {"name": "x", "shape": [2, 1], "datatype": datatype, "data": [[data[0]], [data[1]]]}
    values = read_request(json.dumps({"inputs": [tensor]}).encode(), served).inputs["x"]
    expected = [value.encode() for value in data] if datatype == "BYTES" else data
    assert values.ravel().tolist() == expected


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        ("UINT8", [256], "a number that does not fit UINT8"),
        ("INT64", [1.0], "contain only integers"),
        ("INT64", [2**63], "contain only integers"),
        ("UINT64", [-1], "contain only integers"),
        ("BOOL", [1], "contain only booleans"),
        ("BYTES", [1], "contain only strings"),
        ("FP16", [1e5], "too large for FP16"),
    ],
)
def test_values_that_do_not_match_the_datatype_are_refused(
    datatype: Any, data: list[Any], message: str
) -> None:
    served = model_with_inputs(TensorSpec("x", datatype, (-1,)))
    tensor = {"name": "x", "shape": [1], "datatype": datatype, "data": data}
    with pytest.raises(InputError, match=message):
        read_request(json.dumps({"inputs": [tensor]}).encode(), served)


def test_inputs_may_be_in_any_order_but_need_equal_sample_counts() -> None:
    served = model_with_inputs(TensorSpec("a", "INT64", (-1,)), TensorSpec("b", "FP32", (-1, -1)))
    a = {"name": "a", "shape": [2], "datatype": "INT64", "data": [1, 2]}
    b = {"name": "b", "shape": [2, 3], "datatype": "FP32", "data": [0] * 6}

    def read(*tensors: dict[str, Any]) -> list[str]:
        return list(read_request(json.dumps({"inputs": tensors}).encode(), served).inputs)

    assert read(b, a) == ["b", "a"]
    with pytest.raises(InputError, match="repeats"):
        read(a, a)
    with pytest.raises(InputError, match="list of 2 tensors: 'a', 'b'"):
        read(a)
    with pytest.raises(InputError, match="different numbers of samples"):
        read(a, b | {"shape": [3, 2]})


MALFORMED = [
    (b"", "the body is not valid JSON"),
    (b"\xff\xfe", "the body is not valid JSON"),
    (b'{"inputs": [', "the body is not valid JSON"),
    (b"[" * 100_000, "the body is not valid JSON"),
    (b"[]", "the body must be an object"),
    (b'{"id": NaN}', "the body is not valid JSON"),
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
    (body({"shape": [10**15, 1, 2, 2]}), "inputs[0].data has 8 values"),
    (body({"data": "AAAA"}), "inputs[0].data must be a list"),
    (body({"data": []}), "inputs[0].data has 0 values"),
    (body({"data": [1] * 7}), "inputs[0].data has 7 values"),
    (body({"data": ["1"] * 8}), "contain only numbers"),
    (body({"data": [None] * 8}), "contain only numbers"),
    (body({"data": [True] * 8}), "contain only numbers"),
    (body({"data": [True, *[1] * 7]}), "contain only numbers"),
    (body({"data": [{}] * 8}), "contain only numbers"),
    (body({"data": [10**400] * 8}), "the body is not valid JSON"),
    (body({"data": [1e300] * 8}), "too large for FP32"),
    (body({"data": [[1, 2], [3]]}), "rows of different lengths"),
    (body({"data": [[1, 2], [3, 4, 5], [6], [7, 8]]}), "nested as [4, 2]"),
    (body({"data": [[[[1, 2], [3, 4]]], [[[5, 6, 7], [8]]]]}), "rows of different lengths"),
    (body({"data": [[[[1, 2], [3, 4]]], [[[5, 6], 7, 8]]]}), "rows of different lengths"),
    (body({"data": [[[[1e-1, -2], [3, 4]]], [[[5, 6], [7]]], 8]}), "rows of different lengths"),
    (body({"data": [[1, 2, 3, 4], [1, 2, 3, 4]]}), "nested as [2, 4]"),
    (
        body({"parameters": {"binary_data_size": 32}}),
        "needs the Inference-Header-Content-Length header",
    ),
    (body(parameters={"timeout": -1}), "parameters.timeout is -1"),
    (body(parameters={"timeout": False}), "parameters.timeout is false"),
    (body(parameters={"binary_data_output": 1}), "parameters.binary_data_output is 1"),
    (body(outputs=[{"name": "class", "parameters": {"classification": 2}}]), "unknown field"),
    (
        body(parameters={"sequence_id": 7}),
        'unknown field "sequence_id": known fields are binary_data_',
    ),
    (body(model_name="other"), "model_name is \"other\": the path names 'digits'"),
    (body(max_token=7), 'unknown field "max_token"'),
    (body()[:-1] + b', "inputs": []}', "the body contains a duplicate field"),
    (
        body().replace(b'"datatype"', b'"shape": [1], "datatype"'),
        "inputs[0] contains a duplicate field",
    ),
    (body({"dtype": "FP32"}), "inputs[0] has "),
    (body({"shape": DEEP}), "is a list of 1"),
    (body(id=DEEP), "id is a list of 1"),
    (body({"data": DEEP}), "inputs[0].data"),
    (body(outputs=[{"name": "class"}] * 4), "outputs has 4 entries"),
    (body(outputs="class"), "outputs must be a list"),
    (body(outputs=["class"]), "outputs[0] must be an object"),
    (body(outputs=[{"name": "logits"}]), 'outputs[0].name is "logits"'),
    (body(outputs=[{}]), "outputs[0].name is null"),
    (body(outputs=[{"name": "class"}] * 2), "outputs[1].name repeats 'class'"),
]


@pytest.mark.parametrize(("malformed", "message"), MALFORMED)
def test_error_names_the_malformed_field(malformed: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_request(malformed, SERVED)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(ALPHABET, max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(ALPHABET, max_size=5), inner)
    ),
    max_leaves=12,
)


@given(field=st.sampled_from(list(TENSOR)), value=JSON)
def test_any_value_of_a_tensor_field_is_accepted_or_refused(field: str, value: Any) -> None:
    try:
        request = read_request(body({field: value}), SERVED)
    except InputError:
        return
    assert request.inputs["images"].shape[1:] == (1, 2, 2)
    assert np.isfinite(request.inputs["images"]).all()


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_invalid_body_raises_input_error(malformed: bytes) -> None:
    with pytest.raises(InputError):
        read_request(malformed, SERVED)


VALUES = np.arange(8, dtype="<f4") / 8


def binary_request(**fields: object) -> tuple[bytes, str]:
    tensor = {
        "name": "images",
        "shape": [2, 1, 2, 2],
        "datatype": "FP32",
        "parameters": {"binary_data_size": 32},
    }
    head = json.dumps({"inputs": [tensor]} | fields).encode()
    return head, str(len(head))


def test_requests_with_the_same_json_head_keep_their_own_values() -> None:
    head, length = binary_request(id="7", parameters={"timeout": 5000})
    first = read_request(head + VALUES.tobytes(), SERVED, length)
    second = read_request(head + VALUES[::-1].tobytes(), SERVED, length)
    assert first.inputs["images"].ravel().tolist() == VALUES.tolist()
    assert second.inputs["images"].ravel().tolist() == VALUES[::-1].tolist()
    assert second.plan is first.plan


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (VALUES[:5].tobytes(), "20 bytes remain"),
        (VALUES.tobytes() + b"1234", "4 bytes after the JSON"),
        (np.full(8, np.nan, "<f4").tobytes(), "NaN or too large"),
    ],
)
def test_invalid_values_are_refused_even_if_the_plan_is_cached(values: bytes, message: str) -> None:
    head, length = binary_request()
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            read_request(head + values, SERVED, length)
        read_request(head + VALUES.tobytes(), SERVED, length)


def test_same_json_head_is_parsed_again_for_another_model() -> None:
    head, length = binary_request()
    read_request(head + VALUES.tobytes(), SERVED, length)
    another_model = dataclasses.replace(
        SERVED, inputs=(TensorSpec("images", "FP32", (-1, 3, 2, 2)),)
    )
    with pytest.raises(InputError, match="shape"):
        read_request(head + VALUES.tobytes(), another_model, length)
    read_request(head + VALUES.tobytes(), SERVED, length)


def test_plan_cache_limits_the_number_and_length_of_plans() -> None:
    served = dataclasses.replace(SERVED)
    for identity in ("x" * MAX_PLAN_BYTES, *map(str, range(MAX_PLANS))):
        head, length = binary_request(id=identity)
        read_request(head + VALUES.tobytes(), served, length)
    assert len(served.plans) == MAX_PLANS
    head, length = binary_request(id="one more")
    read_request(head + VALUES.tobytes(), served, length)
    assert list(served.plans) == [head]


def test_answers_to_the_same_json_head_share_their_json() -> None:
    head, length = binary_request(outputs=[{"name": "class", "parameters": {"binary_data": True}}])
    for values in (np.array([3, 1]), np.array([0, 2])):
        read = read_request(head + VALUES.tobytes(), SERVED, length)
        answer = Answer({"class": values}, SERVED, 0.0, 0.0, 2)
        body, sent = write_answer(read, answer)
        assert json.loads(body)["outputs"][0]["shape"] == [2]
        assert sent == [values.data]
    assert len(read.plan.heads) == 1


def test_cached_json_of_an_answer_is_not_used_for_another_model() -> None:
    head, length = binary_request(outputs=[{"name": "class", "parameters": {"binary_data": True}}])
    read = read_request(head + VALUES.tobytes(), SERVED, length)
    another_model = dataclasses.replace(SERVED, name="other")
    for served in (SERVED, another_model, SERVED):
        body, _ = write_answer(read, Answer({"class": np.ones(2, int)}, served, 0, 0, 2))
        assert json.loads(body)["model_name"] == served.name


def test_nan_output_is_refused_as_json_but_sent_as_binary() -> None:
    with pytest.raises(InputError, match="output 'probabilities' has NaN"):
        answer_to(body(), [float("nan"), 0.5])
    request = read_request(body(parameters={"binary_data_output": True}), SERVED)
    _, values = write_answer(request, engine_answer([float("nan"), 0.5]))
    assert np.isnan(np.frombuffer(values[0], np.float32, 1))


def test_string_output_that_is_not_utf_8_is_refused_as_json() -> None:
    answer = engine_answer([1, 0])
    outputs = {**answer.outputs, "label": np.array([b"\xff"], np.object_)}
    with pytest.raises(InputError, match="output 'label' has strings that are not UTF-8"):
        write_answer(read_request(body(), SERVED), answer._replace(outputs=outputs))


def test_output_size_is_checked_before_outputs_are_computed() -> None:
    request = read_request(body(), SERVED)
    size = check_output_size(request, 10_000, 10_000)
    assert size == 2 * (2 * 4 + 8 + 64)
    with pytest.raises(InputError, match=f"the outputs would have {size} bytes, more than 100"):
        check_output_size(request, 100, 10_000)
    with pytest.raises(InputError, match="request them with binary_data"):
        check_output_size(request, 10_000, 100)
    binary = read_request(body(parameters={"binary_data_output": True}), SERVED)
    assert check_output_size(binary, 10_000, 100) == size


def variable_width_case(binary: bool, *texts: bytes) -> tuple[InferRequest, Answer]:
    """Return an answer with outputs of variable width, and the request for it."""
    outputs = (TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("texts", "BYTES", (-1,)))
    served = dataclasses.replace(SERVED, outputs=outputs)
    request = read_request(body(parameters={"binary_data_output": binary}), served)
    values = {"ids": np.zeros((2, 100), np.int64), "texts": np.array(texts, np.object_)}
    return request, Answer(values, served, 0.0, 0.0, 2)


def test_size_of_variable_width_outputs_is_checked_before_they_are_written() -> None:
    request, computed = variable_width_case(False, b"a", b"b" * 299)
    size = 2 * 100 * 8 + 2 * 4 + 300
    assert check_output_size(request, 10_000, 10_000) < size
    assert check_output_size(request, 10_000, 10_000, computed) == size
    with pytest.raises(InputError, match=f"the outputs would have {size} bytes, more than 1907"):
        check_output_size(request, size - 1, 10_000, computed)
    with pytest.raises(InputError, match="request them with binary_data"):
        check_output_size(request, 10_000, size - 1, computed)
    binary, computed = variable_width_case(True, b"a", b"b" * 299)
    assert check_output_size(binary, 10_000, 100, computed) == size


def test_json_above_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InputError, match="send the values as binary tensors"):
        read_request(b"[" * 2000, SERVED, None, 1000)


@pytest.mark.parametrize("count", [1, 2])
def test_number_of_strings_is_limited_before_they_are_read(count: int) -> None:
    served = model_with_inputs(*(TensorSpec(f"{n}", "BYTES", (-1, -1)) for n in range(count)))
    size = MAX_STRINGS // count + 1
    tensors = [
        {"name": spec.name, "datatype": "BYTES", "shape": [1, size]}
        | {"parameters": {"binary_data_size": 4 * size}}
        for spec in served.inputs
    ]
    head = json.dumps({"inputs": tensors}).encode()
    content = head + bytes(4 * size * count)
    message = f"the inputs have {size * count} strings: send at most {MAX_STRINGS}"
    with pytest.raises(InputError, match=message):
        read_request(content, served, str(len(head)))
