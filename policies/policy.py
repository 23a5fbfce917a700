"""Parts of a policy that do not depend on resources: settings, schema and metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    PolicyComplianceFramework,
    PolicyConfigSchema,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationPolicy,
)
from pulumi_policy import Severity as PulumiSeverity

from policies.properties import plain
from policies.rule import Rule, RuleConfig

_ROOT = "pulumi:pulumi:Stack"


def is_root(args: Any) -> bool:
    """Return whether the arguments describe the stack's root resource."""
    return isinstance(args, ResourceValidationArgs) and args.resource_type == _ROOT


class EverywherePolicy(ResourceValidationPolicy, StackValidationPolicy):
    """A policy that is called for every resource and for the stack."""

    def __init__(self, evaluate: Callable[[Any, ReportViolation], None], **metadata: Any) -> None:
        # The constructors of both base classes require a function and call each other.
        Policy.__init__(self, **metadata)
        self._evaluate = evaluate

    def validate(self, args: Any, report_violation: ReportViolation) -> None:
        """Call `evaluate` with the arguments of the resource or the stack."""
        self._evaluate(args, report_violation)

    def has_validation(self) -> bool:
        """Return True: the policy validates resources and the stack."""
        return True

    def has_remediation(self) -> bool:
        """Return False: the policy changes nothing."""
        return False


class RuleSettings:
    """Settings of a rule, validated once, since they are the same for every resource."""

    def __init__(self, rule: Rule[Any], shared: Callable[[], dict[str, Any]]) -> None:
        self._rule = rule
        self._shared = shared
        self._values: Mapping[str, Any] | None = None
        self._config: RuleConfig

    def __call__(self, values: Mapping[str, Any]) -> RuleConfig:
        """Return the validated configuration for the values that the engine passes."""
        if values != self._values:
            self._config = self._rule.configure(plain(values), self._shared())
            self._values = values
        return self._config


@cache
def config_schema(config: type[RuleConfig]) -> PolicyConfigSchema | None:
    """Return the JSON schema with which the engine validates a rule's configuration."""
    properties = config.model_json_schema(by_alias=True).get("properties", {})
    for schema in properties.values():
        schema.pop("title", None)
        choices = [choice for choice in schema.pop("anyOf", []) if choice.get("type") != "null"]
        if choices:
            schema.update(choices[0])
        if schema.get("default", ...) is None:
            del schema["default"]
    return PolicyConfigSchema(properties=properties) if properties else None


def metadata(rule: Rule[Any]) -> dict[str, Any]:
    """Return the SDK arguments that describe a policy."""
    config: type[RuleConfig] = rule.config
    return {
        "name": rule.name,
        "description": rule.description,
        "enforcement_level": EnforcementLevel(rule.level.value),
        "severity": PulumiSeverity(rule.severity.value),
        "config_schema": config_schema(config),
        "remediation_steps": rule.remediation,
        "tags": [rule.topic],
        "display_name": rule.title,
        "framework": _framework(rule),
        "url": rule.page,
    }


def _framework(rule: Rule[Any]) -> PolicyComplianceFramework | None:
    """Return the rule's first control, because the SDK supports only one."""
    for control in rule.controls[:1]:
        framework = control.framework
        return PolicyComplianceFramework(
            framework.name, framework.version, control.control, framework.url
        )
    return None
