"""Snapshot of a cluster, taken with kubectl, and values computed from its objects."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from gitops.errors import GitopsError
from kube.accelerators import Accelerators, device_counts
from kube.kinds import RESOURCES
from kube.names import GROUP_ANNOTATION
from kube.quantities import quantity_or_none

Object = Mapping[str, Any]

_JOBS: Final = {(resource.group, resource.kind): resource.name for resource in RESOURCES}
BUILT_IN_RESOURCES: Final = (
    "pods",
    "events",
    "nodes",
    "persistentvolumeclaims",
    "priorityclasses.scheduling.k8s.io",
)
"""API resources that every cluster has."""
OPTIONAL_RESOURCES: Final = (
    *_JOBS.values(),
    "podgroups.scheduling.volcano.sh",
    "queues.scheduling.volcano.sh",
)
"""API resources that only some clusters have."""
_ACCELERATORS: Final = Accelerators()
_FINISHED: Final = ("Succeeded", "Failed")
_LOG_LINE: Final = re.compile(r"^[EIW][0-9]{4} .*\n?", re.MULTILINE)
"""Line of kubectl's log, such as a failed attempt to connect. It begins with a level and a date."""

TIMEOUT_SECONDS = 60.0
"""Timeout (s) for each kubectl command, except for logs."""

LOG_TIMEOUT_SECONDS = 10.0
"""Timeout (s) for the log of a pod. The API server waits longer for the kubelet of a lost node."""

PERMISSION_REMEDY: Final = "the platform's stack sets permissions in tenancy.groups (docs/teams.md)"
"""Remedy for a user who lacks a permission in a namespace of the stack."""


class ForbiddenError(GitopsError):
    """Error for pods that the user is not allowed to list."""


class NoResponseError(GitopsError):
    """Error for a cluster that did not respond in time."""


@dataclass
class Snapshot:
    """Objects of a cluster, grouped by kind or, for jobs, by API resource."""

    objects: dict[str, list[Object]] = field(default_factory=dict)
    namespace: str | None = None
    """The only namespace whose objects are included; None for all namespaces."""

    @classmethod
    def of(cls, items: Sequence[Object], namespace: str | None = None) -> "Snapshot":
        """Return a snapshot of these objects."""
        snapshot = cls(namespace=namespace)
        for item in items:
            group = item.get("apiVersion", "").rpartition("/")[0]
            kind = str(item["kind"])
            snapshot.objects.setdefault(_JOBS.get((group, kind), kind), []).append(item)
        return snapshot

    def all(self, kind: str) -> list[Object]:
        """Return the objects of a kind (`Pod`) or of a job's API resource (`jobs.batch`)."""
        return self.objects.get(kind, [])

    def find(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """Return one object by name. If `namespace` is None, search all namespaces."""
        for manifest in self.all(kind):
            metadata = manifest["metadata"]
            if metadata["name"] == name and namespace in (None, metadata.get("namespace")):
                return manifest
        return None

    @property
    def shows_usage(self) -> bool:
        """True if nodes, queues and the pods of all namespaces could be listed."""
        return self.namespace is None and bool(self.all("Node") and self.all("Queue"))

    def active(self) -> list[Object]:
        """Return the pods that have not finished."""
        return [
            pod for pod in self.all("Pod") if pod.get("status", {}).get("phase") not in _FINISHED
        ]

    def succeeded(self) -> Counter[tuple[str, str] | None]:
        """Return the number of succeeded pods of each PodGroup.

        Volcano counts these pods towards the minimum of their gang.
        """
        pods = self.all("Pod")
        return Counter(group_of(p) for p in pods if p.get("status", {}).get("phase") == "Succeeded")

    def total(self) -> Counter[str]:
        """Return the total number of allocatable devices for each resource name."""
        amounts: Counter[str] = Counter()
        for node in self.all("Node"):
            amounts += devices(node.get("status", {}).get("allocatable", {}))
        return amounts

    def used(self, queues: Collection[str] | None = None) -> Counter[str]:
        """Return the counts of devices that scheduled pods request, by resource name.

        If `queues` is given, only pods in these queues count.
        """
        groups: dict[tuple[str, str] | None, str] = {
            key(group): queue_of(group) for group in self.all("PodGroup")
        }
        amounts: Counter[str] = Counter()
        for pod in self.active():
            if is_scheduled(pod) and (queues is None or groups.get(group_of(pod)) in queues):
                amounts += request(pod)
        return amounts


@dataclass(frozen=True)
class Cluster:
    """Read-only access to a cluster through kubectl."""

    kubectl: Sequence[str] = ("kubectl",)
    """The kubectl command with its options."""
    namespace: str | None = None
    """The only namespace to read; None for all namespaces."""

    def snapshot(self) -> Snapshot:
        """Return the current objects of the cluster.

        Kinds that are not installed, or that the user is not allowed to list, are omitted.

        Raises:
            ForbiddenError: If the user is not allowed to list pods.
            GitopsError: If a request fails for another reason, for example because the cluster does
                not respond in time.
        """
        done = self._get(",".join(self._kinds))
        if done.returncode == 0:
            return Snapshot.of(_items(done.stdout), self.namespace)
        # The command fails as a whole if the user is not allowed to list one of the kinds.
        with ThreadPoolExecutor(len(self._kinds)) as pool:
            lists = list(pool.map(self._list, self._kinds))
        return Snapshot.of([item for items in lists for item in items], self.namespace)

    def logs(self, namespace: str, pod: str, lines: int) -> list[str]:
        """Return the last log lines of a pod with timestamps; empty if they cannot be read."""
        command = ("logs", "-n", namespace, pod, f"--tail={lines}", "--timestamps")
        # If a node is lost, its kubelet does not respond. Other runs must still be reported.
        with suppress(NoResponseError):
            done = self._run(*command, timeout=LOG_TIMEOUT_SECONDS)
            return done.stdout.splitlines() if done.returncode == 0 else []
        return []

    def read(self, *arguments: str) -> list[Object] | None:
        """Return the objects that `kubectl get` lists; None if listing is not allowed.

        Raises:
            GitopsError: If the request fails for another reason.
        """
        done = self._run("get", *arguments, "--output=json")
        if done.returncode == 0:
            return _items(done.stdout)
        if _is_forbidden(done):
            return None
        raise GitopsError(f"cannot list the {arguments[0]}: {error_of(done)}")

    @cached_property
    def _kinds(self) -> list[str]:
        # If an aggregated API is not available, kubectl fails, but prints all other resources.
        done = self._run("api-resources", "--output=name")
        if done.returncode != 0 and not done.stdout:
            raise GitopsError(f"cannot list the API resources: {error_of(done)}")
        known = set(done.stdout.split())
        return [*BUILT_IN_RESOURCES, *(kind for kind in OPTIONAL_RESOURCES if kind in known)]

    def _list(self, kind: str) -> list[Object]:
        done = self._get(kind)
        if done.returncode == 0:
            return _items(done.stdout)
        is_forbidden = _is_forbidden(done)
        if kind != "pods" and is_forbidden:
            return []
        scope = "the cluster" if self.namespace is None else f"namespace {self.namespace}"
        error = ForbiddenError if is_forbidden else GitopsError
        raise error(f"cannot list the {kind} of {scope}: {error_of(done)}")

    def _get(self, kinds: str) -> subprocess.CompletedProcess[str]:
        scope = ["--all-namespaces"] if self.namespace is None else ["-n", self.namespace]
        return self._run("get", kinds, *scope, "--output=json")

    def _run(
        self, *arguments: str, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [*self.kubectl, *arguments]
        seconds = TIMEOUT_SECONDS if timeout is None else timeout
        try:
            return subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=seconds,
            )
        except FileNotFoundError:
            raise GitopsError(
                f"{command[0]} was not found: install kubectl and put it on the PATH"
            ) from None
        except subprocess.TimeoutExpired:
            raise NoResponseError(
                f"the cluster did not respond within {seconds:g} s: check kubectl's context"
            ) from None


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error that kubectl printed, without logged and repeated lines."""
    lines = _LOG_LINE.sub("", done.stderr).strip().splitlines()
    return "\n".join(dict.fromkeys(lines)) or "kubectl printed no error"


def _is_forbidden(done: subprocess.CompletedProcess[str]) -> bool:
    # The message of the API server is: Error from server (Forbidden): pods is forbidden
    return "forbidden" in error_of(done).splitlines()[-1].lower()


def _items(text: str) -> list[Object]:
    """Return the objects in a list that kubectl printed. Raise GitopsError for other output."""
    try:
        items = json.loads(text)["items"]
        if all(map(_is_object, items)):
            return list(items)
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise GitopsError(f"kubectl did not print a list of objects, but {text[:80]!r}")


def _is_object(item: Object) -> bool:
    is_complete = item["kind"] != "Pod" or isinstance(item["spec"]["containers"], list)
    return is_complete and "name" in item["metadata"]


def request(pod: Object) -> Counter[str]:
    """Return the counts of devices that a pod requests, by resource name."""
    amounts: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        amounts += devices(container.get("resources", {}).get("limits", {}))
    return amounts


def devices(amounts: Mapping[str, Any]) -> Counter[str]:
    """Return the counts of GPUs and other extended resources. Quota keys are omitted."""
    quota_prefixes = ("requests.", "limits.", "count/")
    named = {n: a for n, a in amounts.items() if "/" in n and not n.startswith(quota_prefixes)}
    # Counts may have suffixes: the API server writes 1000 as 1k.
    counts = {name: quantity_or_none(amount) for name, amount in named.items()}
    return Counter({name: int(count) for name, count in counts.items() if count is not None})


def accelerators(amounts: Mapping[str, Any]) -> Counter[str]:
    """Return the counts of GPUs and other accelerators. Network devices are omitted."""
    found = devices(amounts)
    included = {name: Decimal(n) for name, n in found.items() if _ACCELERATORS.includes(name)}
    return Counter({name: int(count) for name, count in device_counts(included).items()})


def is_scheduled(pod: Object) -> bool:
    """Return whether a pod is scheduled."""
    return bool(pod["spec"].get("nodeName"))


def key(manifest: Object) -> tuple[str, str]:
    """Return the namespace and name of an object."""
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def group_of(pod: Object) -> tuple[str, str] | None:
    """Return the namespace and name of a pod's PodGroup, or None if the pod has none."""
    name = pod["metadata"].get("annotations", {}).get(GROUP_ANNOTATION)
    return None if name is None else (pod["metadata"]["namespace"], name)


def owner(manifest: Object) -> str:
    """Return the name of an object's first owner, or the object's name if it has no owner."""
    owners = manifest["metadata"].get("ownerReferences", [])
    return str(owners[0]["name"] if owners else manifest["metadata"]["name"])


def queue_of(group: Object) -> str:
    """Return the queue of a PodGroup."""
    return str(group.get("spec", {}).get("queue", "default"))
