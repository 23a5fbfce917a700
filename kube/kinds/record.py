"""Description of a job kind: API resource, requirements and supported settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

Path = tuple[str, ...]
"""Path in the status of an object, as a sequence of keys."""

Capability = Literal[
    "hyperparameters",
    "torchtitan",
    "min_nodes",
    "deadline_seconds",
    "attempt_deadline_seconds",
    "state: suspended",
    "state: stopped",
    "success: all",
    "success: first",
    "fatal_exit_codes",
    "steps",
    "inputs",
    "schedule",
    "launcher",
    "notebook",
]
"""A training job setting, or a value of a setting, that only some kinds support."""

TRAINING_PROGRAM: Final = "training"
"""The module that runs this repository's training program."""

GANG_RESTARTS: Final = "all pods are deleted and re-created together"
PEERS_FAIL_TOO: Final = (
    "their peers fail within `peer_timeout` and are handled in the same way (a custom `command` "
    "must detect a lost peer itself)"
)


class State(StrEnum):
    """State of a run."""

    WAITING = "waiting"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def finished(self) -> bool:
        """True if the run has finished, successfully or not."""
        return self in (State.SUCCEEDED, State.FAILED)


@dataclass(frozen=True, kw_only=True, eq=False)
class Resource:
    """An API resource, and the rules for reading the state of its objects.

    `phase` is the path of the phase in the status. It is empty if conditions report the state.
    `states` maps phases or condition types to states. If several conditions have the status True,
    the first one in `states` applies. If none applies, the pods determine whether the run is
    waiting or running. `restarts` is the path of the number of past restarts in the status.
    """

    group: str
    version: str
    kind: str
    plural: str
    title: str
    phase: Path = ()
    states: Mapping[str, State] = field(default_factory=dict)
    restarts: Path = ()

    @property
    def api_version(self) -> str:
        """Value of `apiVersion` in manifests."""
        return f"{self.group}/{self.version}"

    @property
    def name(self) -> str:
        """Name of the resource for kubectl, such as `jobs.batch`."""
        return f"{self.plural}.{self.group}"

    def state(self, status: Mapping[str, Any]) -> State | None:
        """Return the state that a status reports, or None if the pods determine it."""
        if self.phase:
            return self.states.get(str(_value(status, self.phase)))
        conditions = status.get("conditions", ())
        true = {c["type"] for c in conditions if c["status"] == "True"}
        return next((state for type_, state in self.states.items() if type_ in true), None)

    def restart_count(self, status: Mapping[str, Any]) -> int:
        """Return the number of restarts that a status reports."""
        return int(_value(status, self.restarts) or 0) if self.restarts else 0


RENDEZVOUS_PORT: Final = 23456
"""Port of the rendezvous at rank 0; also the default of Volcano's `pytorch` plugin."""

TRAINING_CONTAINER: Final = "training"
"""Name of the training container in kinds whose operator does not require another name."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Description of a job kind.

    `resource` is the type of the object that represents a run and has the run's name. `objects`,
    `needs` and `after_fault` are cells of a table in docs/jobs.md. `image_needs` lists what the
    image must contain in addition to the content of the default training image. `operator` names
    the operator that the embedded cluster installs for the kind. `program` is the module that jobs
    with hyperparameters run, if the kind supports them. `max_run_name` limits the length of a run's
    name. `pod_suffix` is the longest suffix that pod names add to the run's name, with `{last}` for
    the highest pod index. `containers` are the names of the containers that run the training image.
    Pods that communicate with each other use `ports`, so metrics need a different port. `service`
    states which runs have a Service with the name of the run (operators may create Services with
    longer names).
    """

    resource: Resource
    capabilities: frozenset[Capability]
    objects: str
    needs: str
    after_fault: str = GANG_RESTARTS
    image_needs: str | None = None
    operator: str | None = None
    program: str = TRAINING_PROGRAM
    max_run_name: int | None = None
    pod_suffix: str = "-worker-{last}"
    containers: tuple[str, ...] = (TRAINING_CONTAINER,)
    ports: frozenset[int] = frozenset()
    service: Literal["every run", "several pods", "route", "none"] = "every run"

    @property
    def has_launcher(self) -> bool:
        """True if an additional pod without GPUs starts training in the other pods."""
        return "launcher" in self.capabilities


def _value(status: Mapping[str, Any], path: Path) -> Any:
    value: Any = status
    for key in path:
        value = value.get(key, {})
    return value
