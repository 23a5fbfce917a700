"""Pulumi policies that are created from rules.

A resource's properties are converted to plain data once for all rules. Stack rules receive the
resources as the program declares them, not as the cluster returns them: the cluster adds values
that the program does not set, such as the number of replicas of an autoscaled Deployment.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    PolicyComplianceFramework,
    PolicyConfigSchema,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy import Severity as PulumiSeverity

from kube.workloads import WORKLOAD_KINDS
from policies.catalogue import RULES
from policies.configuration import (
    ALL_DISABLED,
    CLUSTER,
    KIND_RECORDS,
    KNOWN_NAMES,
    SYSTEM,
    cluster_settings,
    configured_kinds,
    system_workloads,
    unknown_rules,
)
from policies.exemptions import KEY, REJECTED, UNUSED, USED, Exemption, Exemptions
from policies.properties import editable, plain, unwrapped
from policies.resources import Resource
from policies.rule import ConfigurationError, Rule, RuleConfig, Violation, failure
from policies.rules import manifests
from policies.views import Stack, View
from policies.violations import apply_edits

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


@dataclass(frozen=True)
class _ExemptedViolation:
    """A violation, and the exemption that covers it."""

    rule: str
    violation: Violation
    exemption: Exemption


class _ResourceState(threading.local):
    """Thread-local state of a resource check. The engine may check several resources at once."""

    def __init__(self) -> None:
        self.properties: Any = None
        self.view: View | None = None
        self.exempted: list[_ExemptedViolation] = []


class Binding:
    """Adapter from rules to the policy SDK. All rules share one view of each resource."""

    def __init__(
        self, exemptions: Exemptions | None = None, rules: Sequence[Rule[Any]] = RULES
    ) -> None:
        self._names = {rule.name for rule in rules}
        self._declared: dict[str, View] = {}
        self._state = _ResourceState()
        self._stack = Stack([])
        self._stack_properties: list[Any] = []
        self._misconfigured: set[str] = set()
        self._exemptions = exemptions or Exemptions()
        self._enabled = self._names
        self._existing: tuple[str, ...] = ()
        self._shared: dict[str, Any] = {}
        self._kinds = WORKLOAD_KINDS
        self._problems = {REJECTED.name: self._exemptions.rejected}

    def configure(self, config: Mapping[str, Any], disabled: Collection[str] = ()) -> None:
        """Read the pack-wide settings and the exemptions, and find unknown rule names.

        Raise `ConfigurationError` if all rules are disabled.
        """
        if self._names <= set(disabled):
            raise ConfigurationError(f"the pack's configuration is invalid: {ALL_DISABLED}")
        self._enabled = self._names - set(disabled)
        self._existing = _existing_objects(config)
        self._exemptions = Exemptions(config.get(KEY), self._names)
        values = plain(config)
        self._problems = {KNOWN_NAMES.name: unknown_rules(config, self._names)}
        self._problems[REJECTED.name] = self._exemptions.rejected
        with self._reporting(SYSTEM):
            self._shared["system_workloads"] = system_workloads(values)
        with self._reporting(CLUSTER):
            self._shared |= cluster_settings(values)
        with self._reporting(KIND_RECORDS):
            self._kinds = configured_kinds(values)

    @contextmanager
    def _reporting(self, rule: Rule[Any]) -> Iterator[None]:
        """Catch configuration errors, and store them for the policy that reports them."""
        try:
            yield
        except ConfigurationError as error:
            self._problems[rule.name] = [str(error)]

    def _shared_settings(self) -> dict[str, Any]:
        return self._shared

    def policies(self, rules: Iterable[Rule[Any]]) -> list[Policy]:
        """Return one policy for each rule."""
        return [
            self._stack_policy(rule) if rule.scope == "stack" else self._resource_policy(rule)
            for rule in rules
        ]

    def configuration_policies(self) -> list[Policy]:
        """Return the policies about the configuration itself.

        These policies report which exemptions were used, so they must follow the policies for
        rules.
        """
        return [
            *(
                EverywherePolicy(partial(self._report_problems, rule), **metadata(rule))
                for rule in (KNOWN_NAMES, SYSTEM, CLUSTER, KIND_RECORDS, REJECTED)
            ),
            EverywherePolicy(self._report_used, **metadata(USED)),
            EverywherePolicy(self._report_unused, **metadata(UNUSED)),
        ]

    def _report_problems(self, rule: Rule[Any], args: Any, report: ReportViolation) -> None:
        for problem in self._problems.get(rule.name, ()) if is_root(args) else ():
            report(f"{problem}\n{rule.remediation}", None)

    def _report_used(self, args: Any, report: ReportViolation) -> None:
        exempted, self._state.exempted = self._state.exempted, []
        for item in exempted:
            violation, resource = item.violation, item.violation.resource
            if resource is not None:
                title = f"{resource.title}: {item.exemption.text(item.rule)}"
                report(f"{title}\nExempted: {violation.text}", resource.urn)

    def _report_unused(self, args: Any, report: ReportViolation) -> None:
        if isinstance(args, StackValidationArgs):
            for problem in self._exemptions.unused(self._enabled):
                report(f"{problem}\n{UNUSED.remediation}", None)

    def _resource_policy(self, rule: Rule[Any]) -> Policy:
        configure = RuleSettings(rule, self._shared_settings)

        def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
            def evaluate() -> Iterable[Violation]:
                return rule.violations(self._view(args), configure(args.get_config()))

            self._report_all(rule, evaluate, report, args.name)

        def remediate(args: ResourceValidationArgs) -> Mapping[str, Any] | None:
            try:
                view = View(self._resource(args))
                if self._exemptions.covers(rule.name, view.resource):
                    return None
                edits = rule.edits(view, configure(args.get_config()))
                properties = editable(args.props)
                apply_edits(properties, edits, unwrapped)
            except Exception:
                # The engine still calls `validate`, which reports the violations.
                return None
            return properties if edits else None

        return ResourceValidationPolicy(
            validate=validate,
            remediate=remediate if rule.remedy else None,  # type: ignore[arg-type] # may be sync
            **metadata(rule),
        )

    def _stack_policy(self, rule: Rule[Any]) -> Policy:
        configure = RuleSettings(rule, self._shared_settings)

        def validate(args: StackValidationArgs, report: ReportViolation) -> None:
            def evaluate() -> Iterable[Violation]:
                stack = self._stack_of(args)
                return rule.stack_violations(stack, configure(args.get_config()))

            self._report_all(rule, evaluate, report, "the stack")

        return StackValidationPolicy(validate=validate, **metadata(rule))

    def _report_all(
        self,
        rule: Rule[Any],
        evaluate: Callable[[], Iterable[Violation]],
        report: ReportViolation,
        subject: str,
    ) -> None:
        """Report every violation. A failure of the rule itself also counts as a violation."""
        try:
            for violation in evaluate():
                resource = violation.resource
                if exemption := self._exemptions.covering(rule.name, resource):
                    self._state.exempted.append(_ExemptedViolation(rule.name, violation, exemption))
                else:
                    report(rule.describe(violation), resource.urn if resource else None)
        except ConfigurationError as error:
            # Report once: the problem is the same for every resource.
            if rule.name not in self._misconfigured:
                self._misconfigured.add(rule.name)
                report(str(error), None)
        except (Exception, SystemExit) as error:
            report(f"{subject}: {failure(rule, error)}", None)

    def _view(self, args: ResourceValidationArgs) -> View:
        state = self._state
        if state.view is None or state.properties is not args.props:
            state.view = View(self._resource(args))
            state.properties = args.props
            self._declared[args.urn] = state.view
        return state.view

    def _stack_of(self, args: StackValidationArgs) -> Stack:
        properties = [item.props for item in args.resources]
        known = self._stack_properties
        same = len(properties) == len(known) and all(map(operator.is_, properties, known))
        if not same or not properties:
            declared = self._declared
            views = [
                declared.get(item.urn) or View(self._resource(item)) for item in args.resources
            ]
            self._stack, self._stack_properties = Stack(views), properties
        return self._stack

    def _resource(self, args: Any) -> Resource:
        """Return the resource that the SDK's arguments describe."""
        return Resource(
            args.resource_type,
            plain(args.props),
            name=args.name,
            urn=args.urn,
            protected=bool(args.opts and args.opts.protect),
            existing=self._existing,
            kinds=self._kinds,
        )


def _existing_objects(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the configured address patterns of existing objects.

    If the value is not a list, return an empty tuple; the `manifest-readable` rule reports the
    error.
    """
    names = (config.get(manifests.NAME) or {}).get("existingObjects")
    return tuple(str(name) for name in names) if isinstance(names, list) else ()
