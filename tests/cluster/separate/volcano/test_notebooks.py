"""Notebooks under real Volcano with simulated pods; tests/operators/test_notebook.py has real ones.

Volcano's webhooks accept the Job, whose policies suspend a notebook that ends.
"""

from typing import Any

import pytest

from gitops.errors import GitopsError
from gpu_platform.runs.cluster import Member
from infra.settings import StackSettings
from tests.cluster.gangs import VOLCANO, placed
from tests.cluster.platform import await_
from tests.cluster.scheduling import NAMESPACE, Scheduling, stack

NOTEBOOK: dict[str, Any] = {
    "kind": "notebook",
    "command": None,
    "queue": "small",
    "notebook": {"home": "checkpoints", "token_secret": "anna"},
}
TRAINING = {"queue": "small", "priority_class": "batch"}


@pytest.fixture
def jobs(volcano: Scheduling) -> StackSettings:
    """A notebook and a training job, each of which fills the queue."""
    settings = stack({"anna": NOTEBOOK, "train": TRAINING}, **VOLCANO)
    volcano.submit(settings, "anna")
    placed(volcano, anna=1)
    return settings


def member(volcano: Scheduling) -> Member:
    return Member(volcano._kubectl, NAMESPACE)


def suspended(volcano: Scheduling) -> None:
    await_(lambda: volcano.phase("anna") == "Aborted", "the suspended notebook")
    assert "ml/anna: suspended" in volcano.devcluster("status")


def test_idle_notebook_frees_its_gpus_and_can_be_resumed(
    volcano: Scheduling, jobs: StackSettings
) -> None:
    (pod,) = volcano.pods("anna")
    volcano.finish(pod)
    suspended(volcano)
    volcano.submit(jobs, "train")
    placed(volcano, train=1)
    volcano.delete("train")
    member(volcano).suspend("anna", suspended=False)
    placed(volcano, anna=1)
    (again,) = volcano.pods("anna")
    assert again["metadata"]["uid"] != pod["metadata"]["uid"]
    assert again["spec"]["containers"][0]["command"] == pod["spec"]["containers"][0]["command"]


@pytest.mark.slow
def test_notebook_suspensions_are_not_limited_by_the_number_of_retries(
    volcano: Scheduling, jobs: StackSettings
) -> None:
    for _ in range(jobs.training.jobs["anna"].retries + 1):
        (pod,) = volcano.pods("anna")
        volcano.finish(pod)
        suspended(volcano)
        member(volcano).suspend("anna", suspended=False)
        placed(volcano, anna=1)


def test_failed_notebook_server_is_suspended_and_not_restarted(
    volcano: Scheduling, jobs: StackSettings
) -> None:
    (pod,) = volcano.pods("anna")
    volcano.fail(pod, 137)
    suspended(volcano)
    member(volcano).suspend("anna", suspended=False)
    placed(volcano, anna=1)


def test_a_member_suspends_and_resumes_a_running_notebook(
    volcano: Scheduling, jobs: StackSettings
) -> None:
    with pytest.raises(GitopsError, match="anna cannot be resumed"):
        member(volcano).suspend("anna", suspended=False)
    member(volcano).suspend("anna", suspended=True)
    suspended(volcano)
    member(volcano).suspend("anna", suspended=False)
    placed(volcano, anna=1)


def test_notebook_preempted_by_training_restarts_after_the_training(
    volcano: Scheduling, jobs: StackSettings
) -> None:
    volcano.submit(jobs, "train")
    placed(volcano, train=1)
    await_(lambda: volcano.evicted("preempt") == {"anna"}, "the event of the preemption")
    volcano.delete("train")
    placed(volcano, anna=1)
