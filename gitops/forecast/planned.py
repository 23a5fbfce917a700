"""Gangs that manifests would create in a cluster. The policy pack parses the manifests."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from gitops.demand import is_schedule, is_suspended, seconds
from gitops.forecast.shapes import pod_shape
from gitops.forecast.state import Gang, PodShape
from kube.names import (
    BATCH_GROUP,
    FLOW_GROUP,
    GROUP_ANNOTATION,
    PREEMPTABLE_ANNOTATION,
    SCHEDULING_GROUP,
)
from kube.quantities import quantity_or_none
from policies.controllers import Workload
from policies.counts import UNLIMITED
from policies.demand import max_pods, queue_of
from policies.resources import Resource
from policies.views import Stack, View
from policies.workloads import Pod

_SCHEDULER: Final = "volcano"


@dataclass(frozen=True)
class PlannedGangs:
    """Gangs to simulate, and titles of objects whose pods are not simulated."""

    gangs: Sequence[Gang]
    omitted: Sequence[str]


def planned_gangs(views: Iterable[View], created: datetime) -> PlannedGangs:
    """Return the gangs that the manifests create and that Volcano schedules.

    `omitted` lists objects that request devices but are not simulated: JobFlows (their steps do not
    start together), CronJobs, and objects with a different scheduler, such as model servers.
    """
    stack = Stack(list(views))
    gangs: list[Gang] = []
    omitted: list[str] = []
    for workload in stack.workloads:
        pods = [pod for pod in workload.pods if _uses_volcano(workload, pod)]
        resource = workload.resource
        if pods and resource.group != FLOW_GROUP and not is_schedule(resource):
            gangs += _gangs(stack, workload, pods, created)
        elif any("/" in name for pod in workload.pods for name in pod_shape_of(pod, 1).requests):
            omitted.append(resource.title)
    return PlannedGangs(gangs, omitted)


def not_simulated(title: str) -> str:
    """Return the text of the assumption that an object's pods are not simulated."""
    return f"pods of {title} are not simulated"


def _uses_volcano(workload: Workload, pod: Pod) -> bool:
    scheduler = workload.scheduler(pod).text
    return scheduler == _SCHEDULER or (scheduler is None and workload.resource.group == BATCH_GROUP)


def _gangs(
    stack: Stack, workload: Workload, pods: Sequence[Pod], created: datetime
) -> Iterator[Gang]:
    jobs = stack.runs_of(workload.resource)
    number = max(len(jobs), 1)
    shapes = [
        pod_shape_of(pod, count)
        for pod in pods
        if (count := int(_max_pods(stack, pod) / number)) > 0
    ]
    if not shapes:
        return
    deadlines = [
        found
        for pod in pods
        if (found := seconds(workload.deadline) or seconds(pod.spec["activeDeadlineSeconds"]))
    ]
    size = sum(shape.count for shape in shapes)
    for resource in jobs or [workload.resource]:
        yield Gang(
            namespace=resource.namespace or "default",
            name=resource.name,
            state="suspended" if is_suspended(resource) else "pending",
            queue=queue_of(stack, workload, pods[0]) or "default",
            priority_class=_priority_class(workload, pods),
            minimum=_minimum(stack, workload, pods[0], size),
            preemptable=_preemptable(resource, pods),
            created=created,
            deadline_seconds=float(min(deadlines)) if deadlines else None,
            pods=shapes,
        )


def _max_pods(stack: Stack, pod: Pod) -> Decimal:
    maximum = max_pods(stack, pod, surge=False)
    # If the number of pods has no maximum, the requested number of replicas is simulated.
    return (pod.replicas or Decimal(1)) if maximum == UNLIMITED else maximum


def pod_shape_of(pod: Pod, count: int) -> PodShape:
    """Return the shape of `count` pods with this template."""
    labels = {name: node.text or "" for name, node in pod.metadata["labels"].fields()}
    spec = pod.spec.value
    return pod_shape(spec if isinstance(spec, dict) else {}, labels, count)


def _minimum(stack: Stack, workload: Workload, pod: Pod, size: int) -> int:
    minimum: Decimal | None = None
    name = pod.metadata["annotations"][GROUP_ANNOTATION].text
    if name and workload.joins_pod_group(pod):
        resource = workload.resource
        group = stack.find(SCHEDULING_GROUP, "PodGroup", resource.namespace, name)
        minimum = quantity_or_none(group.root["spec"]["minMember"].value) if group else None
    elif workload.gang is not None:
        minimum = quantity_or_none(workload.gang.minimum.value)
        # By default, Volcano's webhook sets a Volcano Job's minimum to its total number of pods.
        needs_all = workload.gang.defaults_to_all or workload.resource.group == BATCH_GROUP
        if not minimum and needs_all:
            return size
    return max(int(minimum or 1), 1)


def _priority_class(workload: Workload, pods: Sequence[Pod]) -> str:
    of_job = workload.resource.root["spec"]["priorityClassName"].text
    names = (pod.spec["priorityClassName"].text for pod in pods)
    return of_job or next(filter(None, names), "")


def _preemptable(resource: Resource, pods: Sequence[Pod]) -> bool | None:
    annotations = [pod.metadata["annotations"] for pod in pods] + [resource.annotations]
    for each in annotations:
        if (text := each[PREEMPTABLE_ANNOTATION].text) in ("true", "false"):
            return text == "true"
    return None
