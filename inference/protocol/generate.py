"""Tokens that continue others: POST …/generate and …/generate_stream.

The paths, and that parameters stand beside or below `parameters`, are those of Triton's generate
extension. The model knows tokens, no text: whoever trained it knows which text they are.
"""

from dataclasses import dataclass
from typing import Any, Final

import orjson
from simdjson import Array, Object

from inference.engine.interface import InputError, Sampling, Served
from inference.protocol.numbers import object_of, parse_object
from inference.protocol.request import show

MOST_TOKENS: Final = 65_536
DEFAULT_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Tokens to be continued, and how."""

    id: str
    tokens: tuple[int, ...]
    sampling: Sampling


def read_request(body: bytes) -> GenerateRequest:
    """Read the body of …/generate. Raises InputError."""
    document = parse_object(body)
    identity = document.get("id", "")
    if not isinstance(identity, str):
        raise InputError(f"id is {show(identity)}: it must be a string")
    if "tokens" not in document:
        raise InputError("tokens is missing: it must be a list of whole numbers")
    tokens = _tokens(document["tokens"], "tokens")
    if not tokens:
        raise InputError("tokens is empty: it must have at least one")
    parameters = object_of(document.get("parameters", document), "parameters")
    return GenerateRequest(identity, tokens, _sampling(parameters))


def answer(request: GenerateRequest, served: Served, tokens: list[int]) -> bytes:
    """All that was generated."""
    return orjson.dumps(_head(request, served) | {"tokens": tokens})


def event(request: GenerateRequest, served: Served, index: int, token: int) -> bytes:
    """One token as a server-sent event."""
    return sse(_head(request, served) | {"index": index, "token": token})


def sse(document: dict[str, Any]) -> bytes:
    """An event as the HTML standard describes event streams."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


def _head(request: GenerateRequest, served: Served) -> dict[str, Any]:
    named = {"id": request.id} if request.id else {}
    return {"model_name": served.name, "model_version": served.version, **named}


def _sampling(parameters: Object) -> Sampling:
    return Sampling(
        max_tokens=_whole(parameters, "max_tokens", DEFAULT_TOKENS, 1, MOST_TOKENS),
        temperature=_temperature(parameters),
        top_k=_whole(parameters, "top_k", 0, 0, 2**31 - 1),
        seed=_seed(parameters),
        stop=_tokens(parameters["stop"], "stop") if "stop" in parameters else (),
    )


def _seed(parameters: Object) -> int | None:
    if parameters.get("seed") is None:
        return None
    return _whole(parameters, "seed", 0, 0, 2**63 - 1)


def _temperature(parameters: Object) -> float:
    value = parameters.get("temperature", 0.0)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100:
        return float(value)
    raise InputError(f"temperature is {show(value)}: it must be a number from 0 to 100")


def _whole(parameters: Object, name: str, default: int, least: int, most: int) -> int:
    value = parameters.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise InputError(
            f"{name} is {show(value)}: it must be a whole number from {least} to {most}"
        )
    return value


def _tokens(value: object, field: str) -> tuple[int, ...]:
    if not isinstance(value, Array) or len(value) > 2**20:
        raise InputError(f"{field} must be a list of whole numbers")
    given = value.as_list()
    tokens = tuple(token for token in given if type(token) is int and 0 <= token < 2**63)
    if len(tokens) < len(given):
        raise InputError(f"{field} must have nothing but whole numbers from 0 in it")
    return tokens
