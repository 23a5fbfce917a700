from datetime import UTC, datetime
from typing import Any, cast

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Pod

from recorder.pods import (
    claim_of,
    events_of,
    failed_containers,
    run_of,
    running_containers,
    unobserved_terminations,
)
from tests.recorder.examples import CONFIG, RUN, pod, pod_manifest, terminated_state

NOW = datetime(2026, 11, 21, 22, tzinfo=UTC)


def test_run_and_claim_are_read_from_the_pod() -> None:
    assert (run_of(pod()), claim_of(pod())) == (RUN, "checkpoints")


def test_a_running_container_has_not_failed() -> None:
    assert [attempt.restarts for attempt in running_containers(pod())] == [0]
    assert list(failed_containers(pod())) == []


def test_a_succeeded_container_has_not_failed() -> None:
    assert list(failed_containers(pod(state=terminated_state(0)))) == []


def test_failed_container_has_an_exit_code_a_reason_and_a_message() -> None:
    [termination] = failed_containers(pod(state=terminated_state(137, message="no memory")))
    assert (termination.exit_code, termination.reason, termination.message) == (
        137,
        "OOMKilled",
        "no memory",
    )
    assert termination.attempt.pod == "worker-0"


def test_init_containers_are_recorded_but_sidecars_are_not() -> None:
    document = pod_manifest(state={"waiting": {"reason": "PodInitializing"}})
    document["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": "Always"},
        {"name": "wait", "restartPolicy": None},
    ]
    [waiting] = document["status"]["containerStatuses"]
    document["status"]["initContainerStatuses"] = [
        {**waiting, "name": each["name"], "state": terminated_state(143)}
        for each in document["spec"]["initContainers"]
    ]
    [termination] = failed_containers(cast(Pod, Pod.from_dict(document)))
    assert (termination.attempt.container, termination.exit_code) == ("wait", 143)


def test_last_state_of_a_restarted_container_counts_as_a_failure() -> None:
    [termination] = failed_containers(pod(last_state=terminated_state(1), restarts=2))
    assert (termination.attempt.restarts, termination.exit_code) == (1, 1)
    assert termination.restarted


@pytest.mark.parametrize("restarts", [0, 2])
def test_container_that_waits_for_its_restart_has_failed_in_its_last_attempt(restarts: int) -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    last_state = terminated_state(1)
    [termination] = failed_containers(pod(state=waiting, last_state=last_state, restarts=restarts))
    assert termination.attempt.restarts == restarts


def test_containers_of_a_pod_deleted_while_running_have_an_unknown_exit_code() -> None:
    [termination] = unobserved_terminations(pod(), NOW)
    assert (termination.exit_code, termination.reason, termination.finished) == (
        None,
        "Deleted",
        NOW,
    )
    assert list(unobserved_terminations(pod(state=terminated_state(0)), NOW)) == []


async def test_repeated_events_have_the_time_of_the_last_occurrence() -> None:
    event: dict[str, Any] = {
        "metadata": {"name": "unschedulable", "namespace": "ml", "uid": "1"},
        "involvedObject": {"kind": "Pod", "name": "worker-0"},
        "reason": "FailedScheduling",
        "eventTime": "2026-11-21T20:00:00.000000Z",
        "firstTimestamp": None,
        "lastTimestamp": None,
        "series": {"count": 12, "lastObservedTime": "2026-11-21T21:00:00.000000Z"},
    }
    answer = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"items": [event]}))
    [merged] = await events_of(AsyncClient(CONFIG, transport=answer), pod())
    assert (merged["last"], merged["count"]) == ("2026-11-21T21:00:00+00:00", 12)
