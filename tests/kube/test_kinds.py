"""Job kind records: object states, restart counts and queue ancestors."""

from typing import Any

import pytest

from kube.kinds import INDEXED_JOB, JOB_SET, KINDS, PYTORCH_JOB, RAY_JOB, RESOURCES, volcano
from kube.kinds.record import Resource, State
from kube.kinds.volcano import job_prefix, template_name, with_ancestors


def conditions(**statuses: str) -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": status} for name, status in statuses.items()]}


@pytest.mark.parametrize(
    ("resource", "status", "state"),
    [
        (volcano.JOB, {"state": {"phase": "Completed"}}, State.SUCCEEDED),
        (volcano.JOB, {"state": {"phase": "Aborted"}}, State.SUSPENDED),
        (volcano.JOB, {"state": {"phase": "Pending"}}, None),
        (volcano.JOB, {}, None),
        (volcano.FLOW, {"state": {"phase": "Succeed"}}, State.SUCCEEDED),
        (volcano.FLOW, {"state": {"phase": "Running"}}, None),
        (INDEXED_JOB, conditions(Complete="True"), State.SUCCEEDED),
        (INDEXED_JOB, conditions(Suspended="False"), None),
        (INDEXED_JOB, {}, None),
        (PYTORCH_JOB, conditions(Running="True", Restarting="True"), State.RESTARTING),
        (PYTORCH_JOB, conditions(Restarting="True", Failed="True"), State.FAILED),
        (RAY_JOB, {"jobDeploymentStatus": "Retrying"}, State.RESTARTING),
        (JOB_SET, conditions(Completed="True", Suspended="False"), State.SUCCEEDED),
        (JOB_SET, conditions(StartupPolicyCompleted="True"), None),
    ],
)
def test_object_status_is_mapped_to_a_job_state(
    resource: Resource, status: dict[str, Any], state: State | None
) -> None:
    assert resource.state(status) is state


def test_restart_count_is_zero_for_kinds_that_do_not_report_restarts() -> None:
    assert volcano.JOB.restart_count({"retryCount": 2}) == 2
    assert volcano.JOB.restart_count({}) == 0
    assert JOB_SET.restart_count({"restarts": 1}) == 1
    assert INDEXED_JOB.restart_count({"failed": 3}) == 0


def test_resource_names_are_unique_and_every_kind_has_both_final_states() -> None:
    names = [resource.name for resource in RESOURCES]
    assert len(set(names)) == len(names)
    for kind in KINDS.values():
        assert {State.SUCCEEDED, State.FAILED} <= set(kind.resource.states.values())


def test_template_names_contain_the_hash_of_the_run() -> None:
    assert template_name("digits-large-1a2b3c4d", "evaluate") == "1a2b3c4d-evaluate"


def test_job_names_of_flows_start_with_the_prefix() -> None:
    run = "digits-large-1a2b3c4d"
    job = f"{run}-{template_name(run, 'evaluate')}"
    assert job.removeprefix(job_prefix(run)) == "evaluate"


PARENTS = {"vision": "science", "science": "root", "lab": None, "odd": "even", "even": "odd"}


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("vision", ["vision", "science", "root"]),
        ("lab", ["lab"]),
        ("unknown", ["unknown"]),
        ("odd", ["odd", "even"]),
    ],
)
def test_ancestors_of_a_queue_are_listed_from_child_to_root(
    queue: str, expected: list[str]
) -> None:
    assert with_ancestors(queue, PARENTS) == expected
