"""Rules about training: queues, gangs, retries and Pulumi's waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from kube.names import GROUP_ANNOTATION
from kube.quantities import quantity_or_none
from policies.controllers import Workload
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
from policies.settings import NoConfig, RoleConfig
from policies.views import Stack
from policies.workloads import Pod

_POD_GROUP = ("scheduling.volcano.sh", "PodGroup")


class SchedulerConfig(RoleConfig):
    """Configuration of `training-scheduler`."""

    schedulers: list[str] = Field(default=["volcano"], description="Schedulers that support gangs.")


class GangConfig(RoleConfig):
    """Configuration of `training-gang-whole` and `training-pod-group-whole`."""

    elastic_workloads: list[str] = Field(
        default=[],
        description="Workloads that may start with a part of their pods: `namespace/Kind/name`; "
        "`*` matches anything.",
    )


class RetryConfig(RoleConfig):
    """Configuration of `training-retries-bounded`."""

    max_retries: int = Field(
        default=10,
        ge=0,
        description="Maximum number of retries. For Jobs and Kubeflow's jobs, which count every "
        "failed pod of a gang, the maximum per pod.",
    )


class QueueConfig(RoleConfig):
    """Configuration of `training-queue-declared`."""

    existing_queues: list[str] = Field(
        default=[], description="Queues that exist without being declared in this stack."
    )


class PriorityConfig(RoleConfig):
    """Configuration of `priority-class-known`."""

    existing_priority_classes: list[str] = Field(
        default=["system-cluster-critical", "system-node-critical"],
        description="Priority classes that exist without being declared in this stack.",
    )


def _training_pods(workload: Workload, config: RoleConfig) -> list[Pod]:
    return [pod for pod in workload.pods if pod.role(config) == "training"]


@workload_rule(
    name="training-scheduler",
    description="Training uses a scheduler that supports gangs.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write schedulerName: volcano in the pod template (or on the Volcano Job).",
    config=SchedulerConfig,
)
def training_scheduler(workload: Workload, config: SchedulerConfig) -> Iterator[Violation]:
    """Two gangs that are placed pod by pod can block each other forever, holding GPUs."""
    for pod in _training_pods(workload, config):
        scheduler = workload.scheduler(pod)
        if scheduler.known and scheduler.value not in config.schedulers:
            yield Violation(scheduler, " or ".join(f'"{name}"' for name in config.schedulers))


@workload_rule(
    name="training-queue-named",
    description="Training names the queue that it is charged to.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Write the queue: spec.queue on a Volcano Job, else an annotation on the template.",
    config=RoleConfig,
)
def training_queue_named(workload: Workload, config: RoleConfig) -> Iterator[Violation]:
    """Without a queue, no team's share is counted and anyone can take the whole cluster."""
    reported = set()
    for pod in _training_pods(workload, config):
        queue = workload.queue(pod)
        if not queue.known or workload.joins_pod_group(pod) or queue.steps in reported:
            continue
        if not queue.text or not queue.text.strip():
            reported.add(queue.steps)
            yield Violation(queue, "the name of a queue of this stack")


@stack_rule(
    name="training-queue-declared",
    description="The queue that training names exists.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Declare the queue in the stack, or list it under existingQueues.",
    config=QueueConfig,
)
def training_queue_declared(stack: Stack, config: QueueConfig) -> Iterator[Violation]:
    """A job in a queue that does not exist stays pending without an error."""
    queues = list(stack.of_kind("scheduling.volcano.sh", "Queue"))
    known = {queue.name for queue in queues} | set(config.existing_queues)
    if any(not queue.root["metadata"]["name"].known for queue in queues):
        return
    for workload in stack.workloads:
        for pod in _training_pods(workload, config):
            queue = workload.queue(pod)
            if queue.text and queue.text not in known:
                wanted = ", ".join(sorted(known)) or "none is declared"
                yield Violation(
                    queue, f"a queue of this stack ({wanted})", resource=workload.resource
                )
                break


@workload_rule(
    name="training-gang-whole",
    description="A training job starts all of its pods or none.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write minAvailable equal to the number of pods.",
    config=GangConfig,
)
def training_gang_whole(workload: Workload, config: GangConfig) -> Iterator[Violation]:
    """A partial gang holds its GPUs and waits for the rest."""
    gang = workload.gang
    if gang is None or not _training_pods(workload, config):
        return
    if workload.resource.is_named(config.elastic_workloads):
        return
    if gang.size is None or not gang.minimum.known:
        return
    if gang.minimum.absent and gang.defaults_to_all:
        return
    if quantity_or_none(gang.minimum.value) != gang.size:
        yield Violation(gang.minimum, f"{int(gang.size)}, the number of pods")


@workload_rule(
    name="training-retries-bounded",
    description="Training pods are not restarted in place forever, and retries are limited.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write restartPolicy Never (or OnFailure) and a limit of retries.",
    config=RetryConfig,
)
def training_retries_bounded(workload: Workload, config: RetryConfig) -> Iterator[Violation]:
    """A run that fails forever holds its GPUs forever."""
    pods = _training_pods(workload, config)
    for pod in pods:
        policy = workload.restart_policy(pod)
        if policy.known and policy.value not in ("Never", "OnFailure", "ExitCode"):
            yield Violation(policy, '"Never", so that the job controller counts the failures')
    limit = workload.retry_limit
    if not pods or limit is None or not limit.known:
        return
    count = quantity_or_none(limit.value)
    least = 1 if workload.is_volcano_job else 0  # Volcano reads 0 as 3
    most = config.max_retries
    if workload.counts_each_pod:
        most *= int(workload.size or 1)
    if workload.is_kubeflow_job:
        most += 1  # its operator takes the limit itself as too many
    if count is None or not least <= count <= most:
        yield Violation(limit, f"a number of retries from {least} to {most}")


@stack_rule(
    name="training-pod-group-whole",
    description="The PodGroup that training joins is as large as its gang and names a queue.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Declare the PodGroup with minMember equal to the number of pods, and its queue.",
    config=GangConfig,
)
def training_pod_group_whole(stack: Stack, config: GangConfig) -> Iterator[Violation]:
    """A gang needs its size in the PodGroup, not only an annotation that names the group."""
    for workload in stack.workloads:
        pods = [pod for pod in _training_pods(workload, config) if workload.joins_pod_group(pod)]
        for pod in pods[:1]:
            name = pod.metadata["annotations"][GROUP_ANNOTATION]
            namespace = workload.resource.namespace
            if not name.text or namespace is None:
                continue
            group = stack.find(*_POD_GROUP, namespace, name.text)
            if group is None and stack.may_have(*_POD_GROUP, namespace, name.text):
                continue
            if group is None:
                wanted = "the name of a PodGroup of this stack"
                yield Violation(name, wanted, resource=workload.resource)
                continue
            minimum, queue = group.root["spec"]["minMember"], group.root["spec"]["queue"]
            size = None if workload.resource.is_named(config.elastic_workloads) else workload.size
            if minimum.known and size is not None and quantity_or_none(minimum.value) != size:
                wanted = f"{int(size)}, the pods of {workload.resource.title}"
                yield Violation(minimum, wanted, resource=group)
            if queue.known and not queue.text:
                yield Violation(queue, "the name of a queue of this stack", resource=group)


@workload_rule(
    name="training-ends",
    description="Training has a deadline.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Write activeDeadlineSeconds on the Job or the pods.",
    config=RoleConfig,
)
def training_ends(workload: Workload, config: RoleConfig) -> Iterator[Violation]:
    """A run that hangs holds its GPUs until someone notices."""
    pods = _training_pods(workload, config)
    if not pods or workload.deadline is None:
        return
    limits = [workload.deadline, *(pod.spec["activeDeadlineSeconds"] for pod in pods)]
    if all(limit.absent for limit in limits):
        place = limits[1] if workload.is_volcano_job else limits[0]
        yield Violation(place, "the longest time that it may take, in seconds")


@stack_rule(
    name="priority-class-known",
    description="The priority class that a workload names exists.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Declare the PriorityClass, or list it under existingPriorityClasses.",
    config=PriorityConfig,
)
def priority_class_known(stack: Stack, config: PriorityConfig) -> Iterator[Violation]:
    """Pods with a priority class that does not exist are refused one by one after the update."""
    for workload in stack.workloads:
        for pod in workload.pods:
            name = pod.spec["priorityClassName"]
            declared = stack.may_have("scheduling.k8s.io", "PriorityClass", None, name.text or "")
            if name.text and not declared and name.text not in config.existing_priority_classes:
                yield Violation(name, "a priority class of this stack", resource=workload.resource)
                break


def _is_awaited(workload: Workload, config: RoleConfig) -> bool:
    flag = workload.awaited_flag
    wants_gpu = any(pod.gpu_containers(config.accelerators) for pod in workload.pods)
    return flag is not None and flag.known and flag.value != "true" and wants_gpu


def _skip_await(workload: Workload, config: RoleConfig) -> Iterator[Edit]:
    if _is_awaited(workload, config) and workload.awaited_flag is not None:
        yield Edit(workload.awaited_flag.steps, "true")


@workload_rule(
    name="gpu-job-not-awaited",
    description="An update does not wait for a GPU job to end.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation='Write the annotation pulumi.com/skipAwait: "true" on the job.',
    config=RoleConfig,
    remedy=_skip_await,
    about_pulumi=True,
)
def gpu_job_not_awaited(workload: Workload, config: RoleConfig) -> Iterator[Violation]:
    """Pulumi waits ten minutes for a Job to complete and then reports the training as failed."""
    if _is_awaited(workload, config) and workload.awaited_flag is not None:
        yield Violation(workload.awaited_flag, '"true"')


def _lacks_cluster_dns(pod: Pod) -> bool:
    policy = pod.spec["dnsPolicy"]
    unset = policy.absent or policy.value == "ClusterFirst"
    return pod.spec["hostNetwork"].value is True and unset


def _set_cluster_dns(pod: Pod, config: NoConfig) -> Iterator[Edit]:
    if _lacks_cluster_dns(pod):
        yield Edit(pod.spec["dnsPolicy"].steps, "ClusterFirstWithHostNet")


@pod_rule(
    name="host-network-dns",
    description="A pod on the node's network resolves names of the cluster.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Write dnsPolicy: ClusterFirstWithHostNet in addition to hostNetwork: true.",
    config=NoConfig,
    remedy=_set_cluster_dns,
)
def host_network_dns(pod: Pod, config: NoConfig) -> Iterator[Violation]:
    """Workers with the node's resolver never find the master's Service name."""
    if _lacks_cluster_dns(pod):
        yield Violation(
            pod.spec["dnsPolicy"],
            '"ClusterFirstWithHostNet"',
            found=f"{show(pod.spec['dnsPolicy'].value)} beside hostNetwork: true",
        )


RULES: list[Rule[Any]] = [
    training_scheduler,
    training_queue_named,
    training_queue_declared,
    training_gang_whole,
    training_pod_group_whole,
    training_retries_bounded,
    training_ends,
    priority_class_known,
    gpu_job_not_awaited,
    host_network_dns,
]
