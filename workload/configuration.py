"""Configuration types and errors for the training program and the model server.

This module does not import torch.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "bf16", "fp16"]


class ConfigurationError(Exception):
    """The program cannot run with this configuration; the message states what to change."""


def problem_sentences(
    error: ValidationError, written_as: Mapping[str, str] | None = None, known: Collection[str] = ()
) -> list[str]:
    """Return a sentence per error. `written_as` maps field names to the names that users write.

    A name may end with its source, as in `epochs (in run.toml)`. If a setting is unknown, the
    closest match in `known` is suggested.
    """
    details = error.errors(include_url=False)
    # For a list with an invalid element, pydantic also reports that the list is too short.
    lists = {detail["loc"][:-1] for detail in details if len(detail["loc"]) > 1}
    return [
        _sentence(detail, written_as or {}, known)
        for detail in details
        if detail["loc"] not in lists
    ]


def first_problem(error: ValidationError, document: str) -> str:
    """Return the first error as "field: message".

    `document` is used instead of a field name for errors that concern the whole document.
    """
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or document
    return f"{field}: {first['msg']}"


def _sentence(detail: ErrorDetails, written_as: Mapping[str, str], known: Collection[str]) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:
        return message
    first, *rest = (str(part) for part in detail["loc"])
    key, space, source = written_as.get(first, first).partition(" (")
    name = ".".join([key, *rest]) + space + source
    if detail["type"] == "extra_forbidden":
        close = [] if rest else difflib.get_close_matches(first, known, n=1)
        return f"{name} is not a known setting" + (
            f" (did you mean {close[0]!r}?)" if close else ""
        )
    if detail["type"] == "missing":
        return f"{name} is missing"
    return f"{name} is {detail['input']!r}: {message[0].lower()}{message[1:]}"
