"""Changes to a snapshot: jobs to add or remove, nodes to add, and queue weights.

The policy pack parses the manifests of added jobs.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Final

from gitops.demand import is_schedule, is_suspended, seconds
from gitops.errors import GitopsError, UsageError
from gitops.forecast.objects import amounts
from gitops.forecast.shapes import pod_shape, quantities
from gitops.forecast.state import Amounts, Gang, Node, PodShape, Queue, State
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
from policies.documents import DocumentError, read
from policies.evaluation import resource_of
from policies.resources import Resource
from policies.views import Stack, View
from policies.workloads import Pod

_WEIGHT = re.compile(r"(?P<queue>[a-z0-9][-.a-z0-9]*)\.weight=(?P<weight>[1-9][0-9]{0,5})")
_NODES = re.compile(r"\+(?P<count>[1-9][0-9]{0,3})")
_SCHEDULER: Final = "volcano"


@dataclass(frozen=True)
class Changes:
    """Changes to simulate, in the syntax of the command's arguments."""

    add: Sequence[Path] = ()
    remove: Sequence[str] = ()
    nodes: str = ""
    queues: Sequence[str] = ()

    def apply(self, state: State) -> tuple[State, list[str]]:
        """Return the changed snapshot and the assumptions made.

        Raises:
            GitopsError: If a change is invalid, or refers to objects that are not in the snapshot.
        """
        assumptions: list[str] = []
        changed = state.model_copy(update={"gangs": _without(state.gangs, self.remove)})
        for file in self.add:
            changed, notes = with_manifests(changed, _views(file), f"--add: {file}")
            assumptions += notes
        nodes = list(state.nodes)
        if self.nodes:
            more = _added_nodes(state, self.nodes)
            nodes += more
            model = more[0].allocatable
            text = ", ".join(f"{value} {name}" for name, value in model.items() if "/" in name)
            assumptions.append(
                f"each added node has {text or 'no devices'}, like the most common node type"
            )
        queues = _with_weights(state, self.queues)
        return changed.model_copy(update={"nodes": nodes, "queues": queues}), assumptions


def _without(gangs: Iterable[Gang], names: Sequence[str]) -> list[Gang]:
    kept = list(gangs)
    for name in names:
        chosen = [g for g in kept if name in (g.name, f"{g.namespace}/{g.name}")]
        if len(chosen) != 1:
            known = ", ".join(sorted(f"{g.namespace}/{g.name}" for g in gangs)[:20])
            problem = "matches several gangs" if chosen else "is not in the snapshot"
            advice = f"use one of {known}" if known else "the snapshot contains no gangs"
            raise GitopsError(f"--remove {name} {problem}: {advice}")
        kept.remove(chosen[0])
    return kept


def _views(file: Path) -> list[View]:
    try:
        documents = list(read(str(file), file.read_bytes()))
    except (OSError, DocumentError) as error:
        raise GitopsError(f"--add: cannot read {file}: {error}") from None
    for each in documents:
        metadata = each.manifest.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("name"):
            raise GitopsError(f"--add: {file}, line {each.line()}: metadata.name is missing")
    return [View(resource_of(each.manifest)) for each in documents]


def with_manifests(state: State, views: Sequence[View], source: str) -> tuple[State, list[str]]:
    """Return the snapshot with the gangs of the manifests added, and the assumptions made.

    Raises:
        GitopsError: If the manifests contain no gang, if one of their gangs is already in the
            snapshot, or if the snapshot lacks a gang's queue or PriorityClass. The message begins
            with `source`.
    """
    planned = planned_gangs(views, state.taken)
    if not planned.gangs:
        raise GitopsError(
            f"{source} contains no gang that Volcano schedules: add the manifests of a job"
        )
    present = {gang.key for gang in state.gangs}
    for gang in planned.gangs:
        check(gang, state, source)
        if gang.key in present:
            raise GitopsError(
                f"{source}: {'/'.join(gang.key)} is already in the snapshot; omit this job"
            )
    assumptions = [not_simulated(title) for title in planned.omitted]
    return state.model_copy(update={"gangs": [*state.gangs, *planned.gangs]}), assumptions


def check(gang: Gang, state: State, source: str) -> None:
    """Raise GitopsError if the snapshot lacks the queue or the PriorityClass of a gang."""
    queues = [each.name for each in state.queues]
    classes = [each.name for each in state.priority_classes]
    if gang.queue not in queues:
        raise GitopsError(
            f"{source}: {gang.name} is in queue {gang.queue}, but the snapshot contains only "
            f"{', '.join(queues)}"
        )
    if gang.priority_class and gang.priority_class not in classes:
        raise GitopsError(
            f"{source}: {gang.name} has PriorityClass {gang.priority_class}, but the snapshot "
            f"contains only {', '.join(classes)}"
        )


def _added_nodes(state: State, change: str) -> list[Node]:
    match = _NODES.fullmatch(change)
    if match is None:
        raise UsageError(
            f"--nodes {change} is not a valid number of nodes to add: use a value like +4"
        )
    if not state.nodes:
        raise GitopsError("--nodes: the snapshot has no node to copy")
    kinds = Counter(repr(sorted(node.allocatable.items())) for node in state.nodes)
    most_common = kinds.most_common(1)[0][0]
    nodes = [n for n in state.nodes if repr(sorted(n.allocatable.items())) == most_common]
    model = nodes[0]
    return [
        model.model_copy(
            update={
                "name": f"added-{number}",
                "labels": {**model.labels, "kubernetes.io/hostname": f"added-{number}"},
                "taints": [t for t in model.taints if all(t in node.taints for node in nodes)],
                "unschedulable": False,
                "reserved": _common_reservations(nodes),
            }
        )
        for number in range(1, int(match["count"]) + 1)
    ]


def _common_reservations(nodes: Iterable[Node]) -> Amounts:
    """Return the resources that are reserved on every node, for example for DaemonSet pods."""
    reserved = [amounts(node.reserved) for node in nodes]
    shared = set.intersection(*map(set, reserved))
    return quantities({name: min(each[name] for each in reserved) for name in sorted(shared)})


def _with_weights(state: State, changes: Sequence[str]) -> list[Queue]:
    if changes and state.plugins and "proportion" not in state.plugins:
        raise GitopsError(
            f"--queue {changes[0]} has no effect: only the proportion plugin uses weights, but the "
            "scheduler in the snapshot does not use this plugin; omit --queue"
        )
    by_name = {queue.name: queue for queue in state.queues}
    for change in changes:
        match = _WEIGHT.fullmatch(change)
        if match is None:
            raise UsageError(
                f"--queue {change} is not a valid change: use a value like vision.weight=3"
            )
        if (queue := by_name.get(match["queue"])) is None:
            raise GitopsError(f"--queue {change}: the snapshot contains only {', '.join(by_name)}")
        spec = {**queue.spec, "weight": int(match["weight"])}
        by_name[queue.name] = queue.model_copy(update={"spec": spec})
    return list(by_name.values())


@dataclass(frozen=True)
class PlannedGangs:
    """Gangs to simulate, and titles of objects whose pods are not simulated."""

    gangs: Sequence[Gang]
    omitted: Sequence[str]


def planned_gangs(views: Iterable[View], created: datetime) -> PlannedGangs:
    """Return the gangs that the manifests create and that Volcano schedules.

    `omitted` lists objects that request devices but are not simulated: JobFlows (their steps do not
    start together), CronJobs, and objects with a different scheduler (such as model servers).
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
