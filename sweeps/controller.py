"""Controller of a sweep, which observes the trials, decides what to do, and acts.

Decisions are recorded before they are executed, and trials are identified by the names of their
runs. The controller can therefore be killed and restarted at any time.
"""

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

from httpx2 import HTTPStatusError, codes
from lightkube import Client
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource
from lightkube.types import PatchType
from optuna.trial import FrozenTrial, TrialState

from infra.settings.training.sweep import CONTROLLER, template_name
from infra.sweep import Sweep, winner_path
from kube.kinds.volcano import COMMAND, JOB, TEMPLATE, command
from kube.names import SCHEDULING_GROUP, SWEEP_SUMMARY_ANNOTATION
from sweeps.decisions import (
    FINISHED,
    Action,
    Bounds,
    Budget,
    Phase,
    Trial,
    decide,
    is_complete,
    is_over,
)
from sweeps.study import Study, lock, summarize
from workload.manifest import ExportError, Manifest, UnavailableExportError, read_manifest
from workload.progress import PROGRESS_FILE, Epoch, Evaluated, parse

_Job = create_namespaced_resource(JOB.group, JOB.version, JOB.kind, JOB.plural)
_Command = create_namespaced_resource(COMMAND.group, COMMAND.version, COMMAND.kind, COMMAND.plural)
_Template = create_namespaced_resource(
    TEMPLATE.group, TEMPLATE.version, TEMPLATE.kind, TEMPLATE.plural
)
_Group = create_namespaced_resource(SCHEDULING_GROUP, "v1beta1", "PodGroup", "podgroups")
_HOUR: Final = 3600.0
_MAX_PROBLEM_LENGTH: Final = 2000
_WITHOUT_GPUS: Final = ("asked", "waiting", "paused")
_PHASES: Final[Mapping[str, Phase]] = {
    "Running": "placed",
    "Restarting": "placed",
    "Completing": "placed",
    "Aborting": "pausing",
    "Terminating": "pausing",
    "Aborted": "paused",
    "Completed": "succeeded",
    "Failed": "failed",
    "Terminated": "failed",
}
"""Maps phases of Volcano Jobs to trial phases. In all other phases of the Job, the trial is
`placed` if its gang is scheduled, otherwise `waiting`. The phase alone does not show whether the
gang is scheduled: a Job stays pending until its pods have pulled their images."""
_SCHEDULED: Final = ("Running", "Unknown", "Completed")
"""Phases of a PodGroup after its gang was scheduled."""
_log = logging.getLogger("sweeps")
Object = Mapping[str, Any]


class Controller:
    """Control loop of one sweep. `claim` is the path at which the checkpoint claim is mounted."""

    def __init__(
        self,
        sweep: Sweep,
        claim: Path,
        api: Client,
        interval: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sweep, self._claim, self._api, self._clock = sweep, claim, api, clock
        directory = claim / template_name(sweep.args.key)
        self._lock = lock(directory)
        self._study = Study(directory, sweep, clock)
        settings = sweep.settings
        self._bounds = Bounds(
            parallel=settings.parallel,
            trials=settings.trials,
            rungs=settings.rungs,
            factor=settings.early_stopping.factor if settings.early_stopping else 1,
        )
        self._sign = 1.0 if settings.objective.goal == "maximize" else -1.0
        self._budget = Budget(
            gpu_seconds=sweep.gpu_hours * _HOUR,
            seconds=None if settings.budget.hours is None else settings.budget.hours * _HOUR,
            reserve=settings.reserve(interval),
        )
        self._published = ""
        self._unwritten_ledger: dict[str, Any] = {}
        """The current ledger while it cannot be written; otherwise empty."""
        self._is_recorded = True
        """False if any record of the current step could not be written."""

    def close(self) -> None:
        """Release the lock, so that another process can control the sweep."""
        os.close(self._lock)

    def step(self) -> bool:
        """Observe, decide and act once. Return whether another step should follow immediately."""
        jobs = self._jobs()
        if self._pause_earlier_runs(jobs):
            return False
        if not self._study.is_rebuilt:
            created = {run: _creation(job) for run, job in jobs.items()}
            self._study.rebuild(self._existing_runs(jobs), created)
        self._is_recorded = True
        recorded, scheduled = self._study.trials(), self._scheduled()
        trials = [
            self._observe(run, trial, jobs.get(run), scheduled=run in scheduled)
            for run, trial in recorded.items()
        ]
        seconds = self._update_ledger(trials, jobs)
        started = self._study.started
        spent = self._budget.is_spent(seconds, 0 if started is None else self._clock() - started)
        exhausted = self._study.exhausted
        actions = decide(self._bounds, trials, spent=spent, exhausted=exhausted)
        problem = ""
        # Pauses come first, because other actions fail if they cannot be recorded.
        for action in sorted(actions, key=lambda each: each.kind != "pause"):
            try:
                self._act(action, jobs)
            except HTTPStatusError as error:
                # For example, an admission policy may have rejected the job. Continue, because
                # other trials may have to be paused.
                problem = str(error)
                _log.warning("%s %s: %s", action.kind, action.run, problem)
        complete = is_complete(self._bounds, trials, exhausted=exhausted) and self._is_recorded
        state = "complete" if complete else "budget spent" if spent else "running"
        over = is_over(trials, complete=complete, spent=spent) and self._is_recorded
        winner = self._winner() if over and self._sweep.settings.winner == "serve" else None
        summary = summarize(self._sweep, self._study, trials, seconds, state)
        self._publish({**summary, "winner": winner, "problem": problem[:_MAX_PROBLEM_LENGTH]})
        return any(action.kind == "ask" for action in actions)

    def _pause_earlier_runs(self, jobs: Mapping[str, Object]) -> bool:
        """Pause trials of earlier specifications. Return whether any of them is active."""
        active = [run for run in self._study.earlier_runs if run in jobs and _is_active(jobs[run])]
        for run in active:
            if _phase(jobs[run]) != "pausing":
                self._command(jobs[run], suspended=True)
        return bool(active)

    def _jobs(self) -> dict[str, Object]:
        return {job["metadata"]["name"]: job for job in self._list(_Job)}

    def _scheduled(self) -> set[str]:
        """Return the names of the jobs whose gangs are scheduled."""
        return {
            owner["name"]
            for group in self._list(_Group)
            if group.get("status", {}).get("phase") in _SCHEDULED
            for owner in group["metadata"].get("ownerReferences", ())
        }

    def _list(self, resource: type[GenericNamespacedResource]) -> Iterator[Object]:
        labels: dict[str, Any] = {"app.kubernetes.io/name": self._sweep.args.key}
        found = self._api.list(resource, namespace=self._sweep.args.namespace, labels=labels)
        return (each.to_dict() for each in found)  # type: ignore[no-untyped-call]

    def _existing_runs(self, jobs: Mapping[str, Object]) -> dict[str, dict[str, str]]:
        """Map existing runs to their settings (as text), read from the jobs or the exports."""
        runs = {}
        # `glob` returns nothing if the claim cannot be listed at the moment.
        for path in self._claim.iterdir():
            if not fnmatchcase(path.name, f"{self._sweep.args.key}-????????"):
                continue
            if (manifest := _read_export(path / "export")) is not None:
                settings = {key: str(value) for key, value in manifest.settings.items()}
                runs[path.name] = settings
        return {**runs, **{run: _arguments(job) for run, job in jobs.items()}}

    def _observe(
        self, run: str, recorded: FrozenTrial, job: Object | None, *, scheduled: bool
    ) -> Trial:
        """Return the state of a trial, and record its changes."""
        granted = self._study.granted(run) if recorded.state == TrialState.RUNNING else 0
        phase: Phase = "succeeded" if recorded.state == TrialState.COMPLETE else "failed"
        progress: dict[int, float] = {}
        if recorded.state == TrialState.RUNNING:
            progress = self._progress(run)
            with self._recording():
                if job is not None and not self._study.is_created(run):
                    self._study.set_created(run)
                self._study.report(run, progress)
            phase = _phase(job) if job is not None else self._phase_without_job(run)
            if phase == "waiting" and scheduled:
                phase = "placed"
            if phase == "paused" and self._result(run) is not None:
                # The trial finished while it was being paused.
                phase = "succeeded"
            with self._recording():
                if phase == "succeeded" and (value := self._result(run)) is not None:
                    self._study.succeed(run, value)
                elif phase == "failed":
                    self._study.fail(run)
            recorded = self._study.trials()[run]
        # A trial with a NaN or infinite metric has diverged and ranks below all others.
        values = {
            step: self._sign * value if math.isfinite(value) else -math.inf
            for step, value in {**progress, **recorded.intermediate_values}.items()
        }
        return Trial(run, phase, values, granted)

    def _phase_without_job(self, run: str) -> Phase:
        """Return the phase of a trial whose job has not been created yet, or was deleted."""
        if not self._study.is_created(run):
            return "asked"
        return "failed" if self._result(run) is None else "succeeded"

    def _progress(self, run: str) -> dict[int, float]:
        """Map each completed epoch, or each step if `unit` is `steps`, to the objective's value."""
        try:
            text = (self._claim / run / PROGRESS_FILE).read_text("utf-8", errors="replace")
        except OSError:
            return {}
        metric, values = self._sweep.settings.objective.metric, {}
        for line in text.splitlines():
            event = parse(line)
            if not isinstance(event, (Epoch, Evaluated)):
                continue
            known = {"accuracy": event.accuracy, "held_out_loss": event.held_out_loss}
            value = {**known, **(event.metrics or {})}.get(metric)
            position = _position(event, self._sweep.settings.unit)
            if value is not None and position is not None:
                values[position] = value
        return values

    def _result(self, run: str) -> float | None:
        """Return the objective's value for the exported model; None if there is no valid export."""
        metric = self._sweep.settings.objective.metric
        manifest = _read_export(self._claim / run / "export")
        if manifest is None:
            return None
        return manifest.metrics.get("loss" if metric == "held_out_loss" else metric)

    @contextlib.contextmanager
    def _recording(self) -> Any:
        """Log a failure to write a record, for example because the claim is full.

        The next step writes the record again. Until then, trials can be paused, but no winner is
        chosen.
        """
        try:
            yield
        except OSError as error:
            self._is_recorded = False
            _log.warning("cannot write a record: %s", error)

    def _update_ledger(self, trials: list[Trial], jobs: Mapping[str, Object]) -> float:
        """Add the GPU time since the last step to the ledger, and return the total in seconds.

        If a trial had GPUs at either of two consecutive observations, or between them, the whole
        time between the observations counts, so that the total is never too low.
        """
        now, ledger = self._clock(), self._unwritten_ledger or self._study.ledger()
        for trial in trials:
            job = jobs.get(trial.run)
            if trial.run not in ledger and job is None:
                continue
            entry = ledger.get(trial.run)
            if entry is None:
                assert job is not None  # noqa: S101  see the condition above
                # If the ledger was lost, assume that a paused trial had GPUs until now, so that the
                # total is never too low.
                phase = "waiting" if trial.phase == "waiting" else "placed"
                entry = {"seconds": 0.0, "seen": _creation(job), "phase": phase}
            idle = trial.phase in _WITHOUT_GPUS and entry["phase"] in _WITHOUT_GPUS
            # A trial may have been placed and preempted while the controller was not running.
            idle = idle and not (job is not None and _was_placed(job, entry["seen"]))
            if not idle and entry["phase"] not in FINISHED:
                entry["seconds"] += max(now - entry["seen"], 0.0) * self._sweep.settings.gpus
            ledger[trial.run] = {**entry, "seen": now, "phase": trial.phase}
        self._unwritten_ledger = ledger
        with self._recording():
            self._study.write_ledger(ledger)
            self._unwritten_ledger = {}
        return float(sum(ledger[trial.run]["seconds"] for trial in trials if trial.run in ledger))

    def _winner(self) -> str | None:
        """Return the run of the winner, and create the link that the model server follows.

        If the link already exists, its target remains the winner. Otherwise, the winner is the best
        trial with a valid export. Return None if there is no such trial.
        """
        link = self._claim / winner_path(self._sweep)
        with contextlib.suppress(FileNotFoundError):
            return link.readlink().name
        finished = [run for run in self._study.best_first() if self._result(run) is not None]
        if not finished:
            return None
        link.symlink_to(Path("..") / finished[0])
        _log.info("%s is the winner", finished[0])
        return finished[0]

    def _act(self, action: Action, jobs: Mapping[str, Object]) -> None:
        match action.kind:
            case "ask":
                run = self._study.ask()
                _log.info("chose %s", run or "hyperparameters of an existing trial")
            case "create":
                self._create(action.run)
            case "grant":
                self._study.grant(action.run, action.granted)
            case "pause" | "resume":
                self._command(jobs[action.run], suspended=action.kind == "pause")

    def _create(self, run: str) -> None:
        manifest = self._sweep.manifest(self._study.trials()[run].params)
        with _ignore_existing():
            self._api.create(_Job.from_dict(manifest), namespace=self._sweep.args.namespace)
        self._study.set_created(run)
        _log.info("%s: created", run)

    def _command(self, job: Object, *, suspended: bool) -> None:
        run = job["metadata"]["name"]
        # The fixed name prevents a second command until Volcano has executed the first one.
        manifest = command(job, suspended=suspended, name=f"{run}-sweep")
        with _ignore_existing():
            self._api.create(_Command.from_dict(manifest), namespace=self._sweep.args.namespace)
        _log.info("%s: %s", run, "pause" if suspended else "resume")

    def _publish(self, summary: dict[str, Any]) -> None:
        text = json.dumps(summary, sort_keys=True)
        if text == self._published:
            return
        self._api.patch(
            _Template,
            template_name(self._sweep.args.key),
            {"metadata": {"annotations": {SWEEP_SUMMARY_ANNOTATION: text}}},
            namespace=self._sweep.args.namespace,
            patch_type=PatchType.MERGE,
            field_manager=CONTROLLER,
        )
        self._published = text


def _read_export(directory: Path) -> Manifest | None:
    """Return the manifest of an export, or None if it is missing or damaged.

    Raise UnavailableExportError if it cannot be read at the moment.
    """
    try:
        return read_manifest(directory)
    except UnavailableExportError:
        raise
    except ExportError:
        return None


def _position(event: Epoch | Evaluated, unit: Literal["epochs", "steps"]) -> int | None:
    """Return the step of an event, or the epoch that ended with the event.

    Return None if `unit` is "epochs" and the event is not at the end of an epoch, or if the number
    is missing or invalid, because programs may print anything.
    """
    if unit == "steps":
        return event.step if event.step is not None and event.step >= 0 else None
    if not isinstance(event, Epoch) or not 0 <= event.epoch < math.inf:
        return None
    return int(event.epoch) if event.epoch == int(event.epoch) else None


def _creation(job: Object) -> float:
    """Return the Unix time at which a job was created."""
    return datetime.fromisoformat(job["metadata"]["creationTimestamp"]).timestamp()


def _phase(job: Object) -> Phase:
    phase = job.get("status", {}).get("state", {}).get("phase", "")
    return _PHASES.get(phase, "waiting")


def _was_placed(job: Object, since: float) -> bool:
    """Return whether a job had GPUs after a Unix time, according to its status."""
    return any(
        _PHASES.get(condition["status"]) == "placed"
        # The time has a resolution of one second.
        and datetime.fromisoformat(condition["lastTransitionTime"]).timestamp() >= int(since)
        for condition in job.get("status", {}).get("conditions") or ()
    )


def _is_active(job: Object) -> bool:
    return _phase(job) in ("waiting", "placed", "pausing")


def _arguments(job: Object) -> dict[str, str]:
    """Map the names of the options in a job's command to their values."""
    (task, *_) = job["spec"]["tasks"]
    arguments = task["template"]["spec"]["containers"][0].get("command", ())
    flags = (word.removeprefix("--").partition("=") for word in arguments if word.startswith("--"))
    return {name.replace("-", "_"): value for name, _, value in flags}


@contextlib.contextmanager
def _ignore_existing() -> Any:
    """Ignore conflicts with an object that an earlier process created."""
    try:
        yield
    except HTTPStatusError as error:
        if error.response.status_code != codes.CONFLICT:
            raise
