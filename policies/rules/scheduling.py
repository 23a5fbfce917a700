"""Rules about scheduling: schedulers, gangs, priorities and name resolution."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from pydantic import Field

from kube.names import (
    GROUP_ANNOTATION,
    KUEUE_MINIMUM_ANNOTATION,
    KUEUE_QUEUE_LABEL,
    RAY_SCHEDULER_LABEL,
    SCHEDULING_GROUP,
)
from kube.quantities import quantity_or_none
from policies import cel
from policies.controllers import Gang, Workload
from policies.demand import nodes_of
from policies.rule import (
    Edit,
    Level,
    Rule,
    Severity,
    Violation,
    pod_rule,
    show,
    stack_rule,
    workload_rule,
)
from policies.rules.gpu_devices import is_cpu_task
from policies.settings import (
    ExactNames,
    NoConfig,
    QueueSystem,
    RoleConfig,
    SystemNames,
    TaskConfig,
)
from policies.values import Node
from policies.views import Stack
from policies.workloads import Pod

_POD_GROUP = (SCHEDULING_GROUP, "PodGroup")


class SystemsConfig(RoleConfig):
    """Systems that queue training workloads and place their pods together."""

    queue_systems: list[QueueSystem] = Field(
        default=["volcano", "kueue"],
        min_length=1,
        description="Installed systems that queue training workloads. With `volcano`, a workload "
        "names a Volcano queue, and Volcano's scheduler starts the gang. With `kueue`, a workload "
        "has the `kueue.x-k8s.io/queue-name` label, and Kueue admits all of its pods or none.",
    )


class SchedulerConfig(SystemsConfig):
    """Configuration of `training-scheduler`."""

    schedulers: ExactNames = Field(
        default=["volcano"], description="Schedulers that support gangs."
    )


BATCH_LABEL: Final = (
    "If a Job with one GPU does not train a model, you can instead give its pods "
    "the app.kubernetes.io/component: batch label."
)
"""Remedy for Jobs that do not train a model. By default, Jobs with GPUs are `training`."""


class GangConfig(SystemsConfig, TaskConfig):
    """Configuration of `training-gang-whole` and `training-pod-group-whole`."""

    elastic_workloads: SystemNames = Field(
        default=[],
        description="Workloads that may start with only some of their pods, each as "
        "`namespace/Kind/name`; `*` matches anything.",
    )


class PriorityConfig(RoleConfig):
    """Configuration of `priority-class-known`."""

    existing_priority_classes: ExactNames = Field(
        default=["system-cluster-critical", "system-node-critical"],
        description="Priority classes that exist without being declared in this stack.",
    )


def training_pods(workload: Workload, config: RoleConfig) -> list[Pod]:
    """Return the pods with the `training` role."""
    return [pod for pod in workload.pods if pod.role(config) == "training"]


def admitted_by_kueue(workload: Workload, pod: Pod, config: SystemsConfig) -> bool:
    """Return whether Kueue starts the pod together with all other pods of its workload.

    Kubeflow runtimes without settings for Volcano are included: Kueue reads the labels of their
    TrainJobs, which `training-queue-declared` checks.
    """
    if "kueue" not in config.queue_systems:
        return False
    by_runs = workload.is_template and not workload.uses_volcano(pod)
    return by_runs or workload.local_queue(pod) is not None


@workload_rule(
    name="training-scheduler",
    description="Training uses a scheduler that supports gangs.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set schedulerName: volcano in the pod template (or on the Volcano Job). "
    + BATCH_LABEL,
    config=SchedulerConfig,
)
def training_scheduler(workload: Workload, config: SchedulerConfig) -> Iterator[Violation]:
    """Two gangs that are placed pod by pod can block each other forever while both hold GPUs."""
    for pod in training_pods(workload, config):
        if pod.spec["nodeName"].present:
            yield Violation(
                pod.spec["nodeName"], "nothing: a pod with a nodeName bypasses the scheduler"
            )
        scheduler = workload.scheduler(pod)
        by_kueue = admitted_by_kueue(workload, pod, config) or "volcano" not in config.queue_systems
        if scheduler.known and scheduler.value not in config.schedulers and not by_kueue:
            yield Violation(scheduler, " or ".join(f'"{name}"' for name in config.schedulers))


@workload_rule(
    name="training-gang-whole",
    description="A training job starts all of its pods or none.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set minAvailable to the number of pods, or use a PodGroup or Kueue.",
    config=GangConfig,
)
def training_gang_whole(workload: Workload, config: GangConfig) -> Iterator[Violation]:
    """A partially started gang holds its GPUs while it waits for its other pods."""
    gang, pods = workload.gang, training_pods(workload, config)
    if not pods or workload.resource.is_named(config.elastic_workloads):
        return
    if all(admitted_by_kueue(workload, pod, config) for pod in pods):
        minimum = workload.resource.annotations[KUEUE_MINIMUM_ANNOTATION]
        gang = Gang(minimum, workload.size, defaults_to_all=True)
    if gang is None:
        yield from _ungrouped(workload, pods)
        return
    if gang.size is None or not gang.minimum.known:
        return
    if gang.minimum.absent and gang.defaults_to_all:
        return
    if quantity_or_none(gang.minimum.value) != gang.size:
        yield Violation(gang.minimum, f"{int(gang.size)}, the number of pods")


def _ungrouped(workload: Workload, pods: list[Pod]) -> Iterator[Violation]:
    """Yield a violation if the workload has several pods that are not scheduled as a group."""
    multiple_pods = workload.size is not None and workload.size > 1
    if not multiple_pods or all(_is_grouped(workload, pod) for pod in pods):
        return
    if workload.group_policy is not None:
        yield Violation(workload.group_policy, "{}: the controller then creates a PodGroup")
    else:
        annotation = pods[0].metadata["annotations"][GROUP_ANNOTATION]
        yield Violation(annotation, f"the name of a PodGroup, or the {KUEUE_QUEUE_LABEL} label")


def _is_grouped(workload: Workload, pod: Pod) -> bool:
    by_operator = workload.resource.labels[RAY_SCHEDULER_LABEL]
    return workload.is_grouped or workload.joins_pod_group(pod) or not by_operator.absent


@stack_rule(
    name="training-pod-group-whole",
    description="The PodGroup of a training gang is as large as the gang and names a queue.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Declare the PodGroup with its queue, and set minMember to the number of pods.",
    config=GangConfig,
)
def training_pod_group_whole(stack: Stack, config: GangConfig) -> Iterator[Violation]:
    """The scheduler reads a gang's size from the PodGroup, which the pods refer to only by name."""
    for workload in stack.workloads:
        pods = [pod for pod in training_pods(workload, config) if workload.joins_pod_group(pod)]
        for pod in pods[:1]:
            name = pod.metadata["annotations"][GROUP_ANNOTATION]
            namespace = workload.resource.namespace
            if not name.text or workload.resource.awaits_namespace:
                continue
            group = stack.find(*_POD_GROUP, namespace, name.text)
            if group is None and stack.may_have(*_POD_GROUP, namespace, name.text):
                continue
            if group is None:
                expected = "the name of a PodGroup of this stack"
                yield Violation(name, expected, resource=workload.resource)
                continue
            minimum, queue = group.root["spec"]["minMember"], group.root["spec"]["queue"]
            size = _gang_size(stack, workload, config)
            if minimum.known and size is not None and quantity_or_none(minimum.value) != size:
                expected = f"{int(size)}, the number of pods of {workload.resource.title}"
                yield Violation(minimum, expected, resource=group)
            if queue.known and not queue.text:
                yield Violation(queue, "the name of a queue of this stack", resource=group)


def _gang_size(stack: Stack, workload: Workload, config: GangConfig) -> Decimal | None:
    """Return the number of pods in a gang; None if it is unknown or may vary.

    The TrainJobs that refer to a Kubeflow runtime set its number of nodes.
    """
    runtime = workload.resource
    if runtime.is_named(config.elastic_workloads):
        return None
    nodes = nodes_of(stack, runtime) if workload.is_template else None
    if nodes is not None:
        others = [pod.replicas for pod in workload.pods if is_cpu_task(pod, config)]
        return sum((other or Decimal(0) for other in others), nodes)
    return workload.size


@stack_rule(
    name="priority-class-known",
    description="Workloads use only priority classes that exist.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Declare the PriorityClass, or list it under existingPriorityClasses.",
    config=PriorityConfig,
)
def priority_class_known(stack: Stack, config: PriorityConfig) -> Iterator[Violation]:
    """Pods with a priority class that does not exist are rejected one by one after the update."""
    for workload in stack.workloads:
        for pod in workload.pods:
            names = pod.priority_classes
            name = next((name for name in names if not _is_declared(stack, name, config)), None)
            if name is not None:
                yield Violation(name, "a priority class of this stack", resource=workload.resource)
                break


def _is_declared(stack: Stack, name: Node, config: PriorityConfig) -> bool:
    """Return whether the priority class in a field exists or the field is empty."""
    if not name.text or name.text in config.existing_priority_classes:
        return True
    return stack.may_have("scheduling.k8s.io", "PriorityClass", None, name.text)


def _lacks_cluster_dns(pod: Pod) -> bool:
    policy = pod.spec["dnsPolicy"]
    unset = policy.absent or policy.value == "ClusterFirst"
    return pod.spec["hostNetwork"].value is True and unset


def _set_cluster_dns(pod: Pod, config: NoConfig) -> Iterator[Edit]:
    if _lacks_cluster_dns(pod):
        yield Edit(pod.spec["dnsPolicy"].steps, "ClusterFirstWithHostNet")


@pod_rule(
    name="host-network-dns",
    description="A pod on the node's network can resolve the cluster's Service names.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Set dnsPolicy: ClusterFirstWithHostNet in addition to hostNetwork: true.",
    config=NoConfig,
    remedy=_set_cluster_dns,
    admission=cel.pod(
        dnsPolicy="variables.spec.?hostNetwork.orValue(false)"
        " && variables.spec.?dnsPolicy.orValue('ClusterFirst') == 'ClusterFirst'"
    ),
)
def host_network_dns(pod: Pod, config: NoConfig) -> Iterator[Violation]:
    """Workers that use the node's resolver cannot resolve the master's Service name."""
    if _lacks_cluster_dns(pod):
        yield Violation(
            pod.spec["dnsPolicy"],
            '"ClusterFirstWithHostNet"',
            found=f"{show(pod.spec['dnsPolicy'].value)} with hostNetwork: true",
        )


RULES: list[Rule[Any]] = [
    training_scheduler,
    training_gang_whole,
    training_pod_group_whole,
    priority_class_known,
    host_network_dns,
]
