"""The sweep controller with an in-memory API server: its records and its requests."""

import errno
import json
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from unittest.mock import Mock

import pytest
from httpx2 import HTTPStatusError, Request, Response
from lightkube import Client

from infra.sweep import winner_path
from sweeps.__main__ import _step, main
from sweeps.controller import Controller, _arguments
from sweeps.study import JOURNAL, LEDGER, Study
from tests.infra.sweeps import SPACE, length, stack_settings, sweep
from workload.manifest import MANIFEST_FILE, Manifest, Weights, read_manifest, write_manifest
from workload.progress import PROGRESS_FILE

HOUR = 3600.0


@dataclass
class Api:
    """An in-memory API server with jobs, their commands and the latest summary."""

    jobs: dict[str, Any] = field(default_factory=dict)
    commands: list[tuple[str, str]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    reject_jobs: bool = False
    scheduled: bool = False
    """True if the gangs of all jobs are scheduled."""

    def list(self, resource: Any, **_: Any) -> list[Any]:
        if resource._api_info.plural == "podgroups":
            return [resource.from_dict(self._group(name)) for name in self.jobs]
        return [resource.from_dict(job) for job in self.jobs.values()]

    def _group(self, job: str) -> dict[str, Any]:
        phase = "Running" if self.scheduled else "Inqueue"
        metadata = {"name": f"{job}-uid", "ownerReferences": [{"name": job}]}
        return {"metadata": metadata, "status": {"phase": phase}}

    def create(self, created: Any, **_: Any) -> None:
        document = created.to_dict()
        if document["kind"] == "Command":
            self.commands.append((document["target"]["name"], document["action"]))
            return
        if self.reject_jobs:
            request = Request("POST", "https://api/jobs")
            raise HTTPStatusError("denied by a policy", request=request, response=Response(403))
        name = document["metadata"]["name"]
        assert name not in self.jobs
        metadata = {
            **document["metadata"],
            "uid": name,
            "creationTimestamp": "1970-01-01T00:00:00Z",
        }
        self.jobs[name] = {**document, "metadata": metadata}

    def patch(self, _resource: Any, _name: str, patched: dict[str, Any], **_: Any) -> None:
        (text,) = patched["metadata"]["annotations"].values()
        self.summary = json.loads(text)

    def set(self, phase: str, *runs: str) -> None:
        for run in runs or self.jobs:
            self.jobs[run]["status"] = {"state": {"phase": phase}}


@dataclass
class Stage:
    """A sweep controller whose clock the test advances."""

    claim: Path
    changes: dict[str, Any] = field(default_factory=dict)
    api: Api = field(default_factory=Api)
    now: float = 0.0
    price: float | None = None

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        api: Any = self.api
        client: Client = api
        settings = sweep(stack_settings(**self.changes), self.price)
        self.controller = Controller(settings, self.claim, client, 10, lambda: self.now)

    def restart(self, seconds: float = 0.0) -> None:
        self.controller.close()
        self.now += seconds
        self.start()

    def step(self, seconds: float = 0.0) -> None:
        self.now += seconds
        while self.controller.step():
            pass

    def report_losses(self, run: str, *losses: float) -> None:
        folder = self.claim / run
        folder.mkdir(exist_ok=True)
        lines = [
            {"event": "epoch", "epoch": epoch, "epochs": 9, "loss": 1, "held_out_loss": loss}
            for epoch, loss in enumerate(losses, 1)
        ]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / PROGRESS_FILE).write_text(text + '{"event": "epoch", "ep')

    def write_export(self, run: str, loss: float, settings: dict[str, Any] | None = None) -> None:
        folder = self.claim / run / "export"
        folder.mkdir(parents=True)
        manifest = Manifest(
            model="digits-net",
            input_shape=(1, 8, 8),
            classes=("0", "1"),
            metrics={"loss": loss},
            settings=settings or {},
            weights=Weights(size=1, sha256="0" * 64),
            torch_version="2.15.0",
        )
        write_manifest(folder, manifest)

    def phases(self) -> dict[str, str]:
        return {each["run"]: each["phase"] for each in self.api.summary["trials"]}


def test_controller_starts_as_many_trials_as_parallel_allows(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.step()
    assert len(stage.api.jobs) == 2
    stage.api.set("Running")
    stage.step(10)
    assert len(stage.api.jobs) == 2
    assert stage.api.summary["state"] == "running"


def test_trial_at_a_rung_is_paused_and_replaced_once_its_gpus_are_free(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.step()
    first, second = stage.api.jobs
    stage.api.set("Running")
    stage.report_losses(first, 0.5)
    stage.step(10)
    assert stage.api.commands == [(first, "AbortJob")]
    stage.api.set("Aborting", first)
    stage.step(10)
    assert len(stage.api.jobs) == 2
    stage.api.set("Aborted", first)
    stage.step(10)
    assert len(stage.api.jobs) == 3
    assert second in stage.api.jobs


def test_rungs_are_counted_in_steps_if_the_job_is_measured_in_steps(tmp_path: Path) -> None:
    job = {"hyperparameters": length(train_steps=900, evaluate_steps=50)}
    stage = Stage(tmp_path, {"job": job, "early_stopping": {"minimum": 100, "factor": 3}})
    stage.step()
    first, _ = stage.api.jobs
    stage.api.set("Running")
    event: dict[str, Any] = {"event": "evaluation", "step": 50, "held_out_loss": 0.5}
    folder = tmp_path / first
    folder.mkdir()
    with (folder / PROGRESS_FILE).open("w") as file:
        file.write(json.dumps(event) + "\n")
    stage.step(10)
    assert stage.api.commands == []
    line = {"event": "epoch", "epoch": 1, "step": 120, "loss": 1, "held_out_loss": 0.25}
    with (folder / PROGRESS_FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")
    stage.step(10)
    assert stage.api.commands == [(first, "AbortJob")]
    (row,) = (each for each in stage.api.summary["trials"] if each["run"] == first)
    assert (row["trained"], row["value"]) == (120, 0.25)
    assert (stage.api.summary["unit"], stage.api.summary["length"]) == ("steps", 900)


@pytest.mark.parametrize("epoch", ["NaN", "Infinity", "-1"])
def test_lines_with_impossible_epochs_are_ignored(tmp_path: Path, epoch: str) -> None:
    stage = Stage(tmp_path)
    stage.step()
    first, _ = stage.api.jobs
    stage.api.set("Running")
    stage.report_losses(first, 0.5)
    with (tmp_path / first / PROGRESS_FILE).open("a") as file:
        file.write(f'\n{{"event": "epoch", "epoch": {epoch}, "loss": 1, "held_out_loss": 0.1}}\n')
    stage.step(10)
    assert stage.api.commands == [(first, "AbortJob")]


def test_negative_steps_are_ignored(tmp_path: Path) -> None:
    job = {"hyperparameters": length(train_steps=900, evaluate_steps=50)}
    stage = Stage(tmp_path, {"job": job, "early_stopping": {"minimum": 100, "factor": 3}})
    stage.step()
    first, _ = stage.api.jobs
    stage.api.set("Running")
    event: dict[str, Any] = {"event": "evaluation", "step": -1, "held_out_loss": 0.5}
    (tmp_path / first).mkdir()
    (tmp_path / first / PROGRESS_FILE).write_text(json.dumps(event) + "\n")
    stage.step(10)
    assert stage.phases()[first] == "placed"


@pytest.mark.parametrize("loss", [math.nan, -math.inf])
def test_diverged_trial_ranks_last(tmp_path: Path, loss: float) -> None:
    stage = Stage(tmp_path, {"parallel": 3, "trials": 3})
    stage.step()
    diverged, second_best, best = stage.api.jobs
    stage.api.set("Running")
    stage.report_losses(diverged, loss)
    stage.report_losses(second_best, 0.5)
    stage.report_losses(best, 0.4)
    stage.step(10)
    assert stage.api.commands == [(diverged, "AbortJob"), (second_best, "AbortJob")]
    values = {each["run"]: each["value"] for each in stage.api.summary["trials"]}
    assert list(values.items()) == [(best, 0.4), (second_best, 0.5), (diverged, None)]


def test_value_of_a_finished_trial_is_read_from_its_export(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"early_stopping": None})
    stage.step()
    first, second = stage.api.jobs
    stage.api.set("Completed", first)
    stage.write_export(first, 0.25)
    stage.api.set("Failed", second)
    stage.step(10)
    assert stage.phases().items() >= {first: "succeeded", second: "failed"}.items()
    (row,) = (each for each in stage.api.summary["trials"] if each["run"] == first)
    assert row["value"] == 0.25


@pytest.fixture
def unavailable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set of runs whose exports cannot be read while the set contains them."""
    runs: set[str] = set()
    original = Path.open

    def open_file(path: Path, mode: str = "r", **options: Any) -> IO[Any]:
        if path.name == MANIFEST_FILE and path.parts[-3] in runs:
            raise OSError(errno.ESTALE, "Stale file handle")
        return original(path, mode, **options)

    monkeypatch.setattr(Path, "open", open_file)
    return runs


def test_deleted_trial_is_not_failed_while_its_export_cannot_be_read(
    tmp_path: Path, unavailable: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage(tmp_path, {"early_stopping": None})
    stage.step()
    first, _ = stage.api.jobs
    stage.write_export(first, 0.25)
    del stage.api.jobs[first]
    unavailable.add(first)
    assert not _step(stage.controller)
    assert "Stale file handle" in capsys.readouterr().err
    unavailable.clear()
    stage.step(10)
    assert stage.phases()[first] == "succeeded"


def start_without_journal(claim: Path) -> tuple[Stage, str]:
    """Restart a controller whose journal was lost; return it and a finished run without a job."""
    stage = Stage(claim, {"early_stopping": None})
    stage.step()
    first, _ = stage.api.jobs
    settings = {name: str(value) for name, value in _arguments(stage.api.jobs[first]).items()}
    stage.write_export(first, 0.25, settings)
    del stage.api.jobs[first]
    stage.controller.close()
    (claim / "digits-sweep" / JOURNAL).unlink()
    stage.start()
    return stage, first


def test_runs_are_recovered_after_a_lost_journal_once_their_exports_can_be_read(
    tmp_path: Path, unavailable: set[str]
) -> None:
    stage, first = start_without_journal(tmp_path)
    unavailable.add(first)
    assert not _step(stage.controller)
    unavailable.clear()
    stage.step(10)
    assert stage.phases()[first] == "succeeded"


def test_runs_are_recovered_after_a_lost_journal_once_the_claim_can_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, first = start_without_journal(tmp_path)
    with monkeypatch.context() as unavailable:
        for name in ("listdir", "scandir"):
            # Python 3.11 hides only this error.
            error = PermissionError(errno.EACCES, "Permission denied")
            unavailable.setattr(os, name, Mock(side_effect=error))
        assert not _step(stage.controller)
    stage.step(10)
    assert stage.phases()[first] == "succeeded"


def test_manually_deleted_trial_is_not_created_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.step()
    first, _ = stage.api.jobs
    del stage.api.jobs[first]
    stage.step(10)
    stage.restart()
    stage.step(10)
    assert stage.phases()[first] == "failed"
    assert first not in stage.api.jobs


def test_gpu_time_includes_controller_downtime_but_not_queueing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"early_stopping": None, "budget": {"gpu_hours": 32.1}})
    stage.step()
    stage.step(HOUR)  # The trials are still queued.
    assert stage.api.summary["gpu_hours"] == 0
    stage.api.set("Running")
    stage.step()
    stage.restart(2 * HOUR)
    stage.step()
    assert stage.api.summary["gpu_hours"] == 2 * 2 * 8
    assert stage.api.summary["state"] == "budget spent"
    assert {action for _, action in stage.api.commands} == {"AbortJob"}


def test_gpu_time_counts_while_pods_pull_their_images(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.step()
    stage.api.scheduled = True
    stage.step()
    stage.step(HOUR)
    assert stage.api.summary["gpu_hours"] == 2 * 8
    assert set(stage.phases().values()) == {"placed"}


@pytest.mark.parametrize(("minute", "gpu_hours"), [("20", 0), ("40", 8)])
def test_gpu_time_counts_if_a_trial_was_preempted_while_no_controller_ran(
    tmp_path: Path, minute: str, gpu_hours: int
) -> None:
    stage = Stage(tmp_path)
    stage.step()
    stage.step(HOUR / 2)
    first, _ = stage.api.jobs
    phases = {"Running": "00", "Restarting": "01", "Pending": "02"}
    conditions = [
        {"status": phase, "lastTransitionTime": f"1970-01-01T00:{minute}:{second}Z"}
        for phase, second in phases.items()
    ]
    stage.api.jobs[first]["status"] = {"state": {"phase": "Pending"}, "conditions": conditions}
    stage.restart(HOUR)
    stage.step()
    assert set(stage.phases().values()) == {"waiting"}
    assert stage.api.summary["gpu_hours"] == gpu_hours


def test_pauses_count_as_gpu_time_if_the_ledger_is_lost(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.step()
    stage.api.set("Running")
    stage.step(HOUR)
    stage.api.set("Aborted")
    (tmp_path / "digits-sweep" / LEDGER).unlink()
    stage.step()
    assert stage.api.summary["gpu_hours"] == 2 * 8


def test_sweep_stops_before_it_exceeds_its_money_budget(tmp_path: Path) -> None:
    budget = {"gpu_hours": 1000, "money": 100}
    stage = Stage(tmp_path, {"early_stopping": None, "budget": budget}, price=2.5)
    stage.step()
    stage.api.set("Running")
    stage.step()
    # The budget covers 100 / 2.5 GPU-hours, used by two trials with 8 GPUs each.
    stage.step(2.4 * HOUR)
    assert not stage.api.commands
    assert stage.api.summary["maximum_gpu_hours"] == 40
    stage.step(0.09 * HOUR)
    assert {action for _, action in stage.api.commands} == {"AbortJob"}
    assert stage.api.summary["state"] == "budget spent"
    assert stage.api.summary["cost"] == {"amount": 99.6, "currency": "USD"}
    assert stage.api.summary["maximum_cost"] == 100


def test_trials_are_paused_while_the_claim_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, {"budget": {"gpu_hours": 32.1}})
    stage.step()
    first, second = stage.api.jobs
    stage.api.set("Running")
    stage.step(10)
    stage.report_losses(first, 0.5)
    monkeypatch.setattr("sweeps.study.write_atomically", _full)
    monkeypatch.setattr("optuna.storages.journal.JournalFileBackend.append_logs", _full)
    stage.step(10)
    assert stage.api.commands == [(first, "AbortJob")]
    stage.api.set("Aborted", first)
    with pytest.raises(OSError, match="full"):
        stage.step(HOUR)  # No other trial can be chosen.
    with pytest.raises(OSError, match="full"):
        stage.step(HOUR)
    assert stage.api.commands == [(first, "AbortJob")]
    stage.step(HOUR)
    assert stage.api.commands == [(first, "AbortJob"), (second, "AbortJob")]


def _full(*_: object) -> None:
    raise OSError("the claim is full")


def test_sweep_is_paused_once_its_time_budget_is_used_up(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"budget": {"gpu_hours": 1000, "hours": 1}})
    stage.step()
    stage.api.set("Running")
    stage.step(3600)
    assert not stage.api.commands
    stage.restart(1)
    stage.step()
    assert {action for _, action in stage.api.commands} == {"AbortJob"}
    assert {run for run, _ in stage.api.commands} == stage.api.jobs.keys()


def test_time_budget_continues_if_the_journal_is_lost(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"budget": {"gpu_hours": 1000, "hours": 1}})
    stage.step()
    stage.api.set("Running")
    stage.step(3000)
    stage.controller.close()
    (tmp_path / "digits-sweep" / JOURNAL).unlink()
    stage.start()
    stage.step(500)
    assert not stage.api.commands
    stage.step(101)
    assert {run for run, _ in stage.api.commands} == stage.api.jobs.keys()


def test_changed_sweep_starts_trials_only_after_the_earlier_ones_have_stopped(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.step()
    earlier = set(stage.api.jobs)
    stage.api.set("Running")
    stage.changes = {"job": {"memory": "65Gi"}}
    stage.restart()
    stage.step(10)
    assert {run for run, _ in stage.api.commands} == earlier
    stage.api.set("Aborting")
    stage.step(10)
    assert stage.api.jobs.keys() == earlier
    stage.api.set("Aborted")
    stage.step(10)
    assert len(stage.api.jobs) == 4


WIDER_SPACE: dict[str, Any] = {
    "space": {**SPACE, "learning_rate": {**SPACE["learning_rate"], "max": 0.2}}
}


def execute_commands(stage: Stage, steps: int) -> list[tuple[str, str]]:
    """Execute each step's commands as Volcano does; return the commands of the last step."""
    commands: list[tuple[str, str]] = []
    for _ in range(steps):
        already_sent = len(stage.api.commands)
        stage.step(10)
        commands = stage.api.commands[already_sent:]
        for run, action in commands:
            stage.api.set("Aborted" if action == "AbortJob" else "Running", run)
    return commands


@pytest.mark.parametrize(
    "changes",
    [WIDER_SPACE, {"objective": {"metric": "accuracy", "goal": "maximize"}}],
    ids=["space", "objective"],
)
def test_changed_sweep_resumes_earlier_trials_that_fit_its_new_settings(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    stage = Stage(tmp_path)
    stage.step()
    runs = set(stage.api.jobs)
    stage.api.set("Running")
    for specification in (changes, {}):
        stage.changes = specification
        stage.restart()
        assert execute_commands(stage, 6) == []
        assert stage.phases() == dict.fromkeys(runs, "placed")


def test_time_budget_of_a_changed_sweep_starts_again(tmp_path: Path) -> None:
    changes = {"budget": {"gpu_hours": 1000, "hours": 1}}
    stage = Stage(tmp_path, changes)
    stage.step()
    stage.api.set("Running")
    stage.changes = {**changes, **WIDER_SPACE}
    stage.restart(3000)
    execute_commands(stage, 6)
    assert set(stage.phases().values()) == {"placed"}
    stage.step(1000)
    assert stage.api.summary["state"] == "running"


def test_running_trial_is_paused_if_the_sweep_had_recorded_it_as_failed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.step()
    failed, running = stage.api.jobs
    stage.api.set("Running", running)
    stage.api.set("Failed", failed)
    stage.step(10)
    stage.changes = WIDER_SPACE
    stage.restart()
    stage.api.set("Running", failed)
    execute_commands(stage, 3)
    stage.changes = {}
    stage.restart()
    execute_commands(stage, 3)
    assert stage.api.commands.count((failed, "AbortJob")) == 1


def test_rejected_trial_is_reported_and_created_once_it_is_admitted(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.api.reject_jobs = True
    stage.step()
    assert not stage.api.jobs
    assert stage.api.summary["problem"] == "denied by a policy"
    phases = stage.phases()
    stage.api.reject_jobs = False
    stage.step(10)
    assert stage.api.jobs.keys() == phases.keys()
    assert stage.api.summary["problem"] == ""


def test_a_lost_journal_is_rebuilt_even_if_the_first_attempt_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    stage.step()
    runs = set(stage.api.jobs)
    stage.api.set("Running")
    stage.controller.close()
    (tmp_path / "digits-sweep" / JOURNAL).unlink()
    stage.start()
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Study, "set_created", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            stage.step(10)
    stage.restart()
    stage.step(10)
    assert stage.phases() == dict.fromkeys(runs, "placed")
    assert stage.api.jobs.keys() == runs


@pytest.mark.parametrize("ledger", [b"", b"[" * 10**5], ids=["cut", "brackets"])
def test_damaged_records_count_as_lost(ledger: bytes, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.step()
    runs = set(stage.api.jobs)
    stage.api.set("Running")
    stage.step(HOUR)
    stage.controller.close()
    records = tmp_path / "digits-sweep"
    lines = (records / JOURNAL).read_bytes().splitlines(keepends=True)
    (records / JOURNAL).write_bytes(b"".join([lines[0], b"\0" * 64 + b"\n", *lines[2:]]))
    (records / LEDGER).write_bytes(ledger or (records / LEDGER).read_bytes()[:40])
    stage.start()
    stage.step()
    assert stage.api.jobs.keys() == runs
    assert stage.phases() == dict.fromkeys(runs, "placed")
    assert stage.api.summary["gpu_hours"] == 2 * 8


SERVE_WINNER: dict[str, Any] = {"winner": "serve", "trials": 2, "early_stopping": None}


def winner_link(stage: Stage) -> Path:
    return stage.claim / winner_path(sweep(stack_settings(**stage.changes)))


def test_best_finished_trial_becomes_the_winner_only_when_the_sweep_is_over(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SERVE_WINNER)
    stage.step()
    first, second = stage.api.jobs
    stage.api.set("Running")
    stage.write_export(first, 0.25)
    stage.api.set("Completed", first)
    stage.report_losses(second, 0.1)
    stage.step(10)
    assert stage.api.summary["winner"] is None
    assert not winner_link(stage).exists()
    stage.write_export(second, 0.3)
    stage.api.set("Completed", second)
    stage.step(10)
    assert stage.api.summary["winner"] == first
    assert read_manifest(winner_link(stage) / "export").metrics == {"loss": 0.25}


def test_winner_is_chosen_only_when_all_exports_can_be_read(
    tmp_path: Path, unavailable: set[str]
) -> None:
    stage = Stage(tmp_path, SERVE_WINNER)
    stage.step()
    first, best = stage.api.jobs
    stage.api.set("Running")
    for run, loss in ((best, 0.1), (first, 0.2)):
        stage.write_export(run, loss)
        stage.api.set("Completed", run)
        if run == best:
            stage.step(10)
    unavailable.add(best)
    assert not _step(stage.controller)
    assert not winner_link(stage).is_symlink()
    unavailable.clear()
    stage.step(10)
    assert winner_link(stage).readlink().name == best


def test_winner_is_chosen_only_when_all_results_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, SERVE_WINNER)
    stage.step()
    first, best = stage.api.jobs
    for run, loss in ((first, 0.2), (best, 0.1)):
        stage.write_export(run, loss)
        stage.api.set("Completed", run)
        with monkeypatch.context() as full:
            if run == best:
                full.setattr("optuna.storages.journal.JournalFileBackend.append_logs", _full)
            stage.step(10)
        assert not winner_link(stage).is_symlink()
    stage.step(10)
    assert winner_link(stage).readlink().name == best


def test_winner_none_creates_no_link(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {**SERVE_WINNER, "winner": "none"})
    stage.step()
    for run in stage.api.jobs:
        stage.write_export(run, 0.2)
    stage.api.set("Completed")
    stage.step(10)
    assert (stage.api.summary["state"], stage.api.summary["winner"]) == ("complete", None)
    assert not winner_link(stage).is_symlink()


def test_sweep_with_a_spent_budget_gets_its_winner_once_all_trials_have_stopped(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, {**SERVE_WINNER, "budget": {"gpu_hours": 16.1}})
    stage.step()
    first, second = stage.api.jobs
    stage.api.set("Running")
    stage.step()
    stage.write_export(first, 0.25)
    stage.api.set("Completed", first)
    stage.step(HOUR)
    assert stage.api.commands == [(second, "AbortJob")]
    assert stage.api.summary["winner"] is None
    stage.api.set("Aborting", second)
    stage.step(10)
    assert stage.api.summary["winner"] is None
    # While the second trial is being paused, it finishes with a lower loss.
    stage.write_export(second, 0.2)
    stage.api.set("Aborted", second)
    stage.step(10)
    assert stage.api.summary["winner"] == second


def test_sweep_has_no_winner_if_all_trials_have_failed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SERVE_WINNER)
    stage.step()
    stage.api.set("Failed")
    stage.step(10)
    assert (stage.api.summary["state"], stage.api.summary["winner"]) == ("complete", None)


def test_extended_sweep_gets_a_new_winner_and_keeps_the_first_link(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SERVE_WINNER)
    stage.step()
    first, second = stage.api.jobs
    stage.write_export(first, 0.25)
    stage.api.set("Completed", first)
    stage.api.set("Failed", second)
    stage.step(10)
    first_link = winner_link(stage)
    stage.changes = {**SERVE_WINNER, "trials": 3}
    stage.restart()
    stage.step(10)
    (third,) = stage.api.jobs.keys() - {first, second}
    assert not winner_link(stage).exists()
    stage.write_export(third, 0.1)
    stage.api.set("Completed", third)
    stage.step(10)
    assert (first_link.readlink().name, winner_link(stage).readlink().name) == (first, third)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("plan", [None, "{", "[]", '{"digits": {}}', '{"digits": 1}'])
def test_unreadable_plan_is_reported_in_one_line(
    plan: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "plan.json"
    if plan is not None:
        file.write_text(plan)
    monkeypatch.setattr(sys, "argv", ["sweeps", f"--plan={file}", f"--claims={tmp_path}"])
    assert main() == 1
    assert capsys.readouterr().err.startswith(f"{file} cannot be read: ")
