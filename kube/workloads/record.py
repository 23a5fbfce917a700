"""The record of a kind: where its objects state their pods, how many, and what governs them.

A path is text: `spec.tasks.*.template.spec`, in which `*` stands for every item or value and
`[...]` encloses a key with dots, or a pattern of keys in which `*` matches anything. In a path next
to the pods, `*` stands for the same items as in the path of the pods.
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
    Run,
    Scaler,
)

_UNGOVERNED: Final = Job()
Role = Literal["training", "batch", "serving", "interactive", "system"]

_STEP: Final = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")
_PATH: Final = re.compile(r"(?:(?:^|(?<!^)\.)[^.\[\]]+|\[[^\]]+\])*")


@lru_cache(maxsize=4096)
def steps(path: str) -> tuple[str, ...]:
    """Return the keys of a path; raise ValueError if it is malformed."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r}: write keys with dots between them, such as spec.template.spec")
    return tuple(quoted or plain for quoted, plain in _STEP.findall(path))


@dataclass(frozen=True, kw_only=True)
class Count:
    """A number that multiplies the pods.

    The first existing value of `paths` is what the manifest requests, and the largest of all,
    `maxima` included, is the maximum. `maxima` apply only if the value at `enabled` is true (always
    if there is no such path). If nothing is set, the number is `default`, or unlimited if that is
    None. `words` maps the words that stand for numbers. `less_with` is a path that takes one away,
    `divisor` one that divides, and `limit` one that no number exceeds. `elsewhere` marks numbers
    that are unknown unless they are stated, because another object has them. `rollout` states how
    the operator updates these pods.
    """

    __pydantic_config__: ClassVar = STRICT

    paths: tuple[str, ...]
    maxima: tuple[str, ...] = ()
    enabled: str = ""
    default: int | None = 1
    words: Mapping[str, int] = field(default_factory=dict)
    less_with: str = ""
    elsewhere: bool = False
    divisor: str = ""
    limit: str = ""
    rollout: Rollout | None = None


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Accelerators that are requested outside of `resources.limits`.

    `each` is the path of the requests; `resource` the name of the resource, or `name` its path in
    the request; `count` the path of the number, one without it. Paths start at the pod.
    """

    __pydantic_config__: ClassVar = STRICT

    each: str
    resource: str = ""
    name: str = ""
    count: str = ""


@dataclass(frozen=True, kw_only=True)
class Pods:
    """The pods that objects of a kind state at one place.

    `at` is the path of the object with the fields of a pod specification. `containers` are the
    paths from there of containers outside of the usual lists; an empty path is the object itself.
    `fields` maps fields of these containers to the paths at which the kind has them, `supplied` are
    those that the controller adds, `context` maps fields of the pod's security context in the same
    way, and `images` paths of images outside of containers. `defaults`
    are paths of objects whose fields apply where the pod has none: those named by `inherited`, or
    all. `metadata` and `restart` are paths of what other kinds state in the template. `partial`
    marks pods of which the rest is stated elsewhere, unless they list containers. `machine` marks
    what requests devices without being a pod.
    """

    __pydantic_config__: ClassVar = STRICT

    at: str
    containers: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    inherited: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    metadata: str = ""
    count: tuple[Count, ...] = ()
    devices: tuple[Devices, ...] = ()
    restart: str = ""
    images: tuple[str, ...] = ()
    supplied: tuple[str, ...] = ()
    partial: bool = False
    machine: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkloadKind:
    """What is known about a kind; `*` is every kind of the group.

    `roles` are the roles that a label may choose for its pods, the default first; `ends` states
    whether they run to completion (None: `restartPolicy` decides), and `always` that pods without
    GPUs have the default role, too. `objects` are paths of complete manifests inside, `generators`
    of those whose fields stand in `data` next to kind and name, `texts` of strings that may be
    manifests, `patterns` of what looks like a pod and runs none. `anchors` states that keys may be
    written in parentheses, as in Kyverno's `+(key)`. `opaque` are paths of fields that change pods
    in a way that no rule reads, and `json_patches` of JSON patches, which rules read no further
    than the metadata that they change. `unseen` states what it deploys
    that no rule can see. `scaled` is the path of the number that an autoscaler sets. `suspend` are
    the paths of the switches that keep it from running. `runs` is the object whose pods it runs,
    and `completed` marks kinds whose pods such an object completes. `awaited` marks kinds whose end
    Pulumi awaits.
    """

    __pydantic_config__: ClassVar = STRICT

    group: str
    kind: str
    pods: tuple[Pods, ...] = ()
    roles: tuple[Role, ...] = ("serving", "training", "batch", "interactive")
    ends: bool | None = None
    always: bool = False
    job: Job = _UNGOVERNED
    scaler: Scaler | None = None
    scaled: str = "spec.replicas"
    rollout: Rollout | None = None
    suspend: tuple[str, ...] = ("spec.suspend",)
    runs: Run | None = None
    completed: bool = False
    claims: tuple[ClaimTemplates, ...] = ()
    proxy: Proxy | None = None
    awaited: bool = False
    namespaced: bool = True
    objects: tuple[str, ...] = ()
    generators: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    anchors: bool = False
    opaque: tuple[str, ...] = ()
    json_patches: tuple[str, ...] = ()
    unseen: str = ""
