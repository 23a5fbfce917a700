"""Parts of a record: what governs, scales, updates and runs the pods of an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

STRICT: Final[dict[str, Any]] = {"extra": "forbid"}
"""Configuration with which pydantic refuses unknown fields in records of users."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The part of an object that governs a gang; paths start at `at`.

    `annotations` states whether annotations and labels may name the queue, too, and
    `member_annotation` whether one states the minimum of the gang. `whole` marks gangs whose
    minimum defaults to all pods. `retries_default` marks kinds that are not retried without a
    limit, and `each_pod` those that count every failed pod as a retry; `extra` is what they add to
    the limit, and `least` the smallest limit that they accept. `in_place` states whether restarts
    of containers count, and `pod_deadline` that only pods have a deadline. `claims` is the path of
    the names of claims that all pods mount.
    """

    __pydantic_config__: ClassVar = STRICT

    at: str = "spec"
    queue: str = ""
    annotations: bool = True
    gang: str = ""
    member_annotation: bool = False
    whole: bool = False
    scheduler: str = ""
    retries: str = ""
    retries_default: bool = True
    least: int = 0
    extra: int = 0
    each_pod: bool = False
    in_place: bool = True
    deadline: str = ""
    pod_deadline: bool = False
    claims: str = ""


@dataclass(frozen=True, kw_only=True)
class Scaler:
    """An autoscaler: paths of what it scales and of its limits, with their defaults.

    `fixed` is the path of a number that replaces the limits. `exclusive` states that what it scales
    must not state a number itself.
    """

    __pydantic_config__: ClassVar = STRICT

    target: str
    minimum: str
    maximum: str
    target_kind: str = ""
    default_minimum: int = 1
    default_maximum: int = 1
    fixed: str = ""
    exclusive: bool = True


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How an update replaces pods.

    `at` is the path of `maxSurge` and `maxUnavailable`, whose defaults are `surge` and
    `unavailable`; no update can remove fewer pods than `least`. `type` is the path of the
    strategy's type, and `stopping` are the types that remove all pods first. `double` is the path
    of a strategy that runs all pods twice: if it is stated, or, with `single`, unless its value is
    one of these. `without` is the path of a part with which no pod is started in addition.
    """

    __pydantic_config__: ClassVar = STRICT

    at: str = ""
    surge: int | str = 0
    unavailable: int | str = 0
    least: int = 0
    type: str = ""
    stopping: tuple[str, ...] = ("Recreate", "OnDelete")
    double: str = ""
    single: tuple[str, ...] = ()
    without: str = ""


SURGING: Final = Rollout(surge="25%", unavailable="25%")
"""The update of a Deployment that states nothing."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The object whose pods an object runs: paths of its kind and name, and of the nodes.

    `kind_default` is the kind if none is stated, and `nodes_default` the path of the number of
    nodes in the other object.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: str
    name: str
    kind_default: str
    nodes: str
    nodes_default: str


@dataclass(frozen=True, kw_only=True)
class ClaimTemplates:
    """Claims that a controller creates: path of each, and from there of specification and name.

    Without a name, all of them may contain checkpoints, because they are deleted with the object.
    """

    __pydantic_config__: ClassVar = STRICT

    at: str
    spec: str
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """A proxy that probes and restarts the containers, unless an annotation has another value."""

    __pydantic_config__: ClassVar = STRICT

    annotation: str = ""
    values: tuple[str, ...] = ()
