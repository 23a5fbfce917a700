"""Evaluation of manifests without Pulumi, with the same rules as the pack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kube.workloads import WORKLOAD_KINDS, Registry
from policies import exemptions
from policies.configuration import Configuration
from policies.documents import Document
from policies.resources import Resource
from policies.rule import Level, Rule, RuleConfig, Severity, Violation, failure
from policies.values import Key
from policies.views import Stack, View


@dataclass(frozen=True)
class Finding:
    """An entry in a report. `document` is None if the finding is not about a single object."""

    rule: str
    mandatory: bool
    severity: Severity
    message: str
    remediation: str
    field: str = ""
    resource: Resource | None = None
    document: Document | None = None
    steps: tuple[Key, ...] = ()


def evaluate(
    documents: Sequence[Document], configuration: Configuration, *, whole_stack: bool = True
) -> list[Finding]:
    """Return the findings about the documents and the stack.

    The findings are sorted by subject: rejected exemptions, objects (in the order of the
    documents), the stack, and unused exemptions. Unless the documents are the whole stack, rules
    about the stack are skipped. Rules about Pulumi itself are always skipped.
    """
    granted = configuration.exemptions
    found = [_configuration_finding(exemptions.REJECTED, problem) for problem in granted.rejected]
    views = [View(resource_of(document.manifest, configuration.kinds)) for document in documents]
    origin = {id(view.resource): document for view, document in zip(views, documents, strict=True)}
    rules = applicable_rules(configuration, whole_stack=whole_stack)
    for view in views:
        for rule, mandatory, config in rules:
            if rule.scope != "stack":
                violations = _with_rule_failure(rule, rule.violations(view, config), view.resource)
                found += _findings(violations, rule, mandatory, configuration, origin)
    stack = Stack(views)
    for rule, mandatory, config in rules:
        if rule.scope == "stack":
            violations = _with_rule_failure(rule, rule.stack_violations(stack, config), None)
            found += _findings(violations, rule, mandatory, configuration, origin)
    # If only part of a stack is evaluated, another part may need the exemption.
    unused = granted.unused([rule.name for rule, _, _ in rules]) if whole_stack else ()
    return [*found, *(_configuration_finding(exemptions.UNUSED, problem) for problem in unused)]


def applicable_rules(
    configuration: Configuration, *, whole_stack: bool
) -> list[tuple[Rule[Any], bool, RuleConfig]]:
    """Return the rules that apply without Pulumi; without `whole_stack`, omit stack rules."""
    return [
        entry
        for entry in configuration.rules
        if not entry[0].about_pulumi and (whole_stack or entry[0].scope != "stack")
    ]


def resource_of(manifest: dict[str, Any], kinds: Registry = WORKLOAD_KINDS) -> Resource:
    """Return the resource that rules receive for a manifest."""
    token = f"kubernetes:{manifest['apiVersion']}:{manifest['kind']}"
    return Resource(token, manifest, kinds=kinds)


def _with_rule_failure(
    rule: Rule[Any], violations: Iterable[Violation], resource: Resource | None
) -> Iterator[Violation | str]:
    """Yield the violations and, if the rule itself fails, a message about the failure."""
    try:
        yield from violations
    except (Exception, SystemExit) as error:
        subject = resource.title if resource is not None else "the stack"
        yield f"{subject}: {failure(rule, error)}"


def _findings(
    violations: Iterable[Violation | str],
    rule: Rule[Any],
    mandatory: bool,
    configuration: Configuration,
    origin: dict[int, Document],
) -> Iterator[Finding]:
    """Yield a finding for each violation. An exempted violation is reported as an exemption."""
    for violation in violations:
        if isinstance(violation, str):
            yield Finding(rule.name, mandatory, rule.severity, violation, rule.remediation)
            continue
        resource = violation.resource
        title = resource.title if resource is not None else "The stack"
        location: dict[str, Any] = {
            "field": violation.node.path,
            "resource": resource,
            "document": origin.get(id(resource)),
            "steps": violation.node.steps,
        }
        exemption = configuration.exemptions.covering(rule.name, resource)
        if exemption is None:
            message = f"{title}: {violation.text}"
            yield Finding(
                rule.name, mandatory, rule.severity, message, rule.remediation, **location
            )
        else:
            message = f"{title}: {exemption.text(rule.name)}. Exempted: {violation.text}"
            used = exemptions.USED
            yield Finding(used.name, False, rule.severity, message, used.remediation, **location)


def _configuration_finding(rule: Rule[Any], problem: str) -> Finding:
    """Return a finding about the configuration."""
    mandatory = rule.level is Level.MANDATORY
    return Finding(rule.name, mandatory, rule.severity, problem, rule.remediation)
