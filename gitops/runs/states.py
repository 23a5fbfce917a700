"""The state of a job of any kind, in one set of words."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from gitops.runs.picture import BATCH_JOB, Object


class State(StrEnum):
    """What a run is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self in (State.SUCCEEDED, State.FAILED)


JOB_KINDS: Final[Mapping[str, str]] = {
    "Job": "Volcano Job",
    BATCH_JOB: "Job",
    "PyTorchJob": "PyTorchJob",
    "TrainJob": "TrainJob",
    "RayJob": "RayJob",
}
"""Kinds of objects that a run may be, and what people call them."""

_VOLCANO: Final[Mapping[str, State]] = {
    "Completed": State.SUCCEEDED,
    "Failed": State.FAILED,
    "Terminated": State.FAILED,
    "Terminating": State.FAILED,
    "Aborted": State.SUSPENDED,
    "Aborting": State.SUSPENDED,
    "Restarting": State.RESTARTING,
    "Running": State.RUNNING,
    "Completing": State.RUNNING,
}

_CONDITIONS: Final[Mapping[str, State]] = {
    "Complete": State.SUCCEEDED,
    "Succeeded": State.SUCCEEDED,
    "Failed": State.FAILED,
    "Suspended": State.SUSPENDED,
    "Restarting": State.RESTARTING,
}
"""Types of conditions of Kubernetes' Jobs and Kubeflow's, while their status is True."""

_RAY: Final[Mapping[str, State]] = {
    "Complete": State.SUCCEEDED,
    "Failed": State.FAILED,
    "Suspended": State.SUSPENDED,
    "Retrying": State.RESTARTING,
}


def state_of(kind: str, job: Object, running: int) -> State:
    """The state of a job of which so many pods run."""
    status: Mapping[str, Any] = job.get("status", {})
    pods = State.RUNNING if running else State.WAITING
    match kind:
        case "Job":
            return _VOLCANO.get(str(status.get("state", {}).get("phase", "")), pods)
        case "RayJob":
            return _RAY.get(str(status.get("jobDeploymentStatus", "")), pods)
        case _:
            true = {c["type"] for c in status.get("conditions", []) if c["status"] == "True"}
            return next((state for name, state in _CONDITIONS.items() if name in true), pods)
