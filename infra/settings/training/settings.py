"""The section `training`: jobs and sweeps."""

from collections.abc import Mapping
from typing import Final, Self

from pydantic import Field, model_validator

from infra.settings.training.job import TrainingJobSettings
from infra.settings.training.sweep import SweepControllerSettings, SweepSettings
from infra.settings.types import RunKey, Settings
from kube.kinds import KINDS

_MAX_POD_NAME: Final = 63
"""Maximum length of a pod's name, which is also its host name and therefore a DNS label."""


class TrainingSettings(Settings):
    """Training jobs and hyperparameter sweeps by key."""

    jobs: dict[RunKey, TrainingJobSettings] = Field(
        default={}, description="Jobs by key. A run is named <key>-<hash of its specification>."
    )
    sweeps: dict[RunKey, SweepSettings] = Field(
        default={},
        description="Hyperparameter sweeps by key. A trial is named like a run of a job that has "
        "the sweep's key and the trial's hyperparameters.",
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
        keys = [*self.jobs.items(), *((key, sweep.job) for key, sweep in self.sweeps.items())]
        for key, job in keys:
            run = len(f"{key}-12345678")
            suffix = KINDS[job.kind].pod_suffix.format(last=job.nodes - 1)
            limit = KINDS[job.kind].max_run_name or _MAX_POD_NAME - len(suffix)
            if run > limit:
                raise ValueError(
                    f"has job {key!r} of kind {job.kind!r}: the names of its runs would have {run} "
                    f"characters, but the kind allows {limit}. Use a shorter key"
                )
            for step in job.expanded.steps:
                # A JobFlow names the pods of a step <run>-<hash>-<step>-<task>-<index>.
                pod = run + len(f"-12345678-{step}-worker-{job.nodes}")
                if pod > _MAX_POD_NAME:
                    raise ValueError(
                        f"has job {key!r} with the step {step!r}: names of its pods would have "
                        f"{pod} characters, but {_MAX_POD_NAME} are allowed. Use a shorter key "
                        "or step name"
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
