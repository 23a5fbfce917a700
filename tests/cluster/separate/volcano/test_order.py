"""Preemption, elastic jobs, reservations, and the order of steps."""

from infra.settings.volcano import SchedulerSettings, SlaSettings
from tests.cluster.gangs import VOLCANO, never_partial, placed, poll_placements
from tests.cluster.platform import await_
from tests.cluster.scheduling import Scheduling, stack


def test_urgent_job_preempts_a_whole_gang_that_restarts_later(volcano: Scheduling) -> None:
    jobs = stack(
        {
            "long": {"queue": "vision", "nodes": 3, "priority_class": "batch"},
            "equal": {"queue": "vision", "priority_class": "batch"},
            "urgent": {"queue": "vision", "priority_class": "urgent"},
        },
        **VOLCANO,
    )
    volcano.submit(jobs, "long")
    placed(volcano, long=3)
    volcano.submit(jobs, "equal")
    placed(volcano, long=3)
    volcano.delete("equal")
    volcano.submit(jobs, "urgent")
    placed(volcano, urgent=1)
    await_(lambda: "long" in volcano.evicted("preempt"), "the event of the preemption")
    await_status(
        volcano, "ml/long in queue vision: 0 of 3 pods are scheduled (minimum to start: 3)"
    )
    volcano.delete("urgent")
    seen = poll_placements(
        volcano, lambda: volcano.placed()["long"] == 3, "the gang to have nodes again"
    )
    assert never_partial(seen, "long", 3)
    assert volcano.job("long")["status"]["retryCount"] == 1


def test_elastic_job_shrinks_for_others_and_grows_again(volcano: Scheduling) -> None:
    volcano.configure(SchedulerSettings(preempt="surplus"))
    jobs = stack(
        {
            "elastic": {"queue": "vision", "nodes": 3, "min_nodes": 1, "priority_class": "batch"},
            "urgent": {"queue": "vision", "nodes": 2, "priority_class": "urgent"},
            "greedy": {"queue": "vision", "nodes": 3, "priority_class": "urgent"},
        },
        **VOLCANO,
    )
    volcano.submit(jobs, "elastic")
    placed(volcano, elastic=3)
    volcano.submit(jobs, "greedy")
    placed(volcano, elastic=3)
    volcano.delete("greedy")
    volcano.submit(jobs, "urgent")
    placed(volcano, elastic=1, urgent=2)
    assert volcano.phase("elastic") == "Running"
    await_status(
        volcano, "ml/elastic in queue vision: 1 of 3 pods are scheduled (running, can scale up)"
    )
    volcano.delete("urgent")
    placed(volcano, elastic=3)
    assert "retryCount" not in volcano.job("elastic")["status"]


def test_free_nodes_are_reserved_for_a_gang_that_has_been_waiting_too_long(
    volcano: Scheduling,
) -> None:
    jobs = stack(
        {
            "first": {"queue": "vision"},
            "second": {"queue": "vision"},
            "large": {"queue": "vision", "nodes": 3},
            "early": {"queue": "vision"},
            "late": {"queue": "vision"},
        },
        **VOLCANO,
    )
    volcano.configure(SchedulerSettings())
    volcano.submit(jobs, "first", "second")
    placed(volcano, first=1, second=1)
    volcano.submit(jobs, "large")
    volcano.submit(jobs, "early")
    placed(volcano, first=1, second=1, early=1)
    volcano.configure(SchedulerSettings(sla=SlaSettings(longest_wait_seconds=1)))
    await_(lambda: len(volcano.pods("large")) == 3, "the gang to be admitted")
    volcano.delete("early")
    volcano.submit(jobs, "late")
    await_(lambda: volcano.pods("late") != [], "the late job to be admitted")
    placed(volcano, first=1, second=1)
    volcano.delete("first", "second")
    placed(volcano, large=3)


def await_status(volcano: Scheduling, text: str) -> None:
    """Wait until the table of runs contains this text."""
    await_(lambda: text in volcano.devcluster("status"), f"{text!r} in the status")


def test_steps_of_a_job_run_in_order(volcano: Scheduling) -> None:
    steps = {
        "prepare": {"command": ["./prepare"]},
        "evaluate": {"command": ["./evaluate"], "after": ["train"], "gpus": 1},
    }
    jobs = stack({"flow": {"queue": "vision", "steps": steps, "after": ["prepare"]}}, **VOLCANO)
    volcano.submit(jobs, "flow")
    for step in ("prepare", "train", "evaluate"):
        name = f"flow-flow-{step}"
        placed(volcano, **{name: 1})
        await_status(volcano, f"running, {step}")
        volcano.finish(volcano.pods(name)[0])
    last = "flow-flow-evaluate"
    await_(lambda: volcano.phase(last) == "Completed", "the end of the flow")
    await_status(volcano, "succeeded")


def test_next_step_waits_for_a_step_that_runs_once_per_value(volcano: Scheduling) -> None:
    steps = {
        "check": {"command": ["./check"], "after": ["train"], "for_each": ["a", "b"]},
        "report": {"command": ["./report"], "after": ["check"]},
    }
    volcano.submit(stack({"flow": {"queue": "vision", "steps": steps}}, **VOLCANO), "flow")
    placed(volcano, **{"flow-flow-train": 1})
    volcano.finish(volcano.pods("flow-flow-train")[0])
    both = {"flow-flow-check-0": 1, "flow-flow-check-1": 1}
    placed(volcano, **both)
    volcano.finish(volcano.pods("flow-flow-check-0")[0])
    placed(volcano, **{"flow-flow-check-1": 1})
    volcano.finish(volcano.pods("flow-flow-check-1")[0])
    placed(volcano, **{"flow-flow-report": 1})


def test_step_fails_after_its_configured_number_of_retries(volcano: Scheduling) -> None:
    steps = {"check": {"command": ["./check"], "after": ["train"], "retries": 1}}
    job = {"queue": "vision", "steps": steps, "retries": 9}
    volcano.submit(stack({"flow": job}, **VOLCANO), "flow")
    placed(volcano, **{"flow-flow-train": 1})
    volcano.finish(volcano.pods("flow-flow-train")[0])
    placed(volcano, **{"flow-flow-check": 1})
    volcano.fail(volcano.pods("flow-flow-check")[0], 1)
    await_(lambda: volcano.phase("flow-flow-check") == "Failed", "the failed step")
