"""The `training` section: jobs and sweeps."""

import json
from collections.abc import Mapping
from typing import Final, Self

from pydantic import Field, model_validator

from infra.settings.training.job import TrainingJobSettings
from infra.settings.training.sweep import SweepControllerSettings, SweepSettings
from infra.settings.types import RunKey, Settings
from kube.kinds import KINDS
from kube.kinds.volcano import TRAINING_STEP, template_name

_MAX_POD_NAME: Final = 63
"""Maximum length of a pod's name. The name is also the host name, so it must be a DNS label."""


def name_problem(key: str, job: TrainingJobSettings) -> str | None:
    """Return an error message if the names of a job's runs or pods would be too long.

    The caller prepends the job's name, as in `has job 'digits' of kind 'mpi': the names …`.
    """
    run, setting = (f"{key}-12345678", "key") if job.run is None else (job.run, "`run`")
    suffix = KINDS[job.kind].pod_suffix.format(last=job.nodes - 1)
    limit = KINDS[job.kind].max_run_name or _MAX_POD_NAME - len(suffix)
    if len(run) > limit:
        return (
            f"of kind {job.kind!r}: the names of its runs would have "
            f"{len(run)} characters, but the kind allows {limit}. Use a shorter {setting}"
        )
    if not job.starts_in_flow:
        return None
    for step in (TRAINING_STEP, *job.expanded.steps):
        end = suffix if step == TRAINING_STEP else "-step-0"
        # A JobFlow names its jobs <run>-<template>, and Volcano names the pods of a job
        # <job>-<task>-<index>.
        length = len(f"{run}-{template_name(run, step)}{end}")
        if length > _MAX_POD_NAME:
            return (
                f"with the step {step!r}: the names of its pods would have "
                f"{length} characters, but at most {_MAX_POD_NAME} are allowed. Use a shorter "
                f"{setting} or step name"
            )
    return None


class TrainingSettings(Settings):
    """Training jobs and hyperparameter sweeps by key."""

    jobs: dict[RunKey, TrainingJobSettings] = Field(
        default={}, description="Jobs by key. A run is named `<key>-<hash of its specification>`."
    )
    sweeps: dict[RunKey, SweepSettings] = Field(
        default={},
        description="Hyperparameter sweeps by key. A trial is named like a run: `<key>-<hash of "
        "the job with the trial's hyperparameters>`.",
    )
    sweep_controller: SweepControllerSettings = Field(
        default=SweepControllerSettings(),
        description="The program that runs the sweeps, if there are any.",
    )

    @property
    def all_jobs(self) -> Mapping[str, TrainingJobSettings]:
        """All jobs by key. The job of a sweep has the key `sweeps.<key>.job`."""
        return {
            **self.jobs,
            **{f"sweeps.{key}.job": sweep.job for key, sweep in self.sweeps.items()},
        }

    @property
    def has_money_budget(self) -> bool:
        """True if any sweep has a cost budget, for which the controller needs GPU prices."""
        return any(sweep.budget.money is not None for sweep in self.sweeps.values())

    @model_validator(mode="after")
    def _names_are_short_enough(self) -> Self:
        jobs = [*self.jobs.items(), *((key, sweep.job) for key, sweep in self.sweeps.items())]
        for key, job in jobs:
            if problem := name_problem(key, job):
                raise ValueError(f"has job {key!r} {problem}")
        return self

    @model_validator(mode="after")
    def _fixed_runs_are_distinct(self) -> Self:
        owners: dict[str, str] = {}
        for key, job in self.jobs.items():
            if job.run is None:
                continue
            names = {f"the run {job.run!r}": "change `run` of one of them"}
            if job.starts_in_flow:
                template = f"the JobTemplate {template_name(job.run, TRAINING_STEP)!r}"
                names[template] = "use values of `run` that differ after the last '-'"
            for name, remedy in names.items():
                if (other := owners.setdefault(name, key)) != key:
                    raise ValueError(
                        f"has jobs {other!r} and {key!r} that would both create {name}: {remedy}"
                    )
        return self

    @model_validator(mode="after")
    def _templates_are_distinct(self) -> Self:
        owners: dict[str, str] = {}
        for key, job in self.jobs.items():
            if job.run is not None or not job.starts_in_flow:
                continue
            # The names of templates contain the hash of a run's name, but not the job's key.
            specification = json.dumps([job.image, job.specification], sort_keys=True)
            if (other := owners.setdefault(specification, key)) != key:
                raise ValueError(
                    f"has jobs {other!r} and {key!r} with the same settings, so both would create "
                    "the same JobTemplates: set a different `attempt` in one of them"
                )
        return self

    @model_validator(mode="after")
    def _budgets_exceed_their_reserves(self) -> Self:
        for key, sweep in self.sweeps.items():
            reserve = sweep.reserve(self.sweep_controller.interval_seconds) / 3600
            if sweep.budget.gpu_hours is not None and sweep.budget.gpu_hours <= reserve:
                raise ValueError(
                    f"has sweep {key!r} with budget.gpu_hours {sweep.budget.gpu_hours:g}, but its "
                    f"parallel trials can use {reserve:.2g} GPU-hours before the controller has "
                    "paused them, so no trial would start: set a larger budget"
                )
        return self
