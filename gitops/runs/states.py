"""The state of a job of any kind, in one set of words."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from gitops.runs.picture import BATCH_JOB, Object
from infra.step_names import job_prefix


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
    "JobFlow": "Volcano JobFlow",
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
        case "JobFlow":
            return _flow(job, pods)
        case _:
            true = {c["type"] for c in status.get("conditions", []) if c["status"] == "True"}
            return next((state for name, state in _CONDITIONS.items() if name in true), pods)


def _flow(flow: Object, pods: State) -> State:
    # Volcano calls it running even where a step has failed, after which nothing begins.
    phase = flow.get("status", {}).get("state", {}).get("phase")
    if phase == "Succeed":
        return State.SUCCEEDED
    found = set(steps(flow).values())
    telling = (State.FAILED, State.RESTARTING, State.SUSPENDED)
    return next((state for state in telling if state in found), pods)


def steps(flow: Object) -> dict[str, State]:
    """The jobs that a JobFlow has made so far, by name; none of another kind."""
    made = flow.get("status", {}).get("jobStatusList", ())
    return {job["name"]: _VOLCANO.get(job.get("state", ""), State.WAITING) for job in made}


def stage(flow: Object) -> str:
    """The step at which a JobFlow is or has failed; empty where none is under way."""
    found = steps(flow)
    failed = [name for name, state in found.items() if state is State.FAILED]
    going = [name for name, state in found.items() if not state.over]
    prefix = job_prefix(flow["metadata"]["name"])
    return ", ".join(step.removeprefix(prefix) for step in failed or going)
