"""Suspension of jobs with a command and with a setting."""

from infra.settings import StackSettings
from tests.cluster.gangs import VOLCANO, placed
from tests.cluster.platform import await_
from tests.cluster.scheduling import Scheduling, stack


def test_a_suspended_job_frees_its_gpus_and_resumes_later(volcano: Scheduling) -> None:
    two = {name: {"queue": "vision", "nodes": 3} for name in ("first", "second")}
    jobs = stack(two, **VOLCANO)
    volcano.submit(jobs, "first")
    placed(volcano, first=3)
    volcano.submit(jobs, "second")
    placed(volcano, first=3)
    volcano.command("first", "AbortJob")
    placed(volcano, second=3)
    await_(lambda: volcano.phase("first") == "Aborted", "the suspended job")
    assert "ml/first: suspended" in volcano.devcluster("status")
    volcano.command("first", "ResumeJob")
    placed(volcano, second=3)
    volcano.delete("second")
    placed(volcano, first=3)


def test_indexed_job_is_suspended_and_resumed_with_a_setting(volcano: Scheduling) -> None:
    indexed = {"queue": "vision", "kind": "indexed", "nodes": 3}

    def written(suspend: bool) -> StackSettings:
        other = {"queue": "vision", "nodes": 3}
        return stack(
            {"run": {**indexed, "state": "suspended" if suspend else "running"}, "other": other},
            **VOLCANO,
        )

    volcano.submit(written(False), "run")
    placed(volcano, run=3)
    volcano.submit(written(True), "run", "other")
    placed(volcano, other=3)
    assert volcano.pods("run") == []
    volcano.submit(written(False), "run")
    await_(lambda: len(volcano.pods("run")) == 3, "the pods of the resumed job")
    placed(volcano, other=3)
    volcano.delete("other")
    placed(volcano, run=3)


def test_volcano_job_is_suspended_with_a_setting(volcano: Scheduling) -> None:
    jobs = {name: {"queue": "vision", "nodes": 3} for name in ("first", "second")}
    volcano.submit(stack(jobs, **VOLCANO), "first")
    placed(volcano, first=3)
    jobs["first"]["state"] = "stopped"
    volcano.submit(stack(jobs, **VOLCANO), "first", "second")
    placed(volcano, second=3)
    await_(lambda: volcano.phase("first") == "Terminated", "the end of the job")
    assert volcano.pods("first") == []
