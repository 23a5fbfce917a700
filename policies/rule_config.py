"""Configuration of rules: its base class, and the errors in it."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel


class RuleConfig(BaseModel):
    """Base of every rule's configuration: immutable, camelCase outside, no unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class ConfigurationError(ValueError):
    """A rule's configuration is wrong; the message names key, value and what is allowed."""


C = TypeVar("C", bound=RuleConfig)


def validated(config: type[C], name: str, values: Any) -> C:
    """Validate settings; raise `ConfigurationError` with every problem."""
    try:
        return config.model_validate(values)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in (name, *problem['loc']))}: "
            f"found {problem['input']!r}; {problem['msg'].lower()}"
            for problem in error.errors(include_url=False)
        ]
        text = "the pack's configuration is wrong: " + "; ".join(problems)
        raise ConfigurationError(text) from error
