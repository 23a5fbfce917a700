"""Makes Pulumi policies of rules.

A resource's properties are converted to plain data once and judged by all rules. Stack rules get
the resources as they were declared, not as the cluster answered: an autoscaled Deployment comes
back with a number of replicas that nobody wrote.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    PolicyConfigSchema,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy import Severity as PulumiSeverity
from pydantic import ValidationError

from policies.remediation import apply_edits, editable
from policies.resources import Resource
from policies.rule import Rule, RuleConfig, Violation
from policies.values import plain
from policies.views import Stack, View


class ConfigurationError(ValueError):
    """A rule's configuration is wrong; the text names key, value and what is allowed."""


class Binding:
    """Binds rules to the policy SDK, sharing views between them."""

    def __init__(self) -> None:
        self._declared: dict[str, View] = {}
        self._latest = threading.local()
        self._stack = Stack([])

    def policies(self, rules: Iterable[Rule[Any]]) -> list[Policy]:
        """One policy for each rule."""
        return [
            self._stack_policy(rule) if rule.scope == "stack" else self._resource_policy(rule)
            for rule in rules
        ]

    def _resource_policy(self, rule: Rule[Any]) -> Policy:
        configure = _Configuration(rule)

        def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
            def judge() -> Iterable[Violation]:
                return rule.violations(self._view(args), configure(args.get_config()))

            _report_all(rule, judge, report, args.name)

        def remediate(args: ResourceValidationArgs) -> Mapping[str, Any] | None:
            try:
                view = View(_resource(args))
                edits = rule.edits(view, configure(args.get_config()))
                properties = editable(args.props)
                apply_edits(properties, edits)
            except Exception:
                # The validation that follows reports what is still wrong, this failure included.
                return None
            return properties if edits else None

        return ResourceValidationPolicy(
            validate=validate,
            remediate=remediate if rule.remedy else None,  # type: ignore[arg-type] # may be sync
            **_metadata(rule),
        )

    def _stack_policy(self, rule: Rule[Any]) -> Policy:
        configure = _Configuration(rule)

        def validate(args: StackValidationArgs, report: ReportViolation) -> None:
            def judge() -> Iterable[Violation]:
                stack = self._stack_of(args)
                return rule.check(stack, configure(args.get_config()))

            _report_all(rule, judge, report, "the stack")

        return StackValidationPolicy(validate=validate, **_metadata(rule))

    def _view(self, args: ResourceValidationArgs) -> View:
        if getattr(self._latest, "properties", None) is not args.props:
            view = View(_resource(args))
            self._declared[args.urn] = view
            self._latest.properties, self._latest.view = args.props, view
        latest: View = self._latest.view
        return latest

    def _stack_of(self, args: StackValidationArgs) -> Stack:
        views = [self._declared.get(item.urn) or View(_resource(item)) for item in args.resources]
        if self._stack.views != views:
            self._stack = Stack(views)
        return self._stack


class _Configuration:
    """Validates a rule's configuration once, since it is the same for every resource."""

    def __init__(self, rule: Rule[Any]) -> None:
        self._rule = rule
        self._values: dict[str, Any] | None = None
        self._config: RuleConfig

    def __call__(self, values: Mapping[str, Any]) -> RuleConfig:
        given = plain(values)
        if given != self._values:
            try:
                self._config = self._rule.configure(given)
            except ValidationError as error:
                raise ConfigurationError(_explain(self._rule, error)) from error
            self._values = given
        return self._config


def _explain(rule: Rule[Any], error: ValidationError) -> str:
    problems = [
        f"{rule.name}.{'.'.join(str(part) for part in problem['loc'])}: "
        f"found {problem['input']!r}; {problem['msg'].lower()}"
        for problem in error.errors(include_url=False)
    ]
    return "the pack's configuration is wrong: " + "; ".join(problems)


def _resource(args: Any) -> Resource:
    """The plain view of a resource, from the arguments of a validation or from a stack's list."""
    return Resource(
        args.resource_type,
        plain(args.props),
        name=args.name,
        urn=args.urn,
        protected=bool(args.opts and args.opts.protect),
    )


def _report_all(
    rule: Rule[Any],
    judge: Callable[[], Iterable[Violation]],
    report: ReportViolation,
    subject: str,
) -> None:
    """Reports every violation; a failure of the rule itself is one too."""
    try:
        for violation in judge():
            resource = violation.resource
            report(describe(rule, violation), resource.urn if resource is not None else None)
    except ConfigurationError as error:
        report(str(error), None)
    except Exception as error:
        report(
            f"{subject}: the rule {rule.name} failed on it and could not judge it "
            f"({type(error).__name__}: {error}); this counts as a violation",
            None,
        )


def describe(rule: Rule[Any], violation: Violation) -> str:
    """The message of a violation: resource, place, what was found and what to write."""
    subject = violation.resource.title if violation.resource else "The stack"
    return f"{subject}: {violation.text}\n{rule.remediation}"


def config_schema(config: type[RuleConfig]) -> PolicyConfigSchema | None:
    """A configuration as the JSON schema that the engine checks configuration with."""
    properties = config.model_json_schema(by_alias=True).get("properties", {})
    for schema in properties.values():
        schema.pop("title", None)
        choices = [choice for choice in schema.pop("anyOf", []) if choice.get("type") != "null"]
        if choices:
            schema.update(choices[0])
        if schema.get("default", ...) is None:
            del schema["default"]
    return PolicyConfigSchema(properties=properties) if properties else None


def _metadata(rule: Rule[Any]) -> dict[str, Any]:
    return {
        "name": rule.name,
        "description": rule.description,
        "enforcement_level": EnforcementLevel(rule.level.value),
        "severity": PulumiSeverity(rule.severity.value),
        "config_schema": config_schema(rule.config),
        "remediation_steps": rule.remediation,
        "tags": [rule.topic],
    }
