"""Evaluation of rules as in the Pulumi engine: policies receive the SDK's proxies."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pulumi_policy import (
    PolicyResource,
    PolicyResourceOptions,
    ResourceValidationArgs,
    StackValidationArgs,
    proxy,
)
from pulumi_policy.deserialize import deserialize_properties, serialize_properties
from pulumi_policy.policy import PolicyCustomTimeouts

from policies.binding import Binding
from policies.catalogue import RULES, RULES_BY_NAME
from policies.rule import Rule
from tests.policies import manifests

Manifest = dict[str, Any]
UNKNOWN_VALUE = proxy.UNKNOWN_STRING_VALUE
REMOVED = object()
POD = "spec/tasks/0/template/spec"
MAIN = f"{POD}/containers/0"
LIMITS = f"{MAIN}/resources/limits"
REQUESTS = f"{MAIN}/resources/requests"
CONTEXT = f"{MAIN}/securityContext"
SERVER = "spec/template/spec/containers/0"
Build = Callable[[], Manifest]


def rule_named(name: str) -> Rule[Any]:
    return next(rule for rule in RULES if rule.name == name)


def type_of(manifest: Manifest, suffix: str = "") -> str:
    version, kind = manifest["apiVersion"], manifest["kind"]
    return f"kubernetes:{version if '/' in version else 'core/' + version}:{kind}{suffix}"


def options(protect: bool = False) -> PolicyResourceOptions:
    return PolicyResourceOptions(protect, [], None, [], PolicyCustomTimeouts(0, 0, 0), [], None)


def stack_resource(
    manifest: Manifest, urn: str = "urn:resource", protect: bool = False
) -> PolicyResource:
    """Return a manifest as the resource that stack rules receive."""
    props = proxy.unknown_checking_proxy(copy.deepcopy(manifest))
    settings = options(protect)
    return PolicyResource(type_of(manifest), props, urn, "resource", settings, None, None, [], {})


def arguments(
    manifest: Manifest, config: Manifest | None = None, props: Any = None
) -> ResourceValidationArgs:
    wrapped = proxy.unknown_checking_proxy(copy.deepcopy(manifest)) if props is None else props
    return ResourceValidationArgs(
        type_of(manifest), wrapped, "urn:resource", "resource", options(), None, config
    )


def evaluate_rule(name: str, *manifests: Manifest, config: Manifest | None = None) -> list[str]:
    """Return a rule's messages about manifests, which are the complete stack for stack rules."""
    rule = rule_named(name)
    policy: Any = Binding().policies([rule])[0]
    messages: list[str] = []

    def report(message: str, urn: str | None = None) -> None:
        messages.append(message)

    if rule.scope == "stack":
        resources = [stack_resource(item, f"urn:{i}") for i, item in enumerate(manifests)]
        policy.validate(StackValidationArgs(resources, config), report)
    else:
        for manifest in manifests:
            policy.validate(arguments(manifest, config), report)
    return messages


def remediate(name: str, manifest: Manifest, config: Manifest | None = None) -> Manifest | None:
    """Return the result of a remediation, serialized and parsed as in the engine."""
    policy: Any = Binding().policies([rule_named(name)])[0]
    props = deserialize_properties(copy.deepcopy(manifest), True)
    changed = policy.remediate(arguments(manifest, config, props))
    return None if changed is None else dict(serialize_properties(changed))


def changed(manifest: Manifest, *edits: tuple[str, Any]) -> Manifest:
    """Return a copy with values set or `REMOVED` at paths such as `spec/tasks/0/replicas`."""
    result = copy.deepcopy(manifest)
    for path, value in edits:
        *steps, last = [int(step) if step.isdigit() else step for step in split(path)]
        parent: Any = result
        for step in steps:
            is_object = isinstance(parent, dict)
            parent = parent.setdefault(step, {}) if is_object else parent[step]
        if value is REMOVED:
            del parent[last]
        elif isinstance(parent, list) and last == len(parent):
            parent.append(value)
        else:
            parent[last] = value
    return result


def split(path: str) -> list[str]:
    """Split a path at slashes; `~` is a slash inside a key, as in `nvidia.com~gpu`."""
    return [step.replace("~", "/") for step in path.split("/")]


@dataclass(frozen=True)
class Case:
    """A rule violation caused by a changed or missing manifest in the stack."""

    rule: str
    build: Build
    edits: tuple[tuple[str, Any], ...] = ()
    reports: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    removed: bool = False
    others: tuple[Build, ...] = field(default=())

    @property
    def of_stack(self) -> bool:
        """True if the rule evaluates the complete stack."""
        return RULES_BY_NAME[self.rule].scope == "stack"

    def stack(self) -> list[Manifest]:
        """Return the complete stack with the invalid manifest in place of the compliant one."""
        good = self.build()
        other_manifests = [item for item in manifests.whole_stack() if item != good]
        invalid = [] if self.removed else [changed(good, *self.edits)]
        return [*other_manifests, *invalid, *(build() for build in self.others)]


def job(rule: str, *edits: tuple[str, Any], reports: tuple[str, ...], **kwargs: Any) -> Case:
    return Case(rule, manifests.volcano_job, edits, reports, **kwargs)
