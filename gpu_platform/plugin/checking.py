"""Validation of arguments from programs in other languages. Errors name the invalid key."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from pulumi.errors import InputPropertiesError, InputPropertyErrorDetails
from pulumi.provider.experimental.util import camel_case
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpu_platform.platform_stack import Problem
from gpu_platform.plugin.schema import COMPONENTS
from infra.settings.problems import dotted, rule
from infra.settings.schema import every_key, keys

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], values: Mapping[str, Any], *within: str) -> Model:
    """Validate `values` against `model` and return an instance of the model.

    `within` is the path of `values` in the model.

    Raises:
        InputPropertiesError: If a value is invalid. Pulumi prints the resource, and the key and
            reason of each problem.
    """
    nested: Any = with_integers(values)
    for key in reversed(within):
        nested = {key: nested}
    try:
        return model.model_validate(nested)
    except ValidationError as error:
        raise invalid_properties(
            (_property(model, detail["loc"], len(within)), _reason(model, detail))
            for detail in error.errors(include_url=False)
        ) from None


def unsupported(problems: Iterable[Problem]) -> None:
    """Raise InputPropertiesError if there are problems, whose keys are names of settings."""
    if found := list(problems):
        raise invalid_properties((_in_camel_case(each.key), each.reason) for each in found)


def invalid_properties(problems: Iterable[tuple[str, str]]) -> InputPropertiesError:
    """Return an error that lists the key and reason of each rejected value.

    The key is empty if the reason concerns several arguments. Reasons may name keys of settings.
    """
    found = [(path, _in_camel_case(reason)) for path, reason in problems]
    details: list[InputPropertyErrorDetails] = [
        {"property_path": path, "reason": reason} for path, reason in found if path
    ]
    combined = "; ".join(f"it {reason}" for path, reason in found if not path)
    return InputPropertiesError(combined or "the arguments are not valid", details)


def with_integers(value: Any) -> Any:
    """Return the value with integers restored, because the engine sends 2 as 2.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: with_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_integers(item) for item in value]
    return value


def _property(model: type[BaseModel], location: Sequence[str | int], within: int) -> str:
    """Return the path of an argument, or `name` if the resource's name is not valid.

    The names of the created objects contain the resource's name.
    """
    path = dotted(_schema_location(model, location)[within:])
    return path or ("name" if location and location[-1] == "[key]" else "")


def _reason(model: type[BaseModel], detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "is missing"
    if detail["type"] != "extra_forbidden":
        return rule(detail)
    *path, name = (part for part in detail["loc"] if part != "[key]")
    known = map(camel_case, keys(model, path))
    close = get_close_matches(camel_case(str(name)), known, n=1)
    return f"is not a known argument{f': did you mean {close[0]!r}?' if close else ''}"


def _schema_location(model: type[BaseModel], location: Sequence[str | int]) -> list[str | int]:
    """Return a location in a model, with the names of settings in camel case.

    Keys of mappings, such as the names of variables, are not changed, because the user chose them.
    """
    path = [part for part in location if part != "[key]"]
    return [
        camel_case(part) if isinstance(part, str) and part in keys(model, path[:at]) else part
        for at, part in enumerate(path)
    ]


def _in_camel_case(text: str) -> str:
    """Return the text with the keys in camel case, as in the user's program: `gpusPerNode`."""
    return re.sub(
        r"\b[a-z]+(?:_[a-z]+)+\b",
        lambda found: camel_case(found[0]) if found[0] in _names() else found[0],
        text,
    )


@cache
def _names() -> frozenset[str]:
    """Return the Python names of the arguments of all components, at every level."""
    models = COMPONENTS.values()
    return frozenset().union(*({*every_key(model), *added} for model, added in models))
