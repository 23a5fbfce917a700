"""States of runs, derived from jobs of every kind."""

import pytest

from gitops.runs.snapshot import Object
from gitops.runs.states import causes, stage, state_of
from kube.kinds import INDEXED_JOB, PYTORCH_JOB, RAY_JOB, volcano
from kube.kinds.record import State
from tests.gitops.runs.objects import batch_job, ended, job_flow, pod, volcano_job


@pytest.mark.parametrize(
    ("phase", "running", "state"),
    [
        ("Pending", 0, State.WAITING),
        ("Inqueue", 0, State.WAITING),
        ("Running", 2, State.RUNNING),
        ("Restarting", 1, State.RESTARTING),
        ("Aborted", 0, State.SUSPENDED),
        ("Completed", 0, State.SUCCEEDED),
        ("Terminated", 0, State.FAILED),
        ("", 0, State.WAITING),
    ],
)
def test_state_of_a_volcano_job(phase: str, running: int, state: State) -> None:
    assert state_of(volcano.JOB, volcano_job("run", phase), running) is state


@pytest.mark.parametrize(
    ("condition", "running", "state"),
    [
        ("Complete", 0, State.SUCCEEDED),
        ("Failed", 0, State.FAILED),
        ("Suspended", 0, State.SUSPENDED),
        ("SuccessCriteriaMet", 1, State.RUNNING),
    ],
)
def test_state_of_a_kubernetes_job(condition: str, running: int, state: State) -> None:
    assert state_of(INDEXED_JOB, batch_job("run", condition), running) is state


def test_succeeded_pytorch_job_is_recognized_despite_older_conditions() -> None:
    job = batch_job("run", "Created", "Succeeded")
    assert state_of(PYTORCH_JOB, job, 0) is State.SUCCEEDED


@pytest.mark.parametrize(
    ("status", "state"),
    [("Initializing", State.WAITING), ("Complete", State.SUCCEEDED), ("Failed", State.FAILED)],
)
def test_state_of_a_ray_job(status: str, state: State) -> None:
    assert state_of(RAY_JOB, {"status": {"jobDeploymentStatus": status}}, 0) is state


@pytest.mark.parametrize(
    ("flow", "state", "step"),
    [
        (job_flow("run-1"), State.RUNNING, ""),
        (
            job_flow("run-1", "Running", prepare="Completed", train="Running"),
            State.RUNNING,
            "train",
        ),
        (job_flow("run-1", "Running", prepare="Completed"), State.RUNNING, ""),
        (job_flow("run-1", "Running", train="Restarting"), State.RESTARTING, "train"),
        (job_flow("run-1", "Pending", train="Aborted"), State.SUSPENDED, "train"),
        (job_flow("run-1", "Running", a="Terminated", b="Running"), State.FAILED, "a"),
        (job_flow("run-1", "Succeed", prepare="Completed", train="Completed"), State.SUCCEEDED, ""),
    ],
)
def test_a_job_flow_has_the_state_of_its_steps(flow: Object, state: State, step: str) -> None:
    assert state_of(volcano.FLOW, flow, 1) is state
    assert stage(flow) == step


def test_job_flow_is_waiting_between_two_steps() -> None:
    assert state_of(volcano.FLOW, job_flow("run-1", "Running", prepare="Completed"), 0) is (
        State.WAITING
    )


def test_only_succeeded_and_failed_runs_are_finished() -> None:
    assert [state for state in State if state.finished] == [State.SUCCEEDED, State.FAILED]


def test_exhausted_restarts_are_reported_as_a_cause_of_failure() -> None:
    job = volcano_job("run", "Failed", retryCount=3)
    job["spec"]["maxRetry"] = 3
    lost = pod("run", 1, "Failed", reason="NodeLost", message="node is gone", **ended())
    assert causes(volcano.JOB, job, [pod("run", phase="Succeeded"), lost]) == [
        "Volcano Job: 3 of 3 restarts are used up",
        "run-worker-1: NodeLost: node is gone; exit code 1 (Error)",
    ]
    job["status"]["retryCount"] = 2
    assert causes(volcano.JOB, job, []) == []


def test_cause_of_a_failure_comes_from_the_jobs_condition() -> None:
    job = batch_job("run", "Suspended", "Failed")
    for condition in job["status"]["conditions"]:
        condition |= {"reason": "BackoffLimitExceeded", "message": "it failed too often"}
    assert causes(INDEXED_JOB, job, []) == ["Job: BackoffLimitExceeded: it failed too often"]


def test_cause_of_a_ray_jobs_failure_comes_from_its_status() -> None:
    job = {"status": {"jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": "boom"}}
    assert causes(RAY_JOB, job, []) == [f"{RAY_JOB.title}: AppFailed: boom"]
