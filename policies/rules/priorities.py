"""Rules about priorities, tolerations and node names, which affect the pods of other teams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import Field

from kube.names import SYSTEM_PRIORITY_CLASSES as _SYSTEM_CLASSES
from policies import cel
from policies.pod_search import find_pods
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, pod_rule, resource_rule
from policies.settings import SystemConfig
from policies.workloads import Pod

_PRIORITY_CLASS_KINDS: Final = (
    ("scheduling.k8s.io", "priorityclass"),
    ("kueue.x-k8s.io", "workloadpriorityclass"),
)
_RESERVED_TAINTS: Final = (
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "node-role.kubernetes.io/controlplane",
    "node-role.kubernetes.io/etcd",
    "node.kubernetes.io/unschedulable",
    "node.cloudprovider.kubernetes.io/uninitialized",
)


class PriorityConfig(SystemConfig):
    """Configuration of the rules about priorities."""

    max_priority: int = Field(
        default=1_000_000, description="Maximum value of a PriorityClass, and of a pod's priority."
    )


@pod_rule(
    name="priority-not-of-system",
    description="Pods do not have a priority that is reserved for cluster components.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Use one of the platform's PriorityClasses.",
    config=PriorityConfig,
    references=["NSA Resource policies"],
    admission=cel.pod(
        priorityClassName="variables.spec.?priorityClassName.orValue('')"
        f" in {cel.literal(_SYSTEM_CLASSES)}",
        priority="variables.spec.?priority.orValue(0) > settings.maxPriority",
    ),
)
def priority_not_of_system(pod: Pod, config: PriorityConfig) -> Iterator[Violation]:
    """A pod with a system priority preempts all other pods, even inference servers."""
    outer = pod.resource.root["spec"]["priorityClassName"]
    fields = {field.steps: field for field in (*pod.priorities, outer)}
    for field in fields.values():
        if field.value in _SYSTEM_CLASSES:
            yield Violation(field, "one of the platform's PriorityClasses")
        elif isinstance(field.value, int) and field.value > config.max_priority:
            yield Violation(field, "nothing: the PriorityClass sets it")


@resource_rule(
    name="priority-class-bounded",
    description="PriorityClasses have bounded values, and none is the global default. PodGroups "
    "and other objects without pods do not use system priority classes.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set a smaller value, or raise maxPriority.",
    config=PriorityConfig,
    references=["NSA Resource policies"],
)
def priority_class_bounded(resource: Resource, config: PriorityConfig) -> Iterator[Violation]:
    """Any team can use any class, and pods with a high priority preempt other teams' pods."""
    name = resource.root["spec"]["priorityClassName"]
    if name.value in _SYSTEM_CLASSES and not find_pods(resource):
        yield Violation(name, "one of the platform's PriorityClasses")
    if (resource.group, resource.kind.lower()) not in _PRIORITY_CLASS_KINDS:
        return
    value, is_default = resource.root["value"], resource.root["globalDefault"]
    if value.present and not (isinstance(value.value, int) and value.value <= config.max_priority):
        yield Violation(value, f"at most {config.max_priority}")
    if is_default.present and is_default.value is not False:
        yield Violation(is_default, "false: pods without a class would get this one")


@pod_rule(
    name="tolerations-bounded",
    description="Pods tolerate taints by key, but not taints of cordoned or control plane nodes.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set the key of each tolerated taint, such as nvidia.com/gpu.",
    config=SystemConfig,
    references=["NSA Pod security enforcement"],
    admission=cel.pod(
        tolerations="variables.spec.?tolerations.orValue([]).exists(t, t.?key.orValue('') == ''"
        f" || t.key in {cel.literal(_RESERVED_TAINTS)})"
    ),
)
def tolerations_bounded(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """A pod that tolerates all taints can run on control plane, cordoned and other teams' nodes."""
    for toleration in pod.spec["tolerations"].items():
        key = toleration["key"]
        if isinstance(toleration.value, dict) and key.value in (None, ""):
            yield Violation(toleration, "the key of a taint")
        elif key.value in _RESERVED_TAINTS:
            yield Violation(key, "nothing: these nodes are not for workloads")


@pod_rule(
    name="node-not-chosen",
    description="Pods leave the choice of their node to the scheduler.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Use a nodeSelector or an affinity with node labels.",
    config=SystemConfig,
)
def node_not_chosen(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """With a nodeName, a pod bypasses queues, taints and the scheduler's check for free GPUs."""
    name = pod.spec["nodeName"]
    if name.present and not pod.resource.is_named(config.system_workloads):
        yield Violation(name, "nothing: the scheduler chooses the node")


RULES: list[Rule[Any]] = [
    priority_not_of_system,
    priority_class_bounded,
    tolerations_bounded,
    node_not_chosen,
]
