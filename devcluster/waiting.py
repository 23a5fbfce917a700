"""Why jobs wait: what Volcano says of each, and what can be counted beside it."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
_GROUP = "scheduling.k8s.io/group-name"
_OVER = ("Completed", "Failed", "Terminated", "Aborting", "Aborted")
_CORE = "nodes,pods,events"
_VOLCANO = "podgroups.scheduling.volcano.sh,queues.scheduling.volcano.sh,jobs.batch.volcano.sh"


@dataclass(frozen=True)
class Waiting:
    """A job whose pods are not all placed, and the reasons in plain words."""

    name: str
    state: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.state}", *(f"  {why}" for why in self.reasons)])


@dataclass
class Picture:
    """All that is in the cluster, by kind, as the API writes it."""

    objects: dict[str, list[Object]] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Sequence[Object]) -> "Picture":
        """Sorts objects of many kinds."""
        picture = cls()
        for item in items:
            picture.objects.setdefault(item["kind"], []).append(item)
        return picture

    def all(self, kind: str) -> list[Object]:
        """The objects of a kind."""
        return self.objects.get(kind, [])

    def active(self) -> list[Object]:
        """Pods that have not ended."""
        ended = ("Succeeded", "Failed")
        return [pod for pod in self.all("Pod") if pod.get("status", {}).get("phase") not in ended]

    def total(self) -> Counter[str]:
        """Devices of all nodes, by resource name."""
        found: Counter[str] = Counter()
        for node in self.all("Node"):
            found += _devices(node.get("status", {}).get("allocatable", {}))
        return found

    def used(self, queue: str | None = None) -> Counter[str]:
        """Devices of the pods that have a node: all, or those of a queue's jobs."""
        groups: dict[tuple[str, str] | None, str] = {
            _key(group): _queue(group) for group in self.all("PodGroup")
        }
        found: Counter[str] = Counter()
        for pod in self.active():
            if _placed(pod) and (queue is None or groups.get(_group_of(pod)) == queue):
                found += _request(pod)
        return found


def ask(kubectl: Sequence[str]) -> list[Waiting]:
    """What waits in a cluster. Without Volcano's definitions only single pods are looked at."""
    items: list[Object] = []
    for kinds in (_CORE, _VOLCANO):
        command = [*kubectl, "get", kinds, "--all-namespaces", "--output=json"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            items += json.loads(done.stdout)["items"]
    return waiting(Picture.of(items))


def waiting(picture: Picture) -> list[Waiting]:
    """Every job that waits, with its reasons, sorted by name."""
    found = [*_groups(picture), *_suspended(picture), *_single_pods(picture)]
    return sorted(found, key=lambda item: item.name)


def _groups(picture: Picture) -> Iterator[Waiting]:
    for group in picture.all("PodGroup"):
        pods = [pod for pod in picture.active() if _group_of(pod) == _key(group)]
        placed = sum(map(_placed, pods))
        least = int(group["spec"].get("minMember", 1))
        phase = group.get("status", {}).get("phase", "Pending")
        if phase == "Completed" or (placed >= least and placed == len(pods)):
            continue
        job = _find(picture, "Job", group["metadata"]["namespace"], _owner(group))
        if job is not None and _phase(job) in _OVER:
            continue
        yield Waiting(
            f"{group['metadata']['namespace']}/{_owner(group)} in queue {_queue(group)}",
            f"{placed} of {max(len(pods), least)} pods have a node, "
            + ("runs, and has room for more" if placed >= least else f"needs {least} at once"),
            tuple(_reasons(picture, group, pods, starting=placed < least)),
        )


def _suspended(picture: Picture) -> Iterator[Waiting]:
    for job in picture.all("Job"):
        if _phase(job) in ("Aborting", "Aborted"):
            namespace, name = _key(job)
            resume = f"`vcctl job resume --namespace {namespace} --name {name}` goes on with it"
            yield Waiting(f"{namespace}/{name}", "suspended", (resume,))


def _reasons(picture: Picture, group: Object, pods: list[Object], starting: bool) -> Iterator[str]:
    asks = sum((_request(pod) for pod in pods if not _placed(pod)), Counter[str]())
    if starting and (least := group["spec"].get("minResources")):
        asks = _devices(least) - sum((_request(p) for p in pods if _placed(p)), Counter[str]())
    counted = [*_queue_reasons(picture, _queue(group), asks), *_room_reasons(picture, asks)]
    said = _words(picture, group, pods)
    if starting and asks and not counted and not any("unavailable" in text for text in said):
        others = {_queue(other) for other in picture.all("PodGroup")} - {_queue(group)}
        counted.append(
            f"there is room, but not within the share of queue {_queue(group)} while others have "
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
    queue = _find(picture, "Queue", None, name)
    if queue is None:
        yield f"queue {name} does not exist"
        return
    state = queue.get("status", {}).get("state", "Open")
    if state != "Open":
        yield f"queue {name} is {state}: `vcctl queue operate --action open --name {name}` opens it"
    limits, used = _devices(queue["spec"].get("capability", {})), picture.used(name)
    for resource, limit in sorted(limits.items()):
        if asks[resource] > limit:
            yield f"asks for {asks[resource]} {resource}, but queue {name} may use {limit} in all"
        elif asks[resource] + used[resource] > limit:
            yield f"queue {name} is full: it uses {used[resource]} of {limit} {resource}"


def _words(picture: Picture, group: Object, pods: list[Object]) -> list[str]:
    """What the scheduler says of the pods, or in an event of a group that it holds back.

    Where that is nothing, what it says of the group, which tells only how many pods are missing.
    """
    said = [_unschedulable(pod) for pod in pods if not _placed(pod)]
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
        if not _placed(pod) and _group_of(pod) is None and (message := _unschedulable(pod)):
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            yield Waiting(name, "the pod has no node", (message,))


def _unschedulable(pod: Object) -> str:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def _request(pod: Object) -> Counter[str]:
    found: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        found += _devices(container.get("resources", {}).get("limits", {}))
    return found


def _devices(amounts: Mapping[str, Any]) -> Counter[str]:
    """GPUs and other devices, which are whole numbers, without a quota's names for them."""
    prefixes = ("requests.", "limits.", "count/")
    return Counter(
        {
            name: int(amount)
            for name, amount in amounts.items()
            if "/" in name and not name.startswith(prefixes) and str(amount).isdecimal()
        }
    )


def _placed(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def _key(thing: Object) -> tuple[str, str]:
    return thing["metadata"]["namespace"], thing["metadata"]["name"]


def _group_of(pod: Object) -> tuple[str, str] | None:
    name = pod["metadata"].get("annotations", {}).get(_GROUP)
    return None if name is None else (pod["metadata"]["namespace"], name)


def _owner(group: Object) -> str:
    owners = group["metadata"].get("ownerReferences", [])
    return str(owners[0]["name"] if owners else group["metadata"]["name"])


def _queue(group: Object) -> str:
    return str(group["spec"].get("queue", "default"))


def _phase(job: Object) -> str:
    return str(job.get("status", {}).get("state", {}).get("phase", ""))


def _find(picture: Picture, kind: str, namespace: str | None, name: str) -> Object | None:
    for thing in picture.all(kind):
        metadata = thing["metadata"]
        if metadata["name"] == name and namespace in (None, metadata.get("namespace")):
            return thing
    return None
