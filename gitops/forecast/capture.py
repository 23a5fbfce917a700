"""Capture of a cluster's scheduling state with kubectl."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from gitops.errors import GitopsError
from gitops.forecast.shapes import (
    add,
    estimated_shapes,
    job_shapes,
    quantities,
    requests,
    shapes_of,
)
from gitops.forecast.state import Gang, Node, PriorityClass, Queue, State
from gitops.prices import Prices
from gitops.runs.snapshot import (
    Cluster,
    ForbiddenError,
    Object,
    Snapshot,
    group_of,
    is_scheduled,
    key,
    owner,
    queue_of,
)
from gitops.runs.states import needs_pods, state_of
from gitops.runs.status import RunStatus, parse_time, read_runs
from kube.kinds import RESOURCES, volcano
from kube.kinds.record import State as JobState
from kube.names import PREEMPTABLE_ANNOTATION, RUN_LABEL

_CONFIGURATION: Final = "volcano-scheduler.conf"
_CONDITION_TAINT_PREFIX: Final = "node.kubernetes.io/"
"""Prefix of taints that controllers derive from a node's conditions and `unschedulable` field."""
_DEADLINE: Final = "activeDeadlineSeconds"


def capture(cluster: Cluster, now: datetime) -> State:
    """Read the scheduling state of a cluster.

    Raises:
        GitopsError: If the user is not allowed to list pods, or a request fails for another reason.
    """
    try:
        snapshot = cluster.snapshot()
    except ForbiddenError as error:
        command = "python -m gitops access --stack NAME --snapshotters GROUP"
        raise GitopsError(
            f"{error}; `{command}` prints the required permissions (docs/simulation.md)"
        ) from None
    notes: list[str] = []
    if not snapshot.all("PriorityClass"):
        notes.append("PriorityClasses cannot be listed")
    if not snapshot.all("Node"):
        notes.append("the cluster has no nodes, or they cannot be listed")
    if down := sum(not _is_ready(node) for node in snapshot.all("Node")):
        notes.append(f"nodes that are not Ready, listed as unschedulable: {down}")
    if not snapshot.all("Queue"):
        notes.append("the cluster has no queues, or they cannot be listed")
    states = [each.get("status", {}).get("state", "Open") for each in snapshot.all("Queue")]
    if closed := sum(state != "Open" for state in states):
        notes.append(f"queues that are not open, but that simulations treat as open: {closed}")
    groups = [group for group in snapshot.all("PodGroup") if _has_queue(snapshot, group)]
    orphans = [group for group in snapshot.all("PodGroup") if not _has_queue(snapshot, group)]
    if ignored := sum(needs_pods(snapshot, group) for group in orphans):
        notes.append(f"gangs that Volcano ignores because their queue does not exist: {ignored}")
    version, configuration = _scheduler(cluster)
    if configuration is None:
        notes.append("the configuration of Volcano's scheduler was not found")
    runs = {
        (run.namespace, run.name): run
        for run in read_runs(cluster, Prices(currency="-"), now, snapshot=snapshot)
    }
    gangs = [*_gangs(snapshot, groups, runs, now), *_suspended_gangs(snapshot, now)]
    return State(
        taken=now,
        volcano=version,
        scheduler_configuration=configuration,
        nodes=list(_nodes(snapshot, groups)),
        queues=[
            Queue(name=each["metadata"]["name"], spec=each.get("spec", {}))
            for each in snapshot.all("Queue")
        ],
        priority_classes=[
            PriorityClass(
                name=each["metadata"]["name"],
                value=each["value"],
                preemption_policy=each.get("preemptionPolicy") or "PreemptLowerPriority",
                is_default=each.get("globalDefault", False),
            )
            for each in snapshot.all("PriorityClass")
        ],
        gangs=sorted(gangs, key=lambda gang: (gang.created, gang.namespace, gang.name)),
        notes=notes,
    ).with_priorities()


def _has_queue(snapshot: Snapshot, group: Object) -> bool:
    """Return whether the queue of a PodGroup exists; True if queues cannot be listed."""
    return not snapshot.all("Queue") or bool(snapshot.find("Queue", None, queue_of(group)))


def _nodes(snapshot: Snapshot, groups: Iterable[Object]) -> Iterator[Node]:
    reserved: dict[str, dict[str, Decimal]] = defaultdict(dict)
    simulated = set(map(key, groups))
    for pod in snapshot.active():
        if is_scheduled(pod) and group_of(pod) not in simulated:
            amounts = {name: Decimal(amount) for name, amount in requests(pod["spec"]).items()}
            node_name = pod["spec"]["nodeName"]
            reserved[node_name] = add(reserved[node_name], {**amounts, "pods": Decimal(1)})
    for node in snapshot.all("Node"):
        metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
        yield Node(
            name=metadata["name"],
            labels=metadata.get("labels", {}),
            taints=[
                {k: taint[k] for k in ("key", "value", "effect") if k in taint}
                for taint in spec.get("taints", ())
                if not taint["key"].startswith(_CONDITION_TAINT_PREFIX)
            ],
            unschedulable=spec.get("unschedulable", False) or not _is_ready(node),
            allocatable=status.get("allocatable", {}),
            reserved=quantities(reserved[metadata["name"]]),
        )


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return all(c["status"] == "True" for c in conditions if c["type"] == "Ready")


def _gangs(
    snapshot: Snapshot,
    groups: Iterable[Object],
    runs: Mapping[tuple[str, str], RunStatus],
    now: datetime,
) -> Iterator[Gang]:
    pods: dict[tuple[str, str] | None, list[Object]] = defaultdict(list)
    known = {node["metadata"]["name"] for node in snapshot.all("Node")}
    for pod in snapshot.active():
        if is_scheduled(pod) and pod["spec"]["nodeName"] not in known:
            # Kubernetes deletes the pods of a deleted node after a delay, and controllers re-create
            # them. Until then, these pods count as not scheduled.
            pod = {**pod, "spec": {**pod["spec"], "nodeName": None}}
        pods[group_of(pod)].append(pod)
    succeeded = snapshot.succeeded()
    for group in groups:
        if not needs_pods(snapshot, group):
            continue
        group_pods, spec = pods[key(group)], group.get("spec", {})
        minimum = int(spec.get("minMember") or 1) - succeeded[key(group)]
        if minimum <= 0 and not group_pods:
            continue
        job = _job(snapshot, group["metadata"]["namespace"], owner(group))
        shapes = shapes_of(group_pods) or job_shapes(job) or estimated_shapes(spec)
        if not shapes:
            continue
        placed = [pod for pod in group_pods if is_scheduled(pod)]
        minimum = max(minimum, 1)
        if (failed := minimum - sum(shape.count for shape in shapes)) > 0:
            # Controllers replace failed pods after a delay. The replacements are simulated with the
            # first shape.
            replaced, *others = shapes
            shapes = [replaced.model_copy(update={"count": replaced.count + failed}), *others]
        started = [parse_time(at) for p in placed if (at := p.get("status", {}).get("startTime"))]
        first = group_pods[0] if group_pods else {"metadata": {}, "spec": {}}
        run = runs.get((group["metadata"]["namespace"], _run(first, group)))
        progress = run.progress if run else None
        yield Gang(
            namespace=group["metadata"]["namespace"],
            name=owner(group),
            state="running" if len(placed) >= minimum else "pending",
            queue=queue_of(group),
            priority_class=_priority_class(spec, first, job),
            priority=int(first["spec"].get("priority") or 0),
            minimum=minimum,
            preemptable=_preemptable(group, first),
            created=parse_time(group["metadata"].get("creationTimestamp")) or now,
            started=max((at for at in started if at), default=None),
            deadline_seconds=_deadline(group_pods, job),
            left_seconds=progress.remaining_seconds if progress else None,
            progress=progress.completed_fraction if progress else None,
            saved=progress.saved if progress else None,
            saves_every_seconds=progress.saves_every_seconds if progress else None,
            pods=shapes,
        )


def _suspended_gangs(snapshot: Snapshot, now: datetime) -> Iterator[Gang]:
    """Yield the gangs of suspended Volcano Jobs. Other suspended jobs do not define gangs."""
    for job in snapshot.all(volcano.JOB.name):
        shapes = job_shapes(job)
        if state_of(volcano.JOB, job, 0) is JobState.SUSPENDED and shapes:
            spec = job["spec"]
            yield Gang(
                namespace=job["metadata"]["namespace"],
                name=job["metadata"]["name"],
                state="suspended",
                queue=spec.get("queue", "default"),
                priority_class=spec.get("priorityClassName", ""),
                minimum=spec.get("minAvailable") or sum(shape.count for shape in shapes),
                created=parse_time(job["metadata"].get("creationTimestamp")) or now,
                deadline_seconds=_deadline([], job),
                pods=shapes,
            )


def _job(snapshot: Snapshot, namespace: str, name: str) -> Object | None:
    for resource in RESOURCES:
        if (job := snapshot.find(resource.name, namespace, name)) is not None:
            return job
    return None


def _run(pod: Mapping[str, Any], group: Object) -> str:
    label = pod["metadata"].get("labels", {}).get(RUN_LABEL)
    return str(label or owner(group))


def _priority_class(spec: Mapping[str, Any], pod: Mapping[str, Any], job: Object | None) -> str:
    of_job = job["spec"].get("priorityClassName") if job else None
    return str(
        spec.get("priorityClassName") or pod["spec"].get("priorityClassName") or of_job or ""
    )


def _preemptable(group: Object, pod: Mapping[str, Any]) -> bool | None:
    for item in (pod, group):
        value = (item["metadata"].get("annotations") or {}).get(PREEMPTABLE_ANNOTATION)
        if value in ("true", "false"):
            return bool(value == "true")
    return None


def _deadline(pods: Iterable[Object], job: Object | None) -> float | None:
    specs: list[Any] = [pod["spec"] for pod in pods]
    if job is not None:
        spec = job["spec"]
        specs += [spec, spec.get("runPolicy") or {}]
        specs += [task["template"]["spec"] for task in spec.get("tasks", ())]
    deadlines = [float(spec[_DEADLINE]) for spec in specs if spec.get(_DEADLINE)]
    return min(deadlines, default=None)


def _scheduler(cluster: Cluster) -> tuple[str | None, str | None]:
    """Return the version and the configuration of Volcano's scheduler."""
    items = cluster.read("deployments", "--all-namespaces", "--selector=app=volcano-scheduler")
    for deployment in items or ():
        pod = deployment["spec"]["template"]["spec"]
        image = str(pod["containers"][0]["image"])
        version = image.partition("@")[0].rpartition("/")[2].partition(":")[2] or None
        for volume in pod.get("volumes", ()):
            if name := volume.get("configMap", {}).get("name"):
                namespace = deployment["metadata"]["namespace"]
                config_maps = cluster.read("configmaps", f"--namespace={namespace}")
                for each in config_maps or ():
                    if each["metadata"]["name"] == name:
                        return version, each.get("data", {}).get(_CONFIGURATION)
        return version, None
    return None, None
