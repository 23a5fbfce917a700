"""A pipeline on real nodes: values passed between steps, reuse by later runs, and a schedule."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kube.names import RUN_LABEL
from tests.cluster.api_server import ApiServer, api_server
from tests.cluster.platform import UPDATE, Platform, await_

PREPARE = """
import sys
import numpy as np
from training.data.builtin import DIGITS_FILE
rows, epochs, table = sys.argv[1:]
with np.load(DIGITS_FILE) as digits:
    images, labels = digits["pixels"].reshape(-1, 64), digits["labels"]
np.savetxt(table, np.column_stack([images, labels]), fmt="%d", delimiter=",")
open(rows, "w").write(str(len(labels)))
open(epochs, "w").write("8")
"""
VALIDATE = """
import sys, json
table, rows, share, fine = sys.argv[1:]
labels = [float(line.rpartition(",")[2]) for line in open(table)]
assert len(labels) == int(rows)
counts = {label: labels.count(label) for label in set(labels)}
open(share, "w").write(json.dumps(min(counts.values()) / len(labels)))
open(fine, "w").write(json.dumps(len(counts) == 10))
"""
EVALUATE = """
import sys, json
from pathlib import Path
export, accuracy, item, score, report = sys.argv[1:]
metrics = json.loads((Path(export) / "manifest.json").read_text())["metrics"]
assert metrics["accuracy"] == float(accuracy)
Path(score).write_text(accuracy)
Path(report).write_text(json.dumps({"split": item, **metrics}))
"""
COMPARE = """
import sys, json
scores = json.loads(sys.argv[1])
assert len(scores) == 2 and len(set(scores)) == 1, scores
print(json.dumps({"event": "compared", "scores": scores}))
"""
# The first run of the schedule fails, the second one succeeds, and the third one never ends.
CHECK = """
import signal, sys
from pathlib import Path
run = Path(sys.argv[1])
runs = run.parent / "nightly"
runs.mkdir(exist_ok=True)
(runs / run.name).touch()
number = len(list(runs.iterdir()))
if number == 1:
    sys.exit(64)
if number == 3:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.pause()
"""


def _python(program: str, *arguments: str) -> list[str]:
    return ["python3", "-c", program, *arguments]


PREPARED: dict[str, Any] = {
    "command": _python(PREPARE, "$(outputs.rows)", "$(outputs.epochs)", "$(outputs.table)"),
    "outputs": {"rows": "number", "epochs": "number", "table": "text/csv"},
    "cpu": "100m",
    "memory": "512Mi",
}
STEPS: dict[str, Any] = {
    "prepare": PREPARED,
    "validate": {
        "command": _python(
            VALIDATE,
            *("$(inputs.table)", "$(inputs.rows)", "$(outputs.share)", "$(outputs.balanced)"),
        ),
        "inputs": {"table": "prepare.table", "rows": "prepare.rows"},
        "outputs": {"share": "number", "balanced": "boolean"},
        "cpu": "100m",
        "memory": "256Mi",
    },
    "evaluate": {
        "command": _python(
            EVALUATE,
            *("$(inputs.export)", "$(inputs.accuracy)", "$(ITEM)"),
            *("$(outputs.score)", "$(outputs.report)"),
        ),
        "inputs": {"export": "train.export", "accuracy": "train.accuracy"},
        "outputs": {"score": "number", "report": "application/json"},
        "when": {"accuracy": ">= 0.5"},
        "for_each": ["clean", "noisy"],
        "cpu": "100m",
        "memory": "256Mi",
    },
    "compare": {
        "command": _python(COMPARE, "$(inputs.scores)"),
        "inputs": {"scores": "evaluate.score"},
        "cpu": "100m",
        "memory": "256Mi",
    },
    "publish": {
        "command": ["./does-not-exist"],
        "after": ["train"],
        "when": {"accuracy": ">= 2"},
        "cpu": "100m",
        "memory": "256Mi",
    },
    "announce": {
        "command": ["./does-not-exist"],
        "after": ["publish"],
        "cpu": "100m",
        "memory": "256Mi",
    },
}
JOB: dict[str, Any] = {
    "queue": "research",
    "priority_class": "training",
    "cpu": "200m",
    "memory": "1Gi",
    "shm": "256Mi",
    "omp_threads": 1,
    "grace_seconds": 15,
    "datasets": "datasets",
    "hyperparameters": {"model": "digits-net", "dataset": "digits", "learning_rate": 0.005},
}
PIPELINE: dict[str, Any] = {
    **JOB,
    "steps": STEPS,
    "after": ["validate"],
    "inputs": {"epochs": "prepare.epochs"},
}
NIGHTLY: dict[str, Any] = {
    **JOB,
    "steps": {
        "prepare": PREPARED,
        "check": {"command": _python(CHECK, "$(RUN_DIR)"), "cpu": "100m", "memory": "256Mi"},
    },
    "after": ["check"],
    "inputs": {"epochs": "prepare.epochs"},
    "schedule": {"cron": "* * * * *", "keep_succeeded": 0},
}
PROGRAM = "ml-dev/CronJob/nightly-schedule"


def _replace_jobs(platform: Platform, **jobs: dict[str, Any]) -> None:
    """Replace the stack's jobs, and exempt the program of a schedule from the policy pack."""

    def change(config: dict[str, Any]) -> None:
        config["gpu-platform:training"]["jobs"] = jobs
        config["gpu-platform:inference"] = {}

    platform.edit(change)
    file = platform.checkout / "policies" / "config" / "dev.json"
    rules = json.loads(file.read_text())
    for rule in ("no-service-account-token", "no-hidden-token"):
        exempt = rules[rule]["systemWorkloads"]
        rules[rule]["systemWorkloads"] = sorted({*exempt, PROGRAM})
    file.write_text(json.dumps(rules))


@dataclass
class Run:
    """A run of the pipeline that has ended."""

    platform: Platform
    name: str
    folder: Path

    def step(self, name: str) -> dict[str, Any]:
        """The outcome of a step."""
        found: dict[str, Any] = json.loads((self.folder / "steps" / f"{name}.json").read_text())
        return found

    def states(self) -> dict[str, str]:
        paths = (self.folder / "steps").glob("*.json")
        return {path.stem: self.step(path.stem)["state"] for path in paths}

    def log(self, step: str) -> list[dict[str, Any]]:
        pod = f"{self.name}-{self.name.rpartition('-')[2]}-{step}-step-0"
        text = self.platform.shell(f"kubectl logs -n {self.platform.namespace} {pod}")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def manifest(self, step: str) -> dict[str, Any]:
        folder = self.folder.parent / ".steps" / self.step(step)["result"]
        found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        return found


def _await_run(platform: Platform, checkpoints: Path) -> Run:
    """Wait for the end of the stack's run and return it."""
    name = platform.run_name("pipeline")

    def succeeded() -> bool:
        flows = api.objects("jobflows.flow.volcano.sh", platform.namespace)
        (flow,) = (each for each in flows if each["metadata"]["name"] == name)
        return bool(flow.get("status", {}).get("state", {}).get("phase") == "Succeed")

    with api_server(platform) as api:
        await_(succeeded, f"the end of {name}")
    return Run(platform, name, checkpoints / name)


@pytest.fixture(scope="module")
def first(real: Platform, checkpoints: Path) -> Iterator[Run]:
    """The first run; the stack is restored after these tests."""
    before = real.stack_file.read_text()
    _replace_jobs(real, pipeline=PIPELINE)
    real.make("up")
    yield _await_run(real, checkpoints)
    real.stack_file.write_text(before)


@pytest.fixture(scope="module")
def second(real: Platform, checkpoints: Path, first: Run) -> Run:
    """A run of the pipeline with one changed step, in a cluster that is up."""
    changed = {**STEPS["validate"], "env": {"VERSION": "2"}}
    steps = {**STEPS, "validate": changed}
    _replace_jobs(real, pipeline={**PIPELINE, "attempt": 2, "steps": steps})
    real.shell(UPDATE)
    made = _await_run(real, checkpoints)
    assert made.name != first.name
    return made


ALL = {"prepare", "validate", "evaluate-0", "evaluate-1"}


def test_values_are_passed_between_validation_training_and_evaluation(first: Run) -> None:
    assert first.states() == {
        **dict.fromkeys(ALL, "succeeded"),
        "publish": "skipped",
        "announce": "skipped",
    }
    prepared = first.manifest("prepare")
    assert prepared["parameters"] == {"rows": 1797, "epochs": 8}
    assert prepared["artifacts"]["table"]["media_type"] == "text/csv"
    assert first.manifest("validate")["parameters"]["balanced"] is True
    exported = json.loads((first.folder / "export" / "manifest.json").read_text())
    assert exported["settings"]["epochs"] == 8
    for index, item in enumerate(("clean", "noisy")):
        evaluated = first.manifest(f"evaluate-{index}")
        assert evaluated["parameters"]["score"] == exported["metrics"]["accuracy"]
        assert evaluated["env"] == {"ITEM": item}
    (compared,) = first.log("compare")
    assert compared["scores"] == [exported["metrics"]["accuracy"]] * 2


def test_step_with_a_false_condition_is_skipped_in_its_pod(first: Run) -> None:
    (published,) = first.log("publish")
    assert published["event"] == "step_skipped"
    assert "but must be >= 2" in published["reason"]
    (announced,) = first.log("announce")
    assert announced["reason"] == "step publish was skipped"


def test_second_run_executes_only_the_changed_step_and_names_the_source_of_reused_results(
    first: Run, second: Run
) -> None:
    states = {name: state for name, state in second.states().items() if name in ALL}
    assert states == {**dict.fromkeys(ALL, "reused"), "validate": "succeeded"}
    assert {second.step(name)["by"] for name in ALL - {"validate"}} == {first.name}
    (line,) = second.log("prepare")
    assert (line["event"], line["run"]) == ("step_reused", first.name)
    assert (second.folder / "export" / "manifest.json").exists()


def _owners(manifest: dict[str, Any]) -> list[str]:
    return [owner["name"] for owner in manifest["metadata"].get("ownerReferences", ())]


@dataclass
class Schedule:
    """A schedule, and the runs that it has started so far."""

    platform: Platform
    api: ApiServer

    def get(self, kind: str) -> list[dict[str, Any]]:
        return self.api.objects(kind, self.platform.namespace)

    def jobs(self) -> list[dict[str, Any]]:
        """The Jobs of the CronJob, oldest first."""
        found = [job for job in self.get("jobs.batch") if "nightly-schedule" in _owners(job)]
        return sorted(found, key=lambda job: str(job["metadata"]["creationTimestamp"]))

    def runs(self) -> dict[str, dict[str, Any]]:
        """The runs by name, as users see them."""
        # The command exits with 1 if a run has failed.
        text = self.platform.shell("python -m gitops status --json || test $? = 1")
        listed = json.loads(text)["runs"]
        return {run["name"]: run for run in listed if run["name"].startswith("nightly-")}

    def states(self) -> list[str]:
        return sorted(run["state"] for run in self.runs().values())

    def cron_job(self) -> dict[str, Any]:
        (found,) = self.get("cronjobs.batch")
        return found


@pytest.fixture(scope="module")
def schedule(real: Platform, second: Run) -> Iterator[Schedule]:
    assert second
    _replace_jobs(real, nightly=NIGHTLY)
    real.make("up")
    with api_server(real) as api:
        yield Schedule(real, api)
    # If a test fails, the schedule would otherwise start runs during the following tests.
    real.shell(f"kubectl delete cronjob -n {real.namespace} --all")


def _failure(job: dict[str, Any]) -> str | None:
    """Return the time at which a Job failed, or None."""
    conditions = job.get("status", {}).get("conditions", ())
    return next(
        (each["lastTransitionTime"] for each in conditions if each["type"] == "Failed"), None
    )


def test_failed_scheduled_run_is_reported_with_its_step(real: Platform, schedule: Schedule) -> None:
    await_(lambda: any(map(_failure, schedule.jobs())), "a run of the schedule that fails")
    (failed,) = (run for run in schedule.runs().values() if run["state"] == "failed")
    assert failed["stage"] == "check"
    (reason,) = failed["reasons"]
    assert "exit code 64" in reason
    text = real.shell("! python -m gitops status")
    assert re.search(rf"^{failed['name']} .*failed, check", text, re.MULTILINE), text
    assert f"{failed['name']} has failed:" in text


def test_next_scheduled_run_starts_after_a_failed_one(schedule: Schedule, second: Run) -> None:
    times: dict[str, tuple[str, str | None]] = {}

    def one_has_succeeded() -> bool:
        for job in schedule.jobs():
            times[job["metadata"]["name"]] = (job["metadata"]["creationTimestamp"], _failure(job))
        return "lastSuccessfulTime" in schedule.cron_job().get("status", {})

    await_(one_has_succeeded, "a run of the schedule that succeeds")
    (_, failed), (started, _) = sorted(times.values())[:2]
    assert failed is not None
    assert datetime.fromisoformat(started) >= datetime.fromisoformat(failed)
    (exported,) = second.folder.parent.glob("nightly-*/export/manifest.json")
    marker = json.loads((exported.parents[1] / "steps" / "prepare.json").read_text())
    # The step is identical in the pipeline.
    assert marker["state"] == "reused"


def test_scheduled_runs_beyond_the_limit_are_deleted_with_all_objects(schedule: Schedule) -> None:
    def none_is_left() -> bool:
        ended = [job for job in schedule.jobs() if job.get("status", {}).get("completionTime")]
        return ended == [] and "succeeded" not in schedule.states()

    def no_templates_are_left() -> bool:
        owned = [
            each for each in schedule.get("jobtemplates.flow.volcano.sh") if _owners(each) != []
        ]
        runs = {name.rpartition("-")[2] for name in schedule.runs()}
        return {each["metadata"]["name"].partition("-")[0] for each in owned} <= runs

    await_(none_is_left, "the deletion of the run that has succeeded")
    await_(no_templates_are_left, "the deletion of its templates")


def test_program_of_a_schedule_has_only_the_required_rights(
    real: Platform, schedule: Schedule
) -> None:
    assert schedule
    user = f"system:serviceaccount:{real.namespace}:nightly-schedule"

    def may(verb: str, resource: str) -> bool:
        asked = f"kubectl auth can-i {verb} {resource} -n {real.namespace} --as={user}"
        return real.shell(f"{asked} || true").strip() == "yes"

    assert may("create", "jobflows.flow.volcano.sh")
    assert may("create", "jobtemplates.flow.volcano.sh")
    for resource in ("pods", "jobs.batch.volcano.sh", "jobs.batch", "secrets", "rolebindings"):
        assert not may("create", resource)
    assert not may("delete", "jobflows.flow.volcano.sh")
    assert not may("list", "jobtemplates.flow.volcano.sh")


def test_schedule_is_suspended_without_replacing_the_cron_job(
    real: Platform, schedule: Schedule
) -> None:
    def third_run_is_active() -> bool:
        return any(job.get("status", {}).get("active") for job in schedule.jobs())

    await_(third_run_is_active, "the Job of the third run")
    await_(lambda: schedule.states() == ["failed", "running"], "the third run")
    before = schedule.cron_job()["metadata"]["uid"]
    _replace_jobs(real, nightly={**NIGHTLY, "schedule": {**NIGHTLY["schedule"], "suspend": True}})
    real.shell(UPDATE)
    found = schedule.cron_job()
    assert (found["metadata"]["uid"], found["spec"]["suspend"]) == (before, True)
    assert schedule.states() == ["failed", "running"]


def test_removed_schedule_leaves_only_the_directories_of_its_runs(
    real: Platform, checkpoints: Path, schedule: Schedule
) -> None:
    """The schedule's runs are deleted as well, both the failed and the running one."""
    runs = set(schedule.runs())
    assert len(runs) == 2
    _replace_jobs(real)
    real.shell(UPDATE)
    assert schedule.get("cronjobs.batch") == []

    kinds = ["jobs.batch", "jobs.batch.volcano.sh", "pods"]
    kinds += ["jobflows.flow.volcano.sh", "jobtemplates.flow.volcano.sh"]

    def nothing_is_left() -> bool:
        named = (each["metadata"] for kind in kinds for each in schedule.get(kind))
        prefixes = ("nightly-", *(run.rpartition("-")[2] for run in runs))
        return not any(
            each["name"].startswith(prefixes) or each.get("labels", {}).get(RUN_LABEL) in runs
            for each in named
        )

    await_(nothing_is_left, "the deletion of the runs")
    assert schedule.runs() == {}
    assert runs < {path.name for path in checkpoints.glob("nightly-*")}
