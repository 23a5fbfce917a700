"""Parts of a kind's record: job, autoscaler, rollout, runtime, claim templates and proxy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

STRICT: Final[dict[str, Any]] = {"extra": "forbid"}
"""Pydantic configuration that rejects unknown fields in users' records."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Fields that set a job's queue, gang, retries and deadline. Paths are relative to `at`."""

    __pydantic_config__: ClassVar = STRICT

    at: str = "spec"
    """Path of the object that contains these fields."""
    queue: str = ""
    """Path of the queue's name."""
    annotations: bool = True
    """True if annotations and labels may also specify the queue and the PodGroup."""
    gang: str = ""
    """Path of the minimum number of pods that start together."""
    member_annotation: bool = False
    """True if the `scheduling.volcano.sh/group-min-member` annotation sets the gang's minimum."""
    whole: bool = False
    """True if the gang's minimum defaults to all pods."""
    grouped: str = ""
    """Path of a field that makes the controller create a Volcano PodGroup of all pods."""
    group_queue: str = ""
    """Path of this PodGroup's queue. Annotations of pods do not change it."""
    scheduler: str = ""
    """Path of the scheduler's name for pods that do not set one."""
    retries: str = ""
    """Path of the retry limit."""
    retries_default: bool = True
    """True if the retry limit may be omitted."""
    retries_each: str = ""
    """Path of the retry limit per index, which applies if `retries` has no value."""
    least: int = 0
    """Smallest retry limit that the controller does not replace; Volcano replaces 0 with 3."""
    extra: int = 0
    """1 if the job fails when its retries reach the limit; 0 if they must exceed it."""
    each_pod: bool = False
    """True if every failed pod counts as a retry."""
    in_place: bool = True
    """True if container restarts by the kubelet count towards the retry limit."""
    deadline: str = ""
    """Path of the job's deadline."""
    pod_deadline: bool = False
    """True if the deadline applies to each pod, not to the job."""
    claims: str = ""
    """Path of the names of the claims that all pods mount."""


@dataclass(frozen=True, kw_only=True)
class Scaler:
    """An autoscaler: paths of its target and its limits."""

    __pydantic_config__: ClassVar = STRICT

    target: str
    """Path of the reference to the scaled object."""
    minimum: str
    """Path of the minimum number of replicas."""
    maximum: str
    """Path of the maximum number of replicas."""
    scheduled: tuple[str, ...] = ()
    """Paths of numbers that replace the maximum at certain times."""
    target_kind: str = ""
    """Kind of the target if the reference does not specify a kind."""
    default_minimum: int = 1
    default_maximum: int = 1
    fixed: str = ""
    """Path of a fixed number of replicas, which overrides the minimum."""
    exclusive: bool = True
    """True if the target must not set its number of replicas itself."""
    part: str = ""
    """Path of the name of a part of the target. If it is set, only this part is scaled."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Fields and defaults of the update strategy."""

    __pydantic_config__: ClassVar = STRICT

    at: str = ""
    """Path of the object with `maxSurge` and `maxUnavailable`."""
    surge: int | str = 0
    """Default of `maxSurge`."""
    unavailable: int | str = 0
    """Default of `maxUnavailable`."""
    least: int = 0
    """Number of pods that every update removes at a time, regardless of `maxUnavailable`."""
    type: str = ""
    """Path of the type of the update strategy."""
    stopping: tuple[str, ...] = ("Recreate", "OnDelete")
    """Strategy types that remove an old pod before they start a new one."""
    double: str = ""
    """Path of a field that makes updates run all old and new pods at the same time (blue-green)."""
    single: tuple[str, ...] = ()
    """Values of the field at `double` for which updates do not double the number of pods.

    If empty, updates double the number for every value of the field.
    """
    routed: str = ""
    """Path of a field that keeps all old pods running while an update starts the new ones."""
    added: tuple[str, ...] = ()
    """Paths of numbers of pods that a step of an update starts in addition to the old pods."""
    without: str = ""
    """Path of a field that, if set, prevents updates from starting additional pods."""


DEFAULT_ROLLOUT: Final = Rollout(surge="25%", unavailable="25%")
"""The default update strategy of a Deployment."""


@dataclass(frozen=True, kw_only=True)
class RuntimeReference:
    """Reference to one or more other objects that define the pods, such as a TrainJob's runtime."""

    __pydantic_config__: ClassVar = STRICT

    kind: str = ""
    """Path of the referenced object's kind."""
    name: str
    """Path of the referenced object's name; it may contain `*`."""
    kind_default: str
    """Kind of the referenced object if the reference does not specify one."""
    nodes: str = ""
    """Path of the number of nodes."""
    nodes_default: str = ""
    """Path of the default number of nodes in the referenced object."""


@dataclass(frozen=True, kw_only=True)
class ClaimTemplates:
    """Templates of the claims that a controller creates."""

    __pydantic_config__: ClassVar = STRICT

    at: str
    """Path of the templates."""
    spec: str
    """Path of the claim's specification in the template."""
    name: str = ""
    """Path of the claim's name in the template.

    If empty, the controller generates the names and deletes the claims with the object; rules then
    assume that every claim may contain checkpoints.
    """


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """A proxy, such as Knative's, that probes and restarts the containers."""

    __pydantic_config__: ClassVar = STRICT

    annotation: str = ""
    """Annotation that can disable the proxy. If empty, the proxy cannot be disabled."""
    values: tuple[str, ...] = ()
    """Values of the annotation that enable the proxy. A missing annotation also enables it."""
