"""One look at a cluster: its objects as the API writes them, and what can be read off them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kube.names import GROUP_ANNOTATION

Object = Mapping[str, Any]

BATCH_JOB: Final = "Job.batch"
"""The kind of Kubernetes' own Jobs here; `Job` alone is Volcano's."""

_ENDED: Final = ("Succeeded", "Failed")


@dataclass
class Picture:
    """All that was asked for, by kind."""

    objects: dict[str, list[Object]] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Sequence[Object]) -> "Picture":
        """Sorts objects of many kinds."""
        picture = cls()
        for item in items:
            batch = item["kind"] == "Job" and item.get("apiVersion") == "batch/v1"
            picture.objects.setdefault(BATCH_JOB if batch else item["kind"], []).append(item)
        return picture

    def all(self, kind: str) -> list[Object]:
        """The objects of a kind."""
        return self.objects.get(kind, [])

    def find(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """One object by its name; in any namespace where that is None."""
        for thing in self.all(kind):
            metadata = thing["metadata"]
            if metadata["name"] == name and namespace in (None, metadata.get("namespace")):
                return thing
        return None

    def active(self) -> list[Object]:
        """Pods that have not ended."""
        return [pod for pod in self.all("Pod") if pod.get("status", {}).get("phase") not in _ENDED]

    def total(self) -> Counter[str]:
        """Devices of all nodes, by resource name."""
        found: Counter[str] = Counter()
        for node in self.all("Node"):
            found += devices(node.get("status", {}).get("allocatable", {}))
        return found

    def used(self, queue: str | None = None) -> Counter[str]:
        """Devices of the pods that have a node: all, or those of a queue's jobs."""
        groups: dict[tuple[str, str] | None, str] = {
            key(group): queue_of(group) for group in self.all("PodGroup")
        }
        found: Counter[str] = Counter()
        for pod in self.active():
            if placed(pod) and (queue is None or groups.get(group_of(pod)) == queue):
                found += request(pod)
        return found


def request(pod: Object) -> Counter[str]:
    """Devices that a pod asks for."""
    found: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        found += devices(container.get("resources", {}).get("limits", {}))
    return found


def devices(amounts: Mapping[str, Any]) -> Counter[str]:
    """GPUs and other devices, which are whole numbers, without a quota's names for them."""
    prefixes = ("requests.", "limits.", "count/")
    return Counter(
        {
            name: int(amount)
            for name, amount in amounts.items()
            if "/" in name and not name.startswith(prefixes) and str(amount).isdecimal()
        }
    )


def placed(pod: Object) -> bool:
    """Whether a pod has a node."""
    return bool(pod["spec"].get("nodeName"))


def key(thing: Object) -> tuple[str, str]:
    """Namespace and name."""
    return thing["metadata"]["namespace"], thing["metadata"]["name"]


def group_of(pod: Object) -> tuple[str, str] | None:
    """Namespace and name of the PodGroup that a pod is in."""
    name = pod["metadata"].get("annotations", {}).get(GROUP_ANNOTATION)
    return None if name is None else (pod["metadata"]["namespace"], name)


def owner(thing: Object) -> str:
    """Name of what an object belongs to: itself, where that is nothing."""
    owners = thing["metadata"].get("ownerReferences", [])
    return str(owners[0]["name"] if owners else thing["metadata"]["name"])


def queue_of(group: Object) -> str:
    """The queue of a PodGroup."""
    return str(group["spec"].get("queue", "default"))
