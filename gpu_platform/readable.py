"""Readable errors for invalid settings in Python programs, without a traceback."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pulumi
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from infra.settings.problems import PROJECT, describe, dotted


class ArgumentError(pulumi.RunError):
    """Invalid settings. Pulumi prints the message of a RunError without a traceback."""


@cache
def readable(value: Any) -> Any:
    """Return a subclass of a model that raises ArgumentError if its values are invalid.

    Anything other than a model is returned unchanged. Code that uses the original model still gets
    pydantic's ValidationError. Nested models are constructed by pydantic, so the outermost model
    reports all problems.
    """
    if not (isinstance(value, type) and issubclass(value, BaseModel)):
        return value
    model = value

    def construct(self: BaseModel, /, **values: Any) -> None:
        try:
            model.__init__(self, **values)
        except ValidationError as error:
            raise ArgumentError("\n".join(_sentences(model, error))) from None

    # Pydantic must not call this constructor when it validates a model.
    vars(construct)["__pydantic_base_init__"] = True
    parts = {"__init__": construct, "__doc__": model.__doc__, "__module__": model.__module__}
    metaclass: Any = type(model)
    return metaclass(model.__name__, (model,), parts)


def _sentences(model: type[BaseModel], error: ValidationError) -> Iterator[str]:
    name = model.__name__
    sentences = describe(error, model, name)
    for detail, sentence in zip(error.errors(include_url=False), sentences, strict=True):
        if isinstance(detail["input"], pulumi.Output):
            yield _output_problem(name, detail)
        else:
            yield sentence.removeprefix(f"{PROJECT}:")


def _output_problem(name: str, detail: ErrorDetails) -> str:
    key = dotted((name, *detail["loc"]))
    return (
        f"{key} is an output of a resource, but its value is not known when the settings are "
        "checked and the run gets its name: pass a plain value. If it is secret, store it in a "
        "Kubernetes Secret, and name the Secret in env_from or volumes."
    )
