"""Description of a workload kind: its pods, their number, and the fields that control them.

A path is a string such as `spec.tasks.*.template.spec`. `*` stands for every item or value, and
`[...]` encloses a key with dots, or a pattern of keys in which `*` matches anything. Other paths
of a pod, such as the path of its replica count, may also contain `*`. There, `*` stands for the
same item as in the path of the pod specification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Final, Literal

from kube.workloads.control import (
    STRICT,
    ClaimTemplates,
    Job,
    Proxy,
    Rollout,
    RuntimeReference,
    Scaler,
)

_NO_JOB: Final = Job()
Role = Literal["training", "batch", "serving", "interactive", "system"]

_STEP: Final = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")
_PATH: Final = re.compile(r"(?:(?:^|(?<!^)\.)[^.\[\]]+|\[[^\]]+\])*")


@lru_cache(maxsize=4096)
def steps(path: str) -> tuple[str, ...]:
    """Return the keys of a path; raise ValueError if it is malformed."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r}: separate the keys with dots, as in spec.template.spec")
    return tuple(quoted or plain for quoted, plain in _STEP.findall(path))


@dataclass(frozen=True, kw_only=True)
class Count:
    """One factor of the number of pods, which is the product of all factors."""

    __pydantic_config__: ClassVar = STRICT

    paths: tuple[str, ...]
    """Paths of the number. The first path with a value determines the requested number."""
    maxima: tuple[str, ...] = ()
    """Paths of autoscaling limits. The maximum is the largest value at `paths` and `maxima`."""
    enabled: str = ""
    """Path of a boolean that enables `maxima`. If empty, `maxima` always apply."""
    default: int | None = 1
    """Number if no path has a value. None means one requested pod and no maximum."""
    words: Mapping[str, int] = field(default_factory=dict)
    """Maps words that the field may contain instead of a number, such as `Forbid`, to numbers."""
    less_with: str = ""
    """Path of a field that reduces the number by one if it is set."""
    elsewhere: bool = False
    """True if another object sets the number, which is therefore unknown if no path has a value."""
    divisor: str = ""
    """Path of a number by which the number of pods is divided."""
    limit: str = ""
    """Path of a value that caps the number, such as a Job's `completions`."""
    rollout: Rollout | None = None
    """Update strategy of these pods."""
    part: str = ""
    """Path of the name by which an autoscaler selects these pods (`Scaler.part`).

    If the value is an object, its key is the name.
    """
    member: str = ""
    """Path of the name by which a list at `members` selects these pods."""
    members: str = ""
    """Path of lists of names. In `paths` and `maxima`, `*` stands for the item whose list
    contains the name at `member`."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Accelerators that are requested outside of `resources.limits`."""

    __pydantic_config__: ClassVar = STRICT

    each: str
    """Path of the requests, relative to the pod.

    If neither `resource` nor `name` is set, each request is a number, and its key is the name of
    the resource.
    """
    resource: str = ""
    """Name of the resource, if it is fixed."""
    name: str = ""
    """Path of the resource's name in a request."""
    count: str = ""
    """Path of the number in a request. If empty, each request is for one device."""


@dataclass(frozen=True, kw_only=True)
class AddedClaims:
    """ResourceClaims that a controller adds to a pod.

    The controller also adds them to the container whose fields are at the path of the pod
    (`Pods.at`).
    """

    __pydantic_config__: ClassVar = STRICT

    at: str
    """Path of the claims, relative to the pod, with the fields of a pod's `resourceClaims`."""
    devices: str
    """Path of the requested devices, relative to the claim, if the controller creates the claim."""
    device_class: str
    """Device class of devices that do not set `deviceClassName`."""


@dataclass(frozen=True, kw_only=True)
class Pods:
    """The pods at one path in the objects of a kind."""

    __pydantic_config__: ClassVar = STRICT

    at: str
    """Path of the object with the fields of a pod specification."""
    containers: tuple[str, ...] = ()
    """Paths, relative to `at`, of containers outside of the usual lists. "" is `at` itself."""
    reference: str = ""
    """Field of a container at `containers` that refers to the rest of its definition."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Maps paths in `containers` to the path of an object with defaults for these containers."""
    defaults: tuple[str, ...] = ()
    """Paths of objects that contain default values for the pod's fields."""
    inherited: tuple[str, ...] = ()
    """Fields to which `defaults` apply; empty for all fields."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Maps names of container fields to paths, for fields that have other names in this kind."""
    context: Mapping[str, str] = field(default_factory=dict)
    """Like `fields`, but for fields of the pod's security context."""
    metadata: str = ""
    """Path of the pod's metadata, if it is not next to the specification."""
    copied: tuple[str, ...] = ()
    """Paths of other objects whose annotations and labels the controller copies to the pod.

    These labels do not determine the role of the pod.
    """
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the controller adds to the pod. `{name}` stands for the name of the object."""
    priority: tuple[str, ...] = ()
    """Other fields that may set the priority or priority class of the pod or its gang."""
    count: tuple[Count, ...] = ()
    """Numbers whose product is the number of pods."""
    devices: tuple[Devices, ...] = ()
    """Accelerators that the pod requests outside of its containers."""
    claims: AddedClaims | None = None
    restart: str = ""
    """Path of a policy that overrides the pod's restart policy."""
    restart_default: str = ""
    """Restart policy that the controller sets if neither the pod nor `restart` sets one."""
    images: tuple[str, ...] = ()
    """Paths of images outside of containers."""
    supplied: tuple[str, ...] = ()
    """Fields that the controller sets if the manifest does not."""
    first_supplied: bool = False
    """True if the controller sets `supplied` only for the first container."""
    partial: bool = False
    """True if the object may be only part of a pod specification.

    An object with a `containers` field is treated as complete.
    """
    override: bool = False
    """True if the object, including its containers, only overrides fields of other pods."""
    additional: bool = False
    """True if the object only adds metadata to other pods. Its labels do not select a role."""
    machine: bool = False
    """True if the object requests devices but is not a pod. An example is a virtual machine."""


@dataclass(frozen=True, kw_only=True)
class WorkloadKind:
    """Description of a workload kind: its pods, and the fields that control them."""

    __pydantic_config__: ClassVar = STRICT

    group: str
    kind: str
    """Name of the kind; `*` stands for every kind of the group."""
    pods: tuple[Pods, ...] = ()
    roles: tuple[Role, ...] = ("serving", "training", "batch", "interactive")
    """Roles that a label may select for the pods. The first one is the default."""
    ends: bool | None = None
    """True if the pods run to completion. If None, their `restartPolicy` decides."""
    always: bool = False
    """True if pods without GPUs also have the default role."""
    job: Job = _NO_JOB
    """Fields that set the queue, gang, retries and deadline."""
    scaler: Scaler | None = None
    """Fields of the autoscaler, if the kind is an autoscaler."""
    scaled: str = "spec.replicas"
    """Path of the number of replicas that an autoscaler sets."""
    adapter: str = ""
    """Kind of the objects through which autoscalers scale a part (`Count.part`).

    Their names consist of the name of this object, a hyphen and the name of the part, in lower
    case.
    """
    rollout: Rollout | None = None
    """Update strategy of the pods."""
    suspend: tuple[str, ...] = ("spec.suspend",)
    """Paths of the booleans that suspend the object."""
    runs: RuntimeReference | None = None
    """Reference to another object that defines the pods of this object."""
    completed: bool = False
    """True if another object, such as a TrainJob, completes the specification and runs the pods."""
    claims: tuple[ClaimTemplates, ...] = ()
    proxy: Proxy | None = None
    awaited: bool = False
    """True if Pulumi waits until the object has completed."""
    namespaced: bool = True
    objects: tuple[str, ...] = ()
    """Paths of complete manifests inside the object."""
    copies: Count | None = None
    """Number of objects that run at the same time for each manifest in `objects`."""
    shares_namespace: bool = False
    """True if manifests in `objects` without a namespace get the namespace of this object.

    If this object has no namespace, the namespace of these manifests is unknown.
    """
    generators: tuple[str, ...] = ()
    """Paths of objects that contain a manifest's kind and name, and its other fields in `data`."""
    texts: tuple[str, ...] = ()
    """Paths of strings that may be manifests."""
    patterns: tuple[str, ...] = ()
    """Paths of objects that look like pods but are not run. "" is the whole object."""
    anchors: bool = False
    """True if keys may be written in parentheses, as in Kyverno's `+(key)`."""
    opaque: tuple[str, ...] = ()
    """Paths of fields that change pods in a way that rules cannot read."""
    json_patches: tuple[str, ...] = ()
    """Paths of JSON patches.

    They may modify only labels, because rules cannot evaluate other changes.
    """
    destinations: tuple[str, ...] = ()
    """Paths of strings that name the fields that an event sets in created objects (Argo Events)."""
    remote: tuple[str, ...] = ()
    """Paths of the source from which a controller fetches definitions of pods.

    The `cluster` source means that the definitions are in the cluster. A `values` field next to
    another source contains the values of a chart.
    """
    unseen: str = ""
    """Description of effects that rules cannot see, such as `it deploys a chart`."""


NO_RECORD: Final = WorkloadKind(group="", kind="")
"""Record of a kind that the registry does not list."""
