"""Rules: metadata, configuration and a function that yields violations.

Rules do not depend on where manifests define their pods. A rule has one of five scopes:

- `pod_rule`: called for every pod specification, regardless of its path;
- `workload_rule`: called for every resource that runs pods;
- `resource_rule`: called for every resource;
- `release_rule`: called for every resource, such as a Helm release, that deploys objects that are
  hidden from rules;
- `stack_rule`: called once with all resources of the stack.

Rule modules import the decorators and types for rules from here. This module is independent of
Pulumi; `policies.binding` turns each rule into a policy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NotRequired, TypedDict, TypeVar, Unpack

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from policies.cel import Cel
from policies.controllers import Workload
from policies.frameworks import Reference
from policies.resources import Resource
from policies.views import Scope, Stack, View
from policies.violations import Edit as Edit
from policies.violations import Violation as Violation
from policies.violations import show as show
from policies.workloads import Pod

_ACRONYMS = ("dns", "gpu", "shm")
_PAGE = Path(__file__).parent.parent / "docs" / "policies.md"
PAGE_VARIABLE = "GPU_POLICIES_DOCS"
"""Environment variable with the URL at which docs/policies.md is published."""


def section(name: str) -> str | None:
    """Return the link to a section of the published or local docs/policies.md, if there is one."""
    page = os.environ.get(PAGE_VARIABLE) or (_PAGE.as_uri() if _PAGE.exists() else None)
    return page and f"{page}#{name}"


class Severity(Enum):
    """Severity of a violation."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Level(Enum):
    """Effect of a violation, which the configuration can override."""

    ADVISORY = "advisory"
    MANDATORY = "mandatory"


class RuleConfig(BaseModel):
    """Base class of rule configurations: immutable, camelCase in files, no unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class ConfigurationError(ValueError):
    """Invalid configuration; the message states the key, the value and the allowed values."""


T = TypeVar("T")
C = TypeVar("C", bound=RuleConfig)


def validated(config: type[C], name: str, values: Any) -> C:
    """Validate settings; raise a `ConfigurationError` that lists all problems."""
    try:
        return config.model_validate(values)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in (name, *problem['loc']))}: "
            + (
                "not set; write a value"
                if problem["type"] == "missing"
                else f"found {problem['input']!r}; {problem['msg'].lower()}"
            )
            for problem in error.errors(include_url=False)
        ]
        text = "the pack's configuration is invalid: " + "; ".join(problems)
        raise ConfigurationError(text) from error


@dataclass(frozen=True)
class Rule(Generic[C]):
    """A rule of the pack.

    `check` and `remedy` are called with the configuration and, depending on the scope, a pod, a
    workload, a resource or the stack. `about_pulumi` marks a rule that applies only to manifests
    that Pulumi deploys. `admission` is the same rule in CEL, for rules that need only a single
    object. `references` are controls of security frameworks (see `policies.frameworks`), and `url`
    links to the rule's documentation.
    """

    name: str
    topic: str
    description: str
    severity: Severity
    level: Level
    remediation: str
    scope: Scope
    config: type[C]
    check: Callable[[Any, C], Iterable[Violation]]
    remedy: Callable[[Any, C], Iterable[Edit]] | None = None
    references: Sequence[str] = ()
    url: str | None = None
    about_pulumi: bool = False
    admission: Cel | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if a reference names an unknown control."""
        try:
            _ = self.controls
        except ValueError as error:
            raise ValueError(f"{self.name}.references: {error}") from None

    @cached_property
    def controls(self) -> list[Reference]:
        """Controls of security frameworks that the rule implements."""
        return [Reference.parse(text) for text in self.references]

    @cached_property
    def _has_system_workloads(self) -> bool:
        return "system_workloads" in self.config.model_fields

    @property
    def title(self) -> str:
        """The name in words, such as `GPU limit present`."""
        words = [word.upper() if word in _ACRONYMS else word for word in self.name.split("-")]
        text = " ".join(words)
        return text[:1].upper() + text[1:]

    @property
    def page(self) -> str | None:
        """Link to the rule's documentation, if there is one."""
        is_built_in = self.check.__module__.startswith(f"{__package__}.")
        return section(self.name) if is_built_in and self.url is None else self.url

    @property
    def reason(self) -> str:
        """Reason for the rule: the docstring of its function."""
        return " ".join((self.check.__doc__ or "").split())

    def configure(self, values: Mapping[str, Any], shared: Mapping[str, Any] | None = None) -> C:
        """Validate the rule's configuration; raise `ConfigurationError` if it is invalid.

        `shared` contains pack-wide settings, which the rule's settings extend.
        """
        config = validated(self.config, self.name, values)
        merged = {
            name: _merge(value, getattr(config, name), name in config.model_fields_set)
            for name, value in (shared or {}).items()
            if name in self.config.model_fields
        }
        return config.model_copy(update=merged) if merged else config

    def describe(self, violation: Violation) -> str:
        """Return the message for a violation: resource, path, value and correction."""
        subject = violation.resource.title if violation.resource else "The stack"
        return f"{subject}: {violation.text}\n{self.remediation}"

    def violations(self, view: View, config: C) -> Iterator[Violation]:
        """Yield the violations of one resource, without duplicates."""
        parts = self._parts(view, config)
        found = (violation for part in parts for violation in self.check(part, config))
        yield from _distinct(replace(violation, resource=view.resource) for violation in found)

    def stack_violations(self, stack: Stack, config: C) -> Iterator[Violation]:
        """Yield the violations of a stack, without duplicates."""
        yield from _distinct(self.check(stack, config))

    def _parts(self, view: View, config: C) -> list[Any]:
        """Return the parts to check, such as pods, without the parts of system workloads."""
        # Reading a missing attribute of a pydantic model takes longer than most rules.
        system = getattr(config, "system_workloads", ()) if self._has_system_workloads else ()
        if not system:
            return view.parts(self.scope)
        if view.resource.is_named(system):
            return []
        parts = view.parts(self.scope)
        return [part for part in parts if not getattr(part, "resource", part).is_named(system)]

    def edits(self, view: View, config: C) -> list[Edit]:
        """Return the edits that the remediation makes to one resource."""
        if self.remedy is None:
            return []
        return [edit for part in self._parts(view, config) for edit in self.remedy(part, config)]


def _distinct(violations: Iterable[Violation]) -> Iterator[Violation]:
    """Yield each violation once. Several pods may inherit the same value, as in Argo workflows."""
    seen: dict[tuple[str, int, int], Violation] = {}
    for violation in violations:
        key = (violation.text, id(violation.node.value), id(violation.resource))
        if seen.setdefault(key, violation) is violation:
            yield violation


def _merge(shared: Any, rule_setting: Any, is_set: bool) -> Any:
    """Return a pack-wide setting, extended by the rule's own setting if the rule sets one."""
    if not is_set:
        return shared
    return (
        {**shared, **rule_setting} if isinstance(rule_setting, dict) else [*shared, *rule_setting]
    )


def failure(rule: Rule[Any], error: BaseException) -> str:
    """Return the message that is reported if a rule itself fails."""
    return (
        f"the rule {rule.name} itself failed and could not complete its check "
        f"({type(error).__name__}: {error}); this counts as a violation"
    )


class _Metadata(TypedDict, Generic[C]):
    name: str
    description: str
    severity: Severity
    level: Level
    remediation: str
    config: type[C]
    references: NotRequired[Sequence[str]]
    url: NotRequired[str]
    about_pulumi: NotRequired[bool]
    admission: NotRequired[Cel]


class _Decorator(Generic[T]):
    """Decorator that turns functions into rules of one scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __call__(
        self,
        *,
        remedy: Callable[[T, C], Iterable[Edit]] | None = None,
        **metadata: Unpack[_Metadata[C]],
    ) -> Callable[[Callable[[T, C], Iterable[Violation]]], Rule[C]]:
        """Return a decorator that turns a function into a rule."""

        def make(check: Callable[[T, C], Iterable[Violation]]) -> Rule[C]:
            topic = check.__module__.rpartition(".")[2]
            return Rule(topic=topic, scope=self._scope, check=check, remedy=remedy, **metadata)

        return make


pod_rule = _Decorator[Pod]("pod")
workload_rule = _Decorator[Workload]("workload")
resource_rule = _Decorator[Resource]("resource")
release_rule = _Decorator[Resource]("release")
stack_rule = _Decorator[Stack]("stack")


def declared_rule(
    *,
    name: str,
    description: str,
    reason: str,
    severity: Severity,
    level: Level,
    remediation: str,
    config: type[C],
) -> Rule[C]:
    """Return a rule whose `check` yields nothing.

    Violations are reported by the code that loads the configuration, applies exemptions or
    simulates the scheduler.
    """

    def check(*_: Any) -> Iterable[Violation]:
        return ()

    check.__doc__ = reason
    return Rule(
        name, "configuration", description, severity, level, remediation, "stack", config, check
    )
