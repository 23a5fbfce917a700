"""Rule that requires manifests to have the structure that the other rules expect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from policies.rule import Level, Rule, RuleConfig, Severity, Violation, pod_rule
from policies.values import Node
from policies.workloads import Pod

NAME = "manifest-readable"
_POD_LISTS = ("containers", "initContainers", "ephemeralContainers", "volumes", "tolerations")
_CONTAINER_LISTS = ("env", "volumeMounts", "ports")
_CONTAINER_OBJECTS = ("resources", "securityContext")


class ReadableConfig(RuleConfig):
    """Configuration of `manifest-readable`."""

    existing_objects: list[str] = Field(
        default=[],
        description="Objects that exist outside of this stack, each as `namespace/Kind/name`; "
        "`*` matches anything. If a resource, such as a DeploymentPatch, patches one of them, "
        "rules evaluate only the patched fields. A patch of any other object is evaluated as a "
        "complete object, because the patch creates the object if it does not exist.",
    )


def _check_objects(location: Node) -> Iterator[Violation]:
    """Yield a violation if the value is not a list, and for each item that is not an object."""
    if location.present and not isinstance(location.value, list):
        yield Violation(location, "a list of objects")
    elif isinstance(location.value, list):
        for index, item in enumerate(location.value):
            if item is None or isinstance(item, str | int | float | bool | list):
                yield Violation(location[index], "an object")


def _check_object(location: Node) -> Iterator[Violation]:
    if location.present and not isinstance(location.value, dict):
        yield Violation(location, "an object")


@pod_rule(
    name=NAME,
    description="Pod specifications have lists and objects where Kubernetes expects them.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Correct the type: rules cannot check a value that they cannot read.",
    config=ReadableConfig,
)
def manifest_readable(pod: Pod, config: ReadableConfig) -> Iterator[Violation]:
    """Without this rule, a value of the wrong type would be read as absent."""
    if pod.resource.is_patch and pod.spec["containers"].absent:
        yield Violation(
            pod.spec["containers"],
            "the complete pod specification, because the patch creates the object if it does not "
            f"exist. If it exists outside this stack, add {pod.resource.address} to "
            f"existingObjects of {NAME}",
        )
    for key in _POD_LISTS:
        yield from _check_objects(pod.spec[key])
    yield from _check_object(pod.spec["securityContext"])
    patch = pod.spec["podSpecPatch"]
    if patch.present:
        yield Violation(
            patch, "the fields of the pod itself: rules cannot read a patch in a string"
        )
    for count in pod.replica_counts():
        if count.present and (isinstance(count.value, bool) or not isinstance(count.value, int)):
            yield Violation(count, "an integer")
    for container in pod.containers:
        if not isinstance(container.node.value, dict):
            continue
        for key in _CONTAINER_LISTS:
            yield from _check_objects(container.node[key])
        for key in _CONTAINER_OBJECTS:
            yield from _check_object(container.node[key])
        for key in ("requests", "limits"):
            yield from _check_object(container.resources[key])
        yield from _check_object(container.node["securityContext"]["capabilities"])


RULES: list[Rule[Any]] = [manifest_readable]
