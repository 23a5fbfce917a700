"""Scheduling state of a cluster as a versioned file, which is the input of a simulation."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel

from gitops.errors import GitopsError
from policies.kubernetes_yaml import BoundedLoader

VERSION: Final = 1

Amounts = dict[str, str]
"""Maps resource names to Kubernetes quantities."""
JsonObject = dict[str, JsonValue]
_KEPT_QUEUES: Final = ("default", "root")
_KEPT_CLASS_PREFIX: Final = "system-"
_KNOWN_LABELS: Final = ("nvidia.com/", "kubernetes.io/", "node.kubernetes.io/")
_TOPOLOGY: Final = "topology"
_KEYS_WITHOUT_NAMES: Final = ("state", "operator", "effect", "requests", "allocatable", "reserved")
"""Keys whose values are never names. These values are kept even if they equal a replaced name."""


class CamelModel(BaseModel):
    """Immutable model with keys in camel case."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class Node(CamelModel):
    """A node. Nodes that are not Ready are listed as unschedulable."""

    name: str
    labels: dict[str, str] = {}
    taints: list[JsonObject] = []
    unschedulable: bool = False
    allocatable: Amounts
    reserved: Amounts = {}
    """Requests of pods outside gangs, such as model servers and DaemonSets."""


class Queue(CamelModel):
    """A Volcano queue with its spec."""

    name: str
    spec: JsonObject = {}


class PriorityClass(CamelModel):
    """A PriorityClass with its value and preemption policy."""

    name: str
    value: int
    preemption_policy: str = "PreemptLowerPriority"
    is_default: bool = False
    """True if this is the class of all pods that do not specify a class."""


class PodShape(CamelModel):
    """Identical pods of a gang. `nodes` lists the nodes of the scheduled pods."""

    count: int = Field(ge=1)
    requests: Amounts
    nodes: list[str] = []
    constraints: JsonObject = {}
    """Node selector, affinity, tolerations and topology spread constraints of the pod's spec."""
    labels: dict[str, str] = {}
    """Labels that a pod's affinity may refer to."""


class Gang(CamelModel):
    """Pods that start together: a PodGroup, or a suspended job that will create one."""

    namespace: str
    name: str
    """Name of the job, or of the PodGroup if no job owns it."""
    state: Literal["running", "pending", "suspended"]
    queue: str
    priority_class: str = ""
    priority: int = 0
    """Priority of the pods; 0 if it is unknown, for example because the gang has no pods."""
    minimum: int = Field(ge=1)
    """Number of pods that must start together."""
    preemptable: bool | None = None
    """Value of Volcano's `preemptable` annotation; null if it is missing."""
    created: datetime
    started: datetime | None = None
    deadline_seconds: float | None = None
    """Time (s) after the start at which the job or its pods are terminated.

    Null if there is no deadline.
    """
    left_seconds: float | None = None
    """Remaining time (s), estimated from the log of the training program; null if unknown."""
    progress: float | None = Field(default=None, ge=0, le=1)
    """Completed fraction of the run; null if unknown."""
    saved: datetime | None = None
    """Time of the last checkpoint in the log or, without a checkpoint, the time at which the
    program started; null if unknown."""
    saves_every_seconds: float | None = None
    """Mean time (s) between checkpoints, counting the start of the program as a checkpoint; null if
    there are fewer than two."""
    pods: list[PodShape]

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def size(self) -> int:
        """Number of pods."""
        return sum(shape.count for shape in self.pods)

    def unsaved_seconds(self, taken: datetime, later: float) -> float | None:
        """Return the time (s) since the last checkpoint, as of `later` seconds after the snapshot.

        The gang is assumed to save checkpoints as often as before. Return None if neither the start
        nor a checkpoint is known.
        """
        since, interval = self.saved or self.started, self.saves_every_seconds
        if since is None:
            return None
        unsaved = max((taken - since).total_seconds(), 0.0)
        return unsaved + later if interval is None else min(unsaved + later, max(unsaved, interval))

    def remaining(self, now: datetime) -> float | None:
        """Return the seconds until the estimated end or the deadline; None if both are unknown.

        If both are known, the earlier one counts.
        """
        limits = [] if self.left_seconds is None else [self.left_seconds]
        if self.deadline_seconds is not None:
            end = (self.started or now) + timedelta(seconds=self.deadline_seconds)
            limits.append(max((end - now).total_seconds(), 0.0))
        return min(limits, default=None)


class State(CamelModel):
    """Scheduling state of a cluster at one point in time."""

    version: Literal[1] = VERSION
    taken: datetime
    redacted: bool = False
    volcano: str | None = None
    """Version of the scheduler; null if its Deployment could not be read."""
    scheduler_configuration: str | None = None
    """Text of volcano-scheduler.conf; null if it could not be read."""
    nodes: list[Node]
    queues: list[Queue]
    priority_classes: list[PriorityClass]
    gangs: list[Gang]
    notes: list[str] = []
    """Limitations of the snapshot, such as parts of the cluster that could not be read."""

    @property
    def actions(self) -> list[str]:
        """Actions of the scheduler; empty if its configuration is unknown or invalid."""
        text = str(self._scheduler_document().get("actions") or "")
        return [action.strip() for action in text.split(",") if action.strip()]

    @property
    def plugins(self) -> set[str]:
        """Plugins of the scheduler; empty if its configuration is unknown or invalid."""
        tiers = _mappings(self._scheduler_document().get("tiers"))
        return {
            str(plugin.get("name")) for tier in tiers for plugin in _mappings(tier.get("plugins"))
        }

    @property
    def evicts(self) -> bool:
        """True if the scheduler may evict pods. By default, Volcano does not evict pods."""
        return not {"preempt", "reclaim"}.isdisjoint(self.actions)

    def _scheduler_document(self) -> dict[str, Any]:
        try:
            document = yaml.safe_load(self.scheduler_configuration or "")
        except yaml.YAMLError:
            return {}
        return document if isinstance(document, dict) else {}

    def age(self, now: datetime | None = None) -> timedelta:
        """Return the time since the snapshot was taken."""
        return (now or datetime.now(UTC)) - self.taken

    def with_priorities(self) -> Self:
        """Return a copy of the state in which each gang has the priority of its PriorityClass.

        Gangs without a class get the default class. If a class is missing from the snapshot, all of
        its gangs get the first non-zero priority found among them.
        """
        priorities: dict[str, int] = {}
        for gang in self.gangs:
            name = gang.priority_class
            priorities[name] = priorities.get(name) or gang.priority
        priorities |= {each.name: each.value for each in self.priority_classes}
        default = next((each.name for each in self.priority_classes if each.is_default), "")
        gangs = [
            gang.model_copy(update={"priority_class": name, "priority": priorities[name]})
            if (name := gang.priority_class or default)
            else gang
            for gang in self.gangs
        ]
        return self.model_copy(update={"gangs": gangs})


def _mappings(value: object) -> list[dict[str, Any]]:
    """Return the mappings in a list; an empty list if the value is not a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def load(file: Path) -> State:
    """Read a snapshot (JSON or YAML).

    Raises:
        GitopsError: If the file cannot be read or is not a snapshot of this version.
    """
    try:
        document = yaml.load(file.read_text("utf-8"), BoundedLoader)  # noqa: S506  plain data only
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise GitopsError(f"cannot read the snapshot {file}: {error}") from None
    if not isinstance(document, Mapping) or "version" not in document:
        raise GitopsError(
            f"{file} is not a snapshot: create one with `python -m gitops snapshot --out {file}`"
        )
    if document["version"] != VERSION:
        raise GitopsError(
            f"{file}: version is {document['version']!r}, but this release reads version "
            f"{VERSION}: take a new snapshot"
        )
    try:
        state = State.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise GitopsError(f"{file}: {path}: {first['msg']}; take a new snapshot") from None
    known = {node.name for node in state.nodes}
    for gang in state.gangs:
        if missing := {name for shape in gang.pods for name in shape.nodes} - known:
            nodes = ", ".join(sorted(missing))
            raise GitopsError(
                f"{file}: gang {gang.namespace}/{gang.name} has pods on nodes that are not in the "
                f"snapshot: {nodes}; take a new snapshot"
            )
    return state


def dump(state: State, *, as_yaml: bool) -> str:
    """Return the text of a snapshot."""
    document: dict[str, Any] = state.model_dump(mode="json", by_alias=True, exclude_none=True)
    if as_yaml:
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def redact(state: State) -> State:
    """Replace names of nodes, namespaces, gangs, queues and PriorityClasses with pseudonyms.

    A name is replaced wherever a value equals it, so references stay intact. Node labels are kept
    if a gang's constraint refers to them, if NVIDIA or Kubernetes defines them, or if their prefix
    contains `topology`. Pod labels are kept only if a constraint refers to them. The values of kept
    labels are replaced only if they equal a replaced name.
    """
    classes = [each.name for each in state.priority_classes]
    classes += [gang.priority_class for gang in state.gangs]
    queues = [queue.name for queue in state.queues]
    queues += [str(queue.spec["parent"]) for queue in state.queues if queue.spec.get("parent")]
    queues += [gang.queue for gang in state.gangs]
    hidden = {
        **_pseudonyms("namespace", (gang.namespace for gang in state.gangs)),
        **_pseudonyms(
            "priority", (c for c in classes if c and not c.startswith(_KEPT_CLASS_PREFIX))
        ),
        **_pseudonyms("queue", (queue for queue in queues if queue not in _KEPT_QUEUES)),
        **_pseudonyms("run", (gang.name for gang in state.gangs)),
        **_pseudonyms("node", (node.name for node in state.nodes)),
    }
    shapes = (shape for gang in state.gangs for shape in gang.pods)
    referenced = set(_referenced_keys([shape.constraints for shape in shapes]))
    document = state.model_dump(mode="json")
    for node in document["nodes"]:
        node["labels"] = {
            k: v for k, v in node["labels"].items() if k in referenced or _is_known(k)
        }
    for shape in (shape for gang in document["gangs"] for shape in gang["pods"]):
        shape["labels"] = {k: v for k, v in shape["labels"].items() if k in referenced}
    for part in ("nodes", "queues", "gangs", "priority_classes"):
        document[part] = _replace_names(document[part], hidden)
    return State.model_validate({**document, "redacted": True})


def _pseudonyms(prefix: str, names: Iterable[str]) -> dict[str, str]:
    return {name: f"{prefix}-{n}" for n, name in enumerate(dict.fromkeys(names), 1)}


def _is_known(label: str) -> bool:
    return label.startswith(_KNOWN_LABELS) or _TOPOLOGY in label.partition("/")[0]


def _referenced_keys(value: Any) -> Iterator[str]:
    """Yield all keys in a tree, and the strings under `key` and `topologyKey`."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield key
            if key in ("key", "topologyKey"):
                yield str(child)
            yield from _referenced_keys(child)
    elif isinstance(value, list):
        for child in value:
            yield from _referenced_keys(child)


def _replace_names(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: child if key in _KEYS_WITHOUT_NAMES else _replace_names(child, names)
            for key, child in value.items()
        }
    if isinstance(value, list):
        return [_replace_names(child, names) for child in value]
    return names.get(value, value) if isinstance(value, str) else value
