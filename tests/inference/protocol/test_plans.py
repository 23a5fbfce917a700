import dataclasses
import json

import numpy as np
import pytest

from inference.engine.interface import Answer, InputError, TensorSpec
from inference.protocol.plans import LONGEST, MOST, Plan, Plans
from inference.protocol.v2_json import read_request, write_answer
from tests.inference.protocol.models import SERVED

VALUES = np.arange(8, dtype="<f4") / 8


def request(size: int = 32, **more: object) -> tuple[bytes, str]:
    tensor = {
        "name": "images",
        "shape": [2, 1, 2, 2],
        "datatype": "FP32",
        "parameters": {"binary_data_size": size},
    }
    head = json.dumps({"inputs": [tensor]} | more).encode()
    return head, str(len(head))


def test_the_same_json_again_is_read_with_the_values_that_follow_it() -> None:
    head, length = request(id="7", parameters={"timeout": 5000})
    first = read_request(head + VALUES.tobytes(), SERVED, length)
    second = read_request(head + VALUES[::-1].tobytes(), SERVED, length)
    assert first.inputs["images"].ravel().tolist() == VALUES.tolist()
    assert second.inputs["images"].ravel().tolist() == VALUES[::-1].tolist()
    assert (second.id, second.timeout, second.outputs) == (first.id, first.timeout, first.outputs)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (VALUES[:5].tobytes(), "20 bytes are left"),
        (VALUES.tobytes() + b"1234", "4 bytes behind the JSON"),
        (np.full(8, np.nan, "<f4").tobytes(), "number"),
    ],
)
def test_values_that_do_not_fit_are_refused_the_second_time_as_well(
    values: bytes, message: str
) -> None:
    head, length = request()
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            read_request(head + values, SERVED, length)
        read_request(head + VALUES.tobytes(), SERVED, length)


def test_another_model_reads_the_same_json_anew() -> None:
    head, length = request()
    read_request(head + VALUES.tobytes(), SERVED, length)
    other = dataclasses.replace(SERVED, inputs=(TensorSpec("images", "FP32", (-1, 3, 2, 2)),))
    with pytest.raises(InputError, match="shape"):
        read_request(head + VALUES.tobytes(), other, length)
    read_request(head + VALUES.tobytes(), SERVED, length)


def test_few_and_short_ones_are_kept() -> None:
    plans, plan = Plans(), Plan("", (), (), None, SERVED)
    plans.keep(b" " * (LONGEST + 1), plan)
    assert plans.get(b" " * (LONGEST + 1), SERVED) is None
    for number in range(MOST + 1):
        plans.keep(b"%d" % number, plan)
    assert plans.get(b"0", SERVED) is None
    assert plans.get(b"%d" % MOST, SERVED) is plan


def test_answers_to_the_same_json_begin_alike_whatever_their_values() -> None:
    head, length = request(outputs=[{"name": "class", "parameters": {"binary_data": True}}])
    for values in (np.array([3, 1]), np.array([0, 2])):
        asked = read_request(head + VALUES.tobytes(), SERVED, length)
        answer = Answer({"class": values}, SERVED, 0.0, 0.0, 2)
        body, json_length = write_answer(asked, answer)
        assert json.loads(body[:json_length])["outputs"][0]["shape"] == [2]
        assert np.frombuffer(body[json_length:], "<i8").tolist() == values.tolist()
    assert asked.plan is not None
    assert len(asked.plan.heads) == 1


def test_an_answer_of_another_model_begins_with_its_own_version() -> None:
    head, length = request(outputs=[{"name": "class", "parameters": {"binary_data": True}}])
    asked = read_request(head + VALUES.tobytes(), SERVED, length)
    other = dataclasses.replace(SERVED, name="other")
    for served in (SERVED, other, SERVED):
        body, json_length = write_answer(asked, Answer({"class": np.ones(2, int)}, served, 0, 0, 2))
        assert json.loads(body[:json_length])["model_name"] == served.name
