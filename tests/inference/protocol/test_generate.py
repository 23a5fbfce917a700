import json
from typing import Any

import pytest

from inference.engine.interface import InputError, Sampling
from inference.protocol.generate import answer, event, read_request
from tests.inference.protocol.models import SERVED


def test_parameters_stand_beside_the_tokens_or_below_parameters() -> None:
    sampling = {"max_tokens": 3, "temperature": 0.5, "top_k": 4, "seed": 5, "stop": [6]}
    expected = Sampling(max_tokens=3, temperature=0.5, top_k=4, seed=5, stop=(6,))
    for document in (
        {"id": "a", "tokens": [1, 2], **sampling},
        {"id": "a", "tokens": [1, 2], "parameters": sampling},
    ):
        request = read_request(json.dumps(document).encode())
        assert (request.id, request.tokens, request.sampling) == ("a", (1, 2), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "tokens must be a list"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": [1.0]}, "tokens must have nothing but whole numbers"),
        ({"tokens": [True]}, "tokens must have nothing but whole numbers"),
        ({"tokens": [-1]}, "tokens must have nothing but whole numbers"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": True}, "max_tokens is true"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": "hot"}, 'temperature is "hot"'),
        ({"seed": -1}, "seed is -1"),
        ({"stop": 5}, "stop must be a list"),
        ({"parameters": []}, "parameters must be an object"),
        ({"id": 5}, "id is 5"),
    ],
)
def test_a_field_that_cannot_be_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_request(json.dumps({"tokens": [1]} | change).encode())


def test_a_token_is_an_event_and_all_are_an_answer() -> None:
    request = read_request(b'{"tokens": [1], "id": "a"}')
    head = {"model_name": "digits", "model_version": "abababababab", "id": "a"}
    told = event(request, SERVED, 2, 7)
    assert told.startswith(b"data: ")
    assert told.endswith(b"\n\n")
    assert json.loads(told[6:]) == {**head, "index": 2, "token": 7}
    assert json.loads(answer(request, SERVED, [7, 8])) == {**head, "tokens": [7, 8]}
