"""Reasons why jobs wait, and their positions in the queue."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gitops.runs.snapshot import (
    Object,
    Snapshot,
    devices,
    group_of,
    is_scheduled,
    key,
    owner,
    queue_of,
    request,
)
from gitops.runs.states import is_part_of_a_job, needs_pods, state_of
from kube.kinds import RESOURCES
from kube.kinds.record import State
from kube.kinds.volcano import FLOW, JOB, with_ancestors

_REJECTION: Final = re.compile(r'is forbidden: (.*?)(?:", Reason:|$)', re.DOTALL)
"""Reason for a rejection, in the text of an event. In Volcano's events, it is a field of a printed
Go structure."""


@dataclass(frozen=True)
class Waiting:
    """A job or standalone pod that waits or is suspended, with the reasons."""

    namespace: str
    job: str
    queue: str
    state: str
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """Namespace, name and queue."""
        queue = f" in queue {self.queue}" if self.queue else ""
        return f"{self.namespace}/{self.job}{queue}"

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.name}: {self.state}", *(f"  {reason}" for reason in self.reasons)]
        )


def waiting(snapshot: Snapshot) -> list[Waiting]:
    """Return every job and standalone pod that waits or is suspended, sorted by name."""
    entries = [
        *_groups(snapshot),
        *_suspended_jobs(snapshot),
        *_jobs_in_missing_queues(snapshot),
        *_standalone_pods(snapshot),
    ]
    return sorted(entries, key=lambda item: item.name)


def positions(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """Return the positions of the waiting PodGroups in their queues, starting at 1.

    The PodGroups are sorted by priority, then by age, in the same way as Volcano's `priority` and
    `gang` plugins sort jobs that have not started. A PodGroup's PriorityClass takes
    precedence over its pods' priorities, because a PodGroup that is not admitted has no pods.
    """
    pod_priorities: dict[tuple[str, str], int] = {}
    for pod in snapshot.active():
        if (name := group_of(pod)) is not None:
            value = int(pod["spec"].get("priority") or 0)
            pod_priorities[name] = max(pod_priorities.get(name, value), value)
    classes = snapshot.all("PriorityClass")
    class_priorities = {each["metadata"]["name"]: int(each["value"]) for each in classes}
    default = next((int(each["value"]) for each in classes if each.get("globalDefault")), 0)

    def order(group: Object) -> tuple[int, str]:
        chosen = group.get("spec", {}).get("priorityClassName")
        priority = class_priorities.get(chosen, pod_priorities.get(key(group), default))
        return -priority, str(group["metadata"].get("creationTimestamp", ""))

    last: Counter[str] = Counter()
    numbers: dict[tuple[str, str], int] = {}
    for group in sorted(filter(_is_pending, snapshot.all("PodGroup")), key=order):
        if needs_pods(snapshot, group):
            last[queue_of(group)] += 1
            numbers[key(group)] = last[queue_of(group)]
    return numbers


def _is_pending(group: Object) -> bool:
    return group.get("status", {}).get("phase", "Pending") in ("Pending", "Inqueue")


def _groups(snapshot: Snapshot) -> Iterator[Waiting]:
    succeeded = snapshot.succeeded()
    for group in snapshot.all("PodGroup"):
        pods = [pod for pod in snapshot.active() if group_of(pod) == key(group)]
        scheduled = sum(map(is_scheduled, pods))
        minimum = int(group.get("spec", {}).get("minMember", 1)) - succeeded[key(group)]
        phase = group.get("status", {}).get("phase", "Pending")
        if phase == "Completed" or (scheduled >= minimum and scheduled == len(pods)):
            continue
        if not needs_pods(snapshot, group):
            continue
        yield Waiting(
            group["metadata"]["namespace"],
            owner(group),
            queue_of(group),
            f"{scheduled} of {max(len(pods), minimum)} pods are scheduled "
            + (
                f"(minimum to start: {minimum})"
                if scheduled < minimum
                else "(running, can scale up)"
            ),
            tuple(_reasons(snapshot, group, pods, starting=scheduled < minimum)),
        )


def _suspended_jobs(snapshot: Snapshot) -> Iterator[Waiting]:
    # A suspended JobFlow is omitted, because its suspended step is listed as a job.
    for resource in RESOURCES:
        for job in snapshot.all(resource.name):
            suspended = resource is not FLOW and (state_of(resource, job, 0) is State.SUSPENDED)
            if suspended and not is_part_of_a_job(resource, job):
                namespace, name = key(job)
                resume = "`state: running` or, for a run outside of the stack, `suspend: false`"
                if resource is JOB:
                    resume = f"`python -m gpu_platform resume {name} --namespace {namespace}`"
                yield Waiting(namespace, name, "", "suspended", (f"{resume} resumes it",))


def _jobs_in_missing_queues(snapshot: Snapshot) -> Iterator[Waiting]:
    # If a job's queue does not exist, Volcano creates no PodGroup for the job, and terminates the
    # job after about three minutes.
    groups = {(group["metadata"]["namespace"], owner(group)) for group in snapshot.all("PodGroup")}
    for job in snapshot.all(JOB.name):
        queue = queue_of(job)
        if (
            key(job) not in groups
            and state_of(JOB, job, 0) in (State.WAITING, State.RESTARTING)
            and (reason := missing_queue(snapshot, queue))
        ):
            yield Waiting(*key(job), queue, "no PodGroup was created", (reason,))


def missing_queue(snapshot: Snapshot, name: str) -> str:
    """Return the reason for waiting if a queue does not exist, otherwise "".

    The `root` and `default` queues always exist, so an empty list means that the user is not
    allowed to list queues.
    """
    queues = snapshot.all("Queue")
    exists = not queues or snapshot.find("Queue", None, name) is not None
    return "" if exists else f"queue {name} does not exist"


def repair_command(snapshot: Snapshot, group: Object) -> list[str]:
    """Return the kubectl arguments that make Volcano resume a gang that it no longer processes.

    Volcano no longer processes a gang if it has admitted the gang without creating its pods, or has
    missed the failure of a pod. Both states also occur briefly in normal operation, so wait before
    you run the command. In other states, the list is empty.
    """
    metadata = group["metadata"]
    namespace = f"--namespace={metadata['namespace']}"
    if _lacks_pods(snapshot, group):
        patch = json.dumps({"status": {"phase": "Pending"}})
        resource = ["podgroups.scheduling.volcano.sh", metadata["name"]]
        return ["patch", *resource, namespace, "--type=merge", f"--patch={patch}"]
    failed = _missed_failures(snapshot, group)
    return ["delete", "pods", *failed, namespace] if failed else []


def _lacks_pods(snapshot: Snapshot, group: Object) -> bool:
    """Return whether Volcano has admitted a PodGroup whose pods do not exist.

    Volcano's controllers normally create the pods within a second. In Volcano 1.14.1, the
    controllers miss the admission if the API server ends their watch at that moment. This can
    happen in the seconds after Volcano's CRDs are created.
    """
    admitted = group.get("status", {}).get("phase") == "Inqueue"
    return admitted and _is_of_volcano_job(group) and not _pods(snapshot, group)


def _is_of_volcano_job(group: Object) -> bool:
    owners = group["metadata"].get("ownerReferences", [])
    return (JOB.api_version, JOB.kind) in [(e.get("apiVersion"), e.get("kind")) for e in owners]


def _missed_failures(snapshot: Snapshot, group: Object) -> list[str]:
    """Return the failed pods of a Volcano Job that prevent its gang from starting.

    In Volcano 1.14.1, the controllers restart a job only if they are running when a pod fails.
    The scheduler does not start a gang with a failed pod.
    """
    pods = _pods(snapshot, group)
    active = [pod for pod in snapshot.active() if group_of(pod) == key(group)]
    has_started = sum(map(is_scheduled, active)) >= int(group.get("spec", {}).get("minMember", 1))
    if not _is_of_volcano_job(group) or has_started or all(map(is_scheduled, pods)):
        return []
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod.get("status", {}).get("phase") == "Failed"
        and "deletionTimestamp" not in pod["metadata"]
    ]


def _pods(snapshot: Snapshot, group: Object) -> list[Object]:
    return [pod for pod in snapshot.all("Pod") if group_of(pod) == key(group)]


def _reasons(
    snapshot: Snapshot, group: Object, pods: list[Object], starting: bool
) -> Iterator[str]:
    missing = sum((request(pod) for pod in pods if not is_scheduled(pod)), Counter[str]())
    if starting and (minimum := group.get("spec", {}).get("minResources")):
        scheduled = (request(pod) for pod in pods if is_scheduled(pod))
        missing = devices(minimum) - sum(scheduled, Counter[str]())
    queue = queue_of(group)
    computed = [*_queue_reasons(snapshot, group, missing), *_capacity_reasons(snapshot, missing)]
    messages = _scheduler_messages(snapshot, group, pods)
    unavailable = any("unavailable" in text for text in messages)
    lacking = starting and len(pods) < int(group.get("spec", {}).get("minMember", 1))
    stall_message = _stall_message(snapshot, group)
    job = group["metadata"]["namespace"], owner(group)
    if lacking and (rejection_text := rejection(snapshot, job)):
        computed.append(f"the API server rejects pods of the job: {rejection_text}")
    elif stall_message and (pods or not computed):
        computed.append(stall_message)
    elif not computed:
        computed += _unbound_claims(snapshot, pods)
    # If the other queues have no jobs, the queue's share is the whole cluster.
    others = _queues_in_use(snapshot) - {queue}
    has_room = snapshot.shows_usage and starting and missing and not computed and not unavailable
    if has_room and others:
        computed.append(
            f"the cluster has free capacity, but queue {queue} has used its share; "
            f"other queues with jobs: {', '.join(sorted(others))}"
        )
    yield from computed
    yield from (f"Volcano: {text}" for text in messages)


def rejection(snapshot: Snapshot, job: tuple[str, str]) -> str:
    """Return the API server's latest reason for rejecting a job's pods, otherwise "".

    `job` is the namespace and name of the job.
    """
    events = (event for event in _events(snapshot, *job) if event["reason"] == "FailedCreate")
    text = _latest_message(events)
    reason = _REJECTION.search(text)
    return reason[1].replace('\\"', '"') if reason else text


def _events(snapshot: Snapshot, namespace: str, name: str) -> Iterator[Object]:
    """Yield the events of an object, and of objects of other kinds with the same name."""
    for event in snapshot.all("Event"):
        involved = event["involvedObject"]
        if (involved.get("namespace"), involved.get("name")) == (namespace, name):
            yield event


def _latest_message(events: Iterable[Object]) -> str:
    latest = max(events, key=lambda event: str(event.get("lastTimestamp") or ""), default=None)
    return str(latest["message"]) if latest else ""


def _unbound_claims(snapshot: Snapshot, pods: Iterable[Object]) -> Iterator[str]:
    """Yield the claims of unscheduled pods that are not bound, each with its latest event."""
    names = {
        (pod["metadata"]["namespace"], volume["persistentVolumeClaim"]["claimName"])
        for pod in pods
        if not is_scheduled(pod)
        for volume in pod["spec"].get("volumes", ())
        if "persistentVolumeClaim" in volume
    }
    for namespace, name in sorted(names):
        claim = snapshot.find("PersistentVolumeClaim", namespace, name)
        if claim is None or claim.get("status", {}).get("phase") == "Bound":
            continue
        events = (
            event
            for event in _events(snapshot, namespace, name)
            if event["involvedObject"].get("kind") == "PersistentVolumeClaim"
        )
        yield f"claim {name} is not bound: {_latest_message(events) or 'it has no events'}"


def _queues_in_use(snapshot: Snapshot) -> set[str]:
    return {
        queue_of(group)
        for group in snapshot.all("PodGroup")
        if group.get("status", {}).get("phase") != "Completed"
    }


def _stall_message(snapshot: Snapshot, group: Object) -> str:
    """Return a message with a fix if Volcano no longer processes a gang, otherwise ""."""
    command = f"`{shlex.join(['kubectl', *repair_command(snapshot, group)])}`"
    if _lacks_pods(snapshot, group):
        namespace, name = group["metadata"]["namespace"], owner(group)
        return (
            f"Volcano admitted the job, but has not created its pods: `kubectl describe "
            f"{JOB.name} {name} --namespace {namespace}` shows failures; if there are none, "
            f"{command} admits the job again"
        )
    if failed := _missed_failures(snapshot, group):
        return (
            f"Volcano has not restarted the job after the failure of {', '.join(failed)}: if this "
            f"does not change within a minute, {command} restarts it"
        )
    return ""


def _capacity_reasons(snapshot: Snapshot, missing: Counter[str]) -> Iterator[str]:
    if not snapshot.all("Node"):
        return  # the user is not allowed to list nodes
    total, used = snapshot.total(), snapshot.used()
    only = "only" if snapshot.namespace is None else "at most"
    for resource, amount in sorted(missing.items()):
        free = total[resource] - used[resource]
        if amount > total[resource]:
            yield f"requests {amount} {resource}, but the cluster has only {total[resource]}"
        elif amount > free:
            yield f"requests {amount} {resource}, but {only} {free} of {total[resource]} are free"


def _queue_reasons(snapshot: Snapshot, group: Object, missing: Counter[str]) -> Iterator[str]:
    name = queue_of(group)
    queue = snapshot.find("Queue", None, name)
    if queue is None:
        yield from filter(None, [missing_queue(snapshot, name)])
        return
    state = queue.get("status", {}).get("state", "Open")
    if state != "Open":
        yield f"queue {name} is {state}: `vcctl queue operate --action open --name {name}` opens it"
    specs = {each["metadata"]["name"]: each.get("spec", {}) for each in snapshot.all("Queue")}
    parents = {each: spec.get("parent") for each, spec in specs.items()}
    ancestry = {each: with_ancestors(each, parents) for each in specs}
    uses = "uses" if snapshot.namespace is None else "uses at least"
    admitted = group.get("status", {}).get("phase", "Pending") != "Pending"
    limits = dict(snapshot.total())  # empty if the user is not allowed to list nodes
    for limiting in reversed(ancestry[name]):
        reserved = sum(
            (
                devices(spec.get("guarantee", {}).get("resource", {}))
                for each, spec in specs.items()
                if each != limiting and parents[each] == parents.get(limiting)
            ),
            Counter[str](),
        )
        shared = {each: max(limit - reserved[each], 0) for each, limit in limits.items()}
        capability = devices(specs.get(limiting, {}).get("capability", {}))
        limits = shared | {each: min(n, shared.get(each, n)) for each, n in capability.items()}
        below = [each for each in specs if limiting in ancestry[each]]
        used, held = snapshot.used(below), _reservations(snapshot, below)
        for resource, limit in sorted(limits.items()):
            by_guarantees = reserved[resource] and limit == shared.get(resource)
            if not by_guarantees and limit != capability.get(resource):
                continue  # a limit of the parent or of the cluster
            guarantees = f", because other queues are guaranteed {reserved[resource]}"
            reason = guarantees if by_guarantees else ""
            if missing[resource] > limit:
                yield (
                    f"requests {missing[resource]} {resource}, but queue {limiting} is limited to "
                    f"{limit}{reason}"
                )
            elif missing[resource] + used[resource] > limit:
                yield (
                    f"queue {limiting} is full: it {uses} {used[resource]} of {limit} "
                    f"{resource}{reason}"
                )
            elif not admitted:
                jobs = {name: each[resource] for name, each in held.items() if each[resource]}
                if missing[resource] + used[resource] + sum(jobs.values()) > limit:
                    yield (
                        f"{sum(jobs.values())} of {limit} {resource} of queue {limiting} are "
                        f"reserved for jobs that have not started: {', '.join(sorted(jobs))}; if "
                        "they cannot start, stop them"
                    )


def _reservations(snapshot: Snapshot, queues: Collection[str]) -> dict[str, Counter[str]]:
    """Return the devices that Volcano reserves for admitted jobs that have not started.

    The keys are the namespaces and names of the jobs.
    """
    return {
        f"{group['metadata']['namespace']}/{owner(group)}": devices(group["spec"]["minResources"])
        - sum((request(pod) for pod in _pods(snapshot, group) if is_scheduled(pod)), Counter[str]())
        for group in snapshot.all("PodGroup")
        if group.get("status", {}).get("phase") == "Inqueue"
        and queue_of(group) in queues
        and group["spec"].get("minResources")
        and needs_pods(snapshot, group)
    }


def _scheduler_messages(snapshot: Snapshot, group: Object, pods: list[Object]) -> list[str]:
    """Return Volcano's messages about the unscheduled pods of a PodGroup.

    The messages come from the pods' conditions and, if the PodGroup is pending, from its events.
    The message of a pod that Volcano has provisionally assigned to a node contains no reason; in
    this case, the reason comes from the PodGroup's condition. If there is no useful message, return
    the message of the PodGroup's condition, which states how many pods are missing.
    """
    conditions: list[Object] = group.get("status", {}).get("conditions", [])
    latest = max(conditions, key=lambda c: str(c.get("lastTransitionTime", "")), default=None)
    condition = str(latest["message"]) if latest and latest["type"] == "Unschedulable" else ""
    _, _, origin = condition.partition("Origin reason is ")
    messages = [_unschedulable(pod) for pod in pods if not is_scheduled(pod)]
    if origin:
        messages = [origin, *(text for text in messages if "can possibly be assigned" not in text)]
    if group.get("status", {}).get("phase", "Pending") == "Pending":
        messages += [
            event["message"]
            for event in snapshot.all("Event")
            if event["involvedObject"].get("uid") == group["metadata"].get("uid")
            and (event["type"], event["reason"]) == ("Normal", "Unschedulable")
        ]
    if useful := [text for text in messages if text and not text.startswith("pod group is not")]:
        return list(dict.fromkeys(useful))
    return [condition] if condition else []


def _standalone_pods(snapshot: Snapshot) -> Iterator[Waiting]:
    for pod in snapshot.active():
        if not is_scheduled(pod) and group_of(pod) is None and (message := _unschedulable(pod)):
            namespace, name = key(pod)
            yield Waiting(namespace, name, "", "the pod is not scheduled", (message,))


def _unschedulable(pod: Object) -> str:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""
