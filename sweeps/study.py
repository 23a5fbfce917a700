"""State of a sweep: an Optuna study in a journal next to the checkpoints, and its summary.

Only one process writes to the journal. Optuna's sampler computes each proposal of hyperparameters
from the recorded trials alone, so restarts do not affect the proposals.
"""

import fcntl
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from infra.settings.training.sweep import Parameters, ParameterSettings
from infra.sweep import Price, Sweep
from sweeps.decisions import Trial
from training.config import TrainingConfig, written
from workload.files import exists, write_atomically

JOURNAL: Final = "journal.log"
LEDGER: Final = "ledger.json"
_RUN: Final = "run"
_CREATED: Final = "created"
_GRANTED: Final = "granted"
_DUPLICATES_PER_TRIAL: Final = 5
"""The search space counts as exhausted after `_DUPLICATES_PER_TRIAL * trials` duplicate proposals,
where `trials` is the sweep's maximum number of trials."""

_log = logging.getLogger("sweeps")
optuna.logging.set_verbosity(optuna.logging.WARNING)


class _NoLock(JournalFileSymlinkLock):
    """A lock that does nothing, because the caller already holds the directory's lock."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class _Journal(JournalFileBackend):
    """A journal that removes an incomplete last line before it appends.

    A failed write, for example to a full claim, may leave such a line behind.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        _remove_incomplete_line(Path(self._file_path))
        super().append_logs(logs)


def lock(directory: Path) -> int:
    """Wait for the exclusive lock of a directory; return the file descriptor that holds it.

    The lock is released when the descriptor is closed or the process exits.
    """
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


class Study:
    """Trials of a sweep. The caller must hold the directory's lock."""

    def __init__(
        self, directory: Path, sweep: Sweep, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._sweep = directory, sweep
        journal = directory / JOURNAL
        _remove_incomplete_line(journal)
        try:
            self._study = _open_study(journal, sweep)
        except ValueError as error:
            # Recover the trials as if the journal were lost.
            _log.warning("%s is damaged and is replaced: %s", journal, error)
            journal.replace(journal.with_suffix(".damaged"))
            self._study = _open_study(journal, sweep)
        self.distributions = distributions(sweep.settings.space)

    @property
    def earlier_runs(self) -> list[str]:
        """Unfinished runs that belong only to earlier specifications of the sweep.

        Runs that are also unfinished trials of the current specification are not included.
        """
        storage = self._study._storage
        current = [run for run, trial in self.trials().items() if trial.state == TrialState.RUNNING]
        return [
            trial.user_attrs[_RUN]
            for study in storage.get_all_studies()
            if study.study_name != self._study.study_name
            for trial in storage.get_all_trials(study._study_id, deepcopy=False)
            if trial.state == TrialState.RUNNING and trial.user_attrs[_RUN] not in current
        ]

    @property
    def started(self) -> float | None:
        """Unix time at which the first trial was chosen; None if there is no trial yet."""
        value = self._study.user_attrs.get("started")
        return None if value is None else float(value)

    def trials(self) -> dict[str, FrozenTrial]:
        """Map the names of runs to their trials, in the order in which the trials were chosen."""
        found = self._study.get_trials(deepcopy=False)
        return {trial.user_attrs[_RUN]: trial for trial in found if _RUN in trial.user_attrs}

    def best_first(self) -> list[str]:
        """Return the runs of finished trials with a finite result, best first."""
        values = {
            run: trial.value
            for run, trial in self.trials().items()
            if trial.state == TrialState.COMPLETE
            and trial.value is not None
            and math.isfinite(trial.value)
        }
        maximize = self._sweep.settings.objective.goal == "maximize"
        return sorted(values, key=values.__getitem__, reverse=maximize)

    @property
    def exhausted(self) -> bool:
        """True if too many of the sampler's proposals repeated recorded trials."""
        recorded = self._study.get_trials(deepcopy=False)
        duplicates = len(recorded) - len(self.trials())
        return duplicates >= _DUPLICATES_PER_TRIAL * self._sweep.settings.trials

    def ask(self) -> str | None:
        """Sample hyperparameters and record a trial with them. Return the result of `add`."""
        before = self._study.get_trials(deepcopy=False)
        # Unfinished trials with values count as pruned, with their last value. Trials without
        # values make the sampler avoid their hyperparameters (constant liar).
        in_memory = optuna.create_study(
            direction=self._sweep.settings.objective.goal, sampler=self._sampler(len(before))
        )
        for trial in before:
            state = trial.state
            if state == TrialState.RUNNING and trial.intermediate_values:
                state = TrialState.PRUNED
            in_memory.add_trial(
                create_trial(
                    state=state,
                    value=trial.value,
                    params=trial.params,
                    distributions=trial.distributions,
                    intermediate_values=trial.intermediate_values,
                )
            )
        parameters = in_memory.ask(self.distributions).params
        return self.add(parameters)

    def add(self, parameters: Parameters) -> str | None:
        """Record a trial and return the name of its run.

        If the run is already recorded, record a failed trial without a run, and return None.
        """
        run = self._sweep.run(parameters)
        is_known = run in self.trials()
        self._study.add_trial(
            create_trial(
                state=TrialState.FAIL if is_known else TrialState.RUNNING,
                params=dict(parameters),
                distributions=self.distributions,
                user_attrs={} if is_known else {_RUN: run},
            )
        )
        if self.started is None:
            self._study.set_user_attr("started", self._clock())
        return None if is_known else run

    def is_created(self, run: str) -> bool:
        """Return whether the job of a trial has been created."""
        return bool(self.trials()[run].user_attrs.get(_CREATED))

    def granted(self, run: str) -> int:
        """Return the number of rungs that a trial may pass."""
        return int(self.trials()[run].user_attrs.get(_GRANTED, 0))

    def set_created(self, run: str) -> None:
        """Record that the job of a trial exists, so that it is never created again."""
        self._trial(run).set_user_attr(_CREATED, True)

    def grant(self, run: str, rungs: int) -> None:
        """Let a trial pass the first `rungs` rungs."""
        self._trial(run).set_user_attr(_GRANTED, rungs)

    def report(self, run: str, values: Mapping[int, float]) -> None:
        """Record the objective at each epoch or step that is not recorded yet."""
        known = self.trials()[run].intermediate_values
        for epoch, value in values.items():
            if epoch not in known:
                self._trial(run).report(value, epoch)

    def succeed(self, run: str, value: float) -> None:
        """Record the result of a trial."""
        self._study.tell(self.trials()[run].number, value)

    def fail(self, run: str) -> None:
        """Record that a trial failed or was deleted."""
        self._study.tell(self.trials()[run].number, state=TrialState.FAIL)

    def parameters(self, texts: Mapping[str, str]) -> dict[str, Any] | None:
        """Parse the hyperparameters of the search space; return None if any is outside it."""
        values = {}
        for name, parameter in self._sweep.settings.space.items():
            default = written(TrainingConfig.model_fields[name].get_default())
            text = texts.get(name, str(default))
            value = _parse_value(name, parameter, self.distributions[name], text)
            if value is None:
                return None
            values[name] = value
        return values

    @property
    def is_rebuilt(self) -> bool:
        """True if `rebuild` has been called, which restores the trials of a lost journal."""
        return bool(self._study.user_attrs.get("rebuilt"))

    def rebuild(self, runs: Mapping[str, Mapping[str, str]], created: Mapping[str, float]) -> None:
        """Record existing runs that the journal lacks; `runs` maps run names to settings.

        A run is a trial of this sweep if its name equals the name computed from its settings.
        `created` maps the names of existing jobs to the Unix times at which they were created.
        """
        for run, texts in sorted(runs.items()):
            if run in self.trials():
                continue
            parameters = self.parameters(texts)
            if parameters is not None and self._sweep.run(parameters) == run:
                self.add(parameters)
                self.set_created(run)
        # This sweep started the jobs in its ledger. If the journal contains no other specification
        # of the sweep, an earlier journal was lost. In this case, the time budget starts when the
        # first of these jobs was created.
        since = [created[run] for run in self.trials() if run in created and run in self.ledger()]
        if since and len(self._study._storage.get_all_studies()) == 1:
            self._study.set_user_attr("started", min(since))
        self._study.set_user_attr("rebuilt", True)

    def ledger(self) -> dict[str, Any]:
        """Return the recorded GPU time of the runs; empty if the record is missing or damaged."""
        try:
            found: dict[str, Any] = json.loads((self._directory / LEDGER).read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return found

    def write_ledger(self, ledger: Mapping[str, Any]) -> None:
        """Replace the recorded GPU time of the runs."""
        write_atomically(self._directory / LEDGER, json.dumps(ledger).encode())

    def _trial(self, run: str) -> optuna.trial.Trial:
        return optuna.trial.Trial(self._study, self.trials()[run]._trial_id)

    def _sampler(self, trials: int) -> optuna.samplers.BaseSampler:
        # Different studies, for example for jobs with different seeds, draw different values.
        digest = hashlib.sha256(f"{self._study.study_name} {trials}".encode()).digest()
        seed = int.from_bytes(digest[:4])
        if self._sweep.settings.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _open_study(journal: Path, sweep: Sweep) -> optuna.Study:
    backend = _Journal(str(journal), lock_obj=_NoLock(str(journal)))
    return optuna.create_study(
        storage=JournalStorage(backend),
        study_name=_study_name(sweep),
        load_if_exists=True,
        direction=sweep.settings.objective.goal,
    )


def distributions(space: Mapping[str, ParameterSettings]) -> dict[str, BaseDistribution]:
    """Return the Optuna distributions for a search space."""
    found: dict[str, BaseDistribution] = {}
    for name, parameter in space.items():
        if parameter.min is None or parameter.max is None:
            found[name] = CategoricalDistribution(parameter.choices)
        elif TrainingConfig.model_fields[name].annotation is int:
            low, high = int(parameter.min), int(parameter.max)
            found[name] = IntDistribution(low, high, log=parameter.log)
        else:
            found[name] = FloatDistribution(parameter.min, parameter.max, log=parameter.log)
    return found


def _parse_value(
    name: str, parameter: ParameterSettings, distribution: BaseDistribution, text: str
) -> Any:
    """Parse a parameter's value; return None if it is not in the space."""
    if isinstance(distribution, CategoricalDistribution):
        # Runs write 0 as 0.0 if the hyperparameter is a float.
        is_float = TrainingConfig.model_fields[name].annotation is float
        choices = {str(written(float(c) if is_float else c)): c for c in parameter.choices}
        return choices.get(text)
    try:
        value = int(text) if isinstance(distribution, IntDistribution) else float(text)
    except ValueError:
        return None
    return value if distribution._contains(value) else None


def _study_name(sweep: Sweep) -> str:
    """Return the name of the study, which depends on the sweep's job, space and objective."""
    settings = sweep.settings.model_dump(mode="json", include={"space", "objective"})
    digits = sweep.run({}).rpartition("-")[2]
    return f"{digits} {json.dumps(settings, sort_keys=True)}"


def _remove_incomplete_line(journal: Path) -> None:
    """Remove an incomplete last line, which a power failure or a full claim may leave behind."""
    if not exists(journal) or not journal.stat().st_size:
        return
    with journal.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


_MAX_TRIALS: Final = 300
"""Maximum number of trials in the summary. Annotations are limited to 256 KiB."""


def summarize(
    sweep: Sweep, study: Study, trials: Sequence[Trial], gpu_seconds: float, state: str
) -> dict[str, Any]:
    """Return the summary of a sweep, with its trials sorted from best to worst.

    The controller writes it to an annotation of the JobTemplate.
    """
    recorded, settings = study.trials(), sweep.settings
    rows: list[dict[str, Any]] = []
    for number, trial in enumerate(trials):
        known = recorded[trial.run]
        trained = max(trial.values, default=0)
        value = known.value if known.value is not None else known.intermediate_values.get(trained)
        rows.append(
            {
                "number": number,
                "run": trial.run,
                "phase": trial.phase,
                "trained": trained,
                "value": value if value is not None and math.isfinite(value) else None,
                "hyperparameters": known.params,
            }
        )
    sign = -1.0 if settings.objective.goal == "maximize" else 1.0
    # Sort by training length first, then by value.
    rows.sort(key=lambda row: (-row["trained"], row["value"] is None, sign * (row["value"] or 0.0)))
    return {
        "state": state,
        "objective": settings.objective.model_dump(),
        "unit": settings.unit,
        "length": settings.length,
        "chosen": len(trials),
        "maximum_trials": settings.trials,
        "gpu_hours": round(gpu_seconds / 3600, 2),
        "maximum_gpu_hours": round(sweep.gpu_hours, 2),
        "cost": None if sweep.price is None else _cost(sweep.price, gpu_seconds),
        "maximum_cost": settings.budget.money,
        "space": {name: distribution_to_json(each) for name, each in study.distributions.items()},
        "trials": rows[:_MAX_TRIALS],
    }


def _cost(price: Price, gpu_seconds: float) -> dict[str, Any]:
    return {"amount": round(gpu_seconds / 3600 * price.gpu_hour, 2), "currency": price.currency}
