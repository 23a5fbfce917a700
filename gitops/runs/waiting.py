"""Why jobs wait: what Volcano says of each, and what can be counted beside it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from gitops.runs.jobs import is_made_by_another, wants_pods
from gitops.runs.picture import (
    Object,
    Picture,
    devices,
    group_of,
    key,
    owner,
    placed,
    queue_of,
    request,
)
from gitops.runs.states import JOB_KINDS, State, state_of


@dataclass(frozen=True)
class Waiting:
    """A job whose pods are not all placed, and the reasons in plain words."""

    namespace: str
    job: str
    queue: str
    state: str
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """Where it is and what it waits in."""
        queue = f" in queue {self.queue}" if self.queue else ""
        return f"{self.namespace}/{self.job}{queue}"

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.state}", *(f"  {why}" for why in self.reasons)])


def waiting(picture: Picture) -> list[Waiting]:
    """Every job that waits, with its reasons, sorted by name."""
    found = [*_groups(picture), *_suspended(picture), *_single_pods(picture)]
    return sorted(found, key=lambda item: item.name)


def _groups(picture: Picture) -> Iterator[Waiting]:
    for group in picture.all("PodGroup"):
        pods = [pod for pod in picture.active() if group_of(pod) == key(group)]
        having = sum(map(placed, pods))
        least = int(group["spec"].get("minMember", 1))
        phase = group.get("status", {}).get("phase", "Pending")
        if phase == "Completed" or (having >= least and having == len(pods)):
            continue
        if not wants_pods(picture, group):
            continue
        yield Waiting(
            group["metadata"]["namespace"],
            owner(group),
            queue_of(group),
            f"{having} of {max(len(pods), least)} pods have a node, "
            + ("runs, and has room for more" if having >= least else f"needs {least} at once"),
            tuple(_reasons(picture, group, pods, starting=having < least)),
        )


def _suspended(picture: Picture) -> Iterator[Waiting]:
    # A JobFlow is suspended where one of its steps is, which is told already.
    for kind in JOB_KINDS.keys() - {"JobFlow"}:
        for job in picture.all(kind):
            if state_of(kind, job, 0) is State.SUSPENDED and not is_made_by_another(kind, job):
                namespace, name = key(job)
                resume = "`suspend: false`"
                if kind == "Job":
                    resume = f"`vcctl job resume --namespace {namespace} --name {name}`"
                yield Waiting(namespace, name, "", "suspended", (f"{resume} goes on with it",))


def _reasons(picture: Picture, group: Object, pods: list[Object], starting: bool) -> Iterator[str]:
    asks = sum((request(pod) for pod in pods if not placed(pod)), Counter[str]())
    if starting and (least := group["spec"].get("minResources")):
        asks = devices(least) - sum((request(p) for p in pods if placed(p)), Counter[str]())
    counted = [*_queue_reasons(picture, queue_of(group), asks), *_room_reasons(picture, asks)]
    said = _words(picture, group, pods)
    if starting and asks and not counted and not any("unavailable" in text for text in said):
        others = {queue_of(other) for other in picture.all("PodGroup")} - {queue_of(group)}
        counted.append(
            f"there is room, but not within the share of queue {queue_of(group)} while others have "
            f"jobs as well: {', '.join(sorted(others)) or 'none'}"
        )
    yield from counted
    yield from (f"Volcano: {text}" for text in said)


def _room_reasons(picture: Picture, asks: Counter[str]) -> Iterator[str]:
    total, used = picture.total(), picture.used()
    for resource, amount in sorted(asks.items()):
        free = total[resource] - used[resource]
        if amount > total[resource]:
            yield f"asks for {amount} {resource}, but the cluster has {total[resource]} in all"
        elif amount > free:
            yield f"asks for {amount} {resource}, and {free} of {total[resource]} are free"


def _queue_reasons(picture: Picture, name: str, asks: Counter[str]) -> Iterator[str]:
    queue = picture.find("Queue", None, name)
    if queue is None:
        yield f"queue {name} does not exist"
        return
    state = queue.get("status", {}).get("state", "Open")
    if state != "Open":
        yield f"queue {name} is {state}: `vcctl queue operate --action open --name {name}` opens it"
    limits, used = devices(queue["spec"].get("capability", {})), picture.used(name)
    for resource, limit in sorted(limits.items()):
        if asks[resource] > limit:
            yield f"asks for {asks[resource]} {resource}, but queue {name} may use {limit} in all"
        elif asks[resource] + used[resource] > limit:
            yield f"queue {name} is full: it uses {used[resource]} of {limit} {resource}"


def _words(picture: Picture, group: Object, pods: list[Object]) -> list[str]:
    """What the scheduler says of the pods, or in an event of a group that it holds back.

    Where that is nothing, what it says of the group, which tells only how many pods are missing.
    """
    said = [_unschedulable(pod) for pod in pods if not placed(pod)]
    if group.get("status", {}).get("phase", "Pending") == "Pending":
        said += [
            event["message"]
            for event in picture.all("Event")
            if event["involvedObject"].get("uid") == group["metadata"].get("uid")
            and (event["type"], event["reason"]) == ("Normal", "Unschedulable")
        ]
    if telling := [text for text in said if text and not text.startswith("pod group is not")]:
        return list(dict.fromkeys(telling))
    conditions: list[Object] = group.get("status", {}).get("conditions", [])
    latest = max(conditions, key=lambda c: str(c.get("lastTransitionTime", "")), default=None)
    return [latest["message"]] if latest and latest["type"] == "Unschedulable" else []


def _single_pods(picture: Picture) -> Iterator[Waiting]:
    for pod in picture.active():
        if not placed(pod) and group_of(pod) is None and (message := _unschedulable(pod)):
            namespace, name = key(pod)
            yield Waiting(namespace, name, "", "the pod has no node", (message,))


def _unschedulable(pod: Object) -> str:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""
