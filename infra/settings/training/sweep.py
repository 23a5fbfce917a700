"""Hyperparameter sweeps: a job, the space of its hyperparameters, and the limits of the search."""

import difflib
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from infra.settings.problems import either, rule
from infra.settings.training.job import TrainingJobSettings
from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    Labels,
    MemoryQuantity,
    PortNumber,
    PositiveInt,
    Settings,
)
from kube.kinds import KINDS
from kube.kinds.volcano import JOB
from training.config import ALWAYS_LISTED, LENGTHS, LISTED_IF_SET, TrainingConfig, metric_name

CONTROLLER: Final = "sweep-controller"
"""Name of the Deployment that controls the sweeps."""
SEARCHABLE: Final = tuple(
    name
    for name in (*ALWAYS_LISTED, *LISTED_IF_SET)
    if name not in LENGTHS and not name.startswith("init_")
)
"""Hyperparameters that a sweep may search: they affect the result, but not a run's length."""

_MAX_COMBINATIONS: Final = 256
Value = str | bool | int | float
Parameters = Mapping[str, Value]


def _searchable(name: str) -> str:
    if name in SEARCHABLE:
        return name
    if name in TrainingConfig.model_fields:
        raise ValueError(
            "does not affect the result, or sets the length of the run, so it cannot be searched: "
            "set it in job.hyperparameters"
        )
    raise ValueError(_unknown(name))


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, SEARCHABLE, n=1)
    advice = f": did you mean {close[0]!r}?" if close else "."
    return f"is not a known hyperparameter{advice} Known: {', '.join(sorted(SEARCHABLE))}"


Searched = Annotated[str, AfterValidator(_searchable)]


class ParameterSettings(Settings):
    """Values of a hyperparameter: a range, or a list."""

    min: int | float | None = Field(default=None, description="Smallest value of a range.")
    max: int | float | None = Field(default=None, description="Largest value of a range.")
    log: bool = Field(
        default=False, description="Draw the values of a range on a logarithmic scale."
    )
    choices: list[Value] = Field(
        default=[], description="Values to choose from, instead of a range."
    )

    @model_validator(mode="after")
    def _is_a_range_or_a_list(self) -> Self:
        if self.choices:
            if self.model_fields_set - {"choices"}:
                raise ValueError("sets both choices and a range: keep one of them")
            if len({str(choice) for choice in self.choices}) < len(self.choices):
                raise ValueError("has a duplicate choice: list each choice once")
            return self
        if self.min is None or self.max is None:
            raise ValueError("must set min and max, or choices")
        if not (math.isfinite(self.min) and math.isfinite(self.max) and self.min < self.max):
            raise ValueError(f"has min {self.min} and max {self.max}: max must be larger")
        if self.log and self.min <= 0:
            raise ValueError(
                f"sets log, but min is {self.min}, which has no logarithm: set min to more than 0"
            )
        return self

    @property
    def extremes(self) -> list[Value]:
        """The ends of the range, or every choice."""
        if self.min is None or self.max is None:
            return list(self.choices)
        return [self.min, self.max]


def template_name(key: str) -> str:
    """Return the name of a sweep's template, and of the sweep's directory on the claim."""
    return f"{key}-sweep"


class ObjectiveSettings(Settings):
    """The metric on held-out data that a sweep optimizes."""

    metric: str = Field(
        default="held_out_loss",
        description="held_out_loss, accuracy, or the name of a custom metric of the job.",
    )
    goal: Literal["minimize", "maximize"] = Field(
        default="minimize",
        description="Direction of the search. It must be maximize for accuracy.",
    )

    @model_validator(mode="after")
    def _seeks_better_models(self) -> Self:
        best = {"held_out_loss": "minimize", "accuracy": "maximize"}.get(self.metric, self.goal)
        if self.goal != best:
            raise ValueError(
                f"searches for the worst model: goal is {self.goal!r}, but the metric is "
                f"{self.metric!r}: set goal to {best}"
            )
        return self


class EarlyStoppingSettings(Settings):
    """Asynchronous successive halving: a trial is paused after a rung unless it is among the best.

    The rungs are `minimum`, `minimum * factor`, … up to `maximum`, in the unit of the job's length:
    epochs, or steps if the job sets `train_steps`. After each rung, the best 1/`factor` of the
    trials continue to the next rung; after the last rung, they continue to the end of the job.
    """

    minimum: PositiveInt = Field(
        default=1,
        description="First rung: number of epochs or steps after which trials are first compared.",
    )
    maximum: PositiveInt | None = Field(
        default=None,
        description="Upper bound of the last rung, in epochs or steps. null means the end of the "
        "job.",
    )
    factor: int = Field(
        default=3,
        ge=2,
        le=10,
        description="Ratio of consecutive rungs. The best 1/factor of the trials continue after a "
        "rung.",
    )


class BudgetSettings(Settings):
    """Limits of a sweep besides the number of trials. If one is reached, all trials are paused."""

    gpu_hours: float | None = Field(
        default=None,
        gt=0,
        description="Maximum GPU-hours of all trials. Required unless `money` is set.",
    )
    money: float | None = Field(
        default=None,
        gt=0,
        description="Maximum cost of all trials in the currency of the price table "
        "(gitops/config/prices.yaml), which must contain the prices of the trials' GPUs. If null, "
        "there is no limit.",
    )
    hours: float | None = Field(
        default=None,
        gt=0,
        description="Maximum time (h) since the first trial started. If null, there is no limit.",
    )

    @model_validator(mode="after")
    def _has_limit(self) -> Self:
        if self.gpu_hours is None and self.money is None:
            raise ValueError("must set gpu_hours, money or both")
        return self


class SweepSettings(Settings):
    """One hyperparameter sweep. A trial runs the sweep's job with one set of hyperparameters."""

    job: TrainingJobSettings = Field(
        description="Job of every trial, as in `training.jobs`. Its length is the length of a full "
        "trial."
    )
    space: dict[Searched, ParameterSettings] = Field(
        min_length=1, description="Values to search, by hyperparameter."
    )
    objective: ObjectiveSettings = Field(
        default=ObjectiveSettings(), description="The metric that is optimized."
    )
    sampler: Literal["tpe", "random"] = Field(
        default="tpe", description="Search method: tree-structured Parzen estimator, or random."
    )
    early_stopping: EarlyStoppingSettings | None = Field(
        default=None, description="Pause trials early. If null, all trials run to the end."
    )
    parallel: int = Field(
        default=1, ge=1, le=100, description="Number of trials that run at the same time."
    )
    trials: int = Field(ge=1, le=1000, description="Maximum number of trials.")
    budget: BudgetSettings = Field(description="Limits for the whole sweep.")
    winner: Literal["none", "serve"] = Field(
        default="none",
        description="`none`: serve no trial; `serve`: serve the export of the best finished trial "
        "when the sweep is over (`inference.services.<key>.sweep`).",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(self._problems()):
            raise ValueError("; it ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        config = self.job.hyperparameters
        if config is None:
            yield "searches hyperparameters, but its job has none: set job.hyperparameters"
            return
        if KINDS[self.job.kind].resource is not JOB or self.job.steps:
            yield (
                f"has a job of kind {self.job.kind}{' with steps' if self.job.steps else ''}: "
                f"use a kind that creates a {JOB.title}, such as volcano, without job.steps"
            )
        for name in ("run", "state", "recreate", "on_change", "schedule"):
            if name in self.job.model_fields_set:
                yield f"sets job.{name}, which belongs to a single run: remove it"
        if self.parallel > self.trials:
            yield (
                f"sets parallel to {self.parallel}, more than trials ({self.trials}): set a "
                "smaller value"
            )
        known = ["held_out_loss", "accuracy", *map(metric_name, config.metrics)]
        if self.objective.metric not in known:
            yield (
                f"sets objective.metric to {self.objective.metric!r}, which the job does not "
                f"report: use {either(known)}"
            )
        yield from self._early_stopping_problems()
        yield from self._space_problems()

    def _early_stopping_problems(self) -> Iterator[str]:
        if self.early_stopping is None:
            return
        minimum, maximum = self.early_stopping.minimum, self.early_stopping.maximum
        if self.length is None:
            yield (
                f"sets early_stopping, which counts epochs or steps, but the length of the job is "
                f"set by {self.config.length[0]}: set epochs or train_steps instead"
            )
        elif minimum >= self.length:
            yield (
                f"sets early_stopping.minimum to {minimum}, but the job ends after {self.length} "
                f"{self.unit}: set a smaller value"
            )
        elif maximum is not None and maximum < minimum:
            yield (
                f"sets early_stopping.maximum to {maximum}, less than minimum ({minimum}): set a "
                "larger value, or remove it"
            )
        elif self.job.retries <= len(self.rungs):
            yield (
                f"limits job.retries to {self.job.retries}, but a trial is resumed up to "
                f"{len(self.rungs)} times, which Volcano counts as restarts: set at least "
                f"{len(self.rungs) + 1}"
            )

    def _space_problems(self) -> Iterator[str]:
        for name, parameter in self.space.items():
            is_float = TrainingConfig.model_fields[name].annotation is float
            is_integer = TrainingConfig.model_fields[name].annotation is int
            if parameter.choices:
                continue
            if not (is_float or is_integer):
                yield f"has a range in space.{name}, whose values are not numbers: set choices"
                return
            if is_integer and any(isinstance(end, float) for end in parameter.extremes):
                yield f"has a range of floats in space.{name}, which is an integer: set integers"
                return
        for parameters in self.extremes():
            try:
                self.trial(parameters)
            except ValidationError as error:
                detail = error.errors(include_url=False)[0]
                location = ".".join(str(part) for part in detail["loc"][1:])
                values = ", ".join(f"{name} {value}" for name, value in parameters.items())
                subject = f"{location}{':' if detail['type'] == 'value_error' else ''} "
                yield (
                    f"allows the combination {values}, which is not valid for a job: "
                    f"{subject if location else ''}{rule(detail)}"
                )
                return

    @property
    def config(self) -> TrainingConfig:
        """Configuration of the training program in the job."""
        assert self.job.hyperparameters is not None  # noqa: S101  _problems requires it
        return self.job.hyperparameters

    @property
    def unit(self) -> Literal["epochs", "steps"]:
        """Unit in which `length` and `rungs` are measured."""
        return "epochs" if self.config.length[0] == "epochs" else "steps"

    @property
    def length(self) -> int | None:
        """Length of a full trial in `unit`; None if the job sets it in samples or tokens."""
        name, amount = self.config.length
        return amount if name in ("epochs", "train_steps") else None

    @property
    def rungs(self) -> list[int]:
        """Numbers of epochs or steps after which a trial is compared with other trials."""
        if self.early_stopping is None or self.length is None:
            return []
        maximum = min(self.early_stopping.maximum or self.length, self.length - 1)
        rungs, rung = [], self.early_stopping.minimum
        while rung <= maximum:
            rungs.append(rung)
            rung *= self.early_stopping.factor
        return rungs

    @property
    def gpus(self) -> int:
        """Number of GPUs per trial."""
        return self.job.nodes * self.job.gpus_per_node

    @property
    def expected_share(self) -> float:
        """Average fraction of a trial that runs if 1/`factor` of the trials pass each rung."""
        if self.early_stopping is None or self.length is None:
            return 1.0
        trained, share, previous = 0.0, 1.0, 0
        for rung in (*self.rungs, self.length):
            trained += share * (rung - previous)
            share, previous = share / self.early_stopping.factor, rung
        return trained / self.length

    def reserve(self, interval_seconds: float) -> float:
        """Return the GPU-seconds that trials may still use until the controller has paused them."""
        return self.parallel * self.gpus * (interval_seconds + self.job.grace_seconds)

    def extremes(self) -> Iterator[dict[str, Value]]:
        """Yield all combinations of the parameters' extremes.

        If there are too many, yield one combination, and the combinations that differ from it in
        one parameter.
        """
        ends = {name: parameter.extremes for name, parameter in self.space.items()}
        if math.prod(map(len, ends.values())) <= _MAX_COMBINATIONS:
            yield from (
                dict(zip(ends, values, strict=True)) for values in itertools.product(*ends.values())
            )
            return
        first = {name: values[0] for name, values in ends.items()}
        yield from ({**first, name: value} for name, values in ends.items() for value in values)

    def trial(self, parameters: Parameters) -> TrainingJobSettings:
        """Return the sweep's job with these hyperparameters. Settings that are not set stay unset.

        Raise ValidationError if the job would be invalid.
        """
        values: dict[str, Any] = self.job.model_dump(mode="json", exclude_unset=True, by_alias=True)
        values["hyperparameters"] = {**values["hyperparameters"], **parameters}
        return TrainingJobSettings.model_validate(values)


class SweepControllerSettings(Settings):
    """The program that starts, pauses and promotes the trials of all sweeps of the stack."""

    image: DnsLabel = Field(
        default="sweeps", description="Key of the image, which is built from sweeps/."
    )
    interval_seconds: int = Field(
        default=10,
        ge=1,
        le=600,
        description="Time (s) between two decisions to start, pause or promote trials.",
    )
    cpu: CpuQuantity = Field(default="100m", description="CPU request.")
    memory: MemoryQuantity = Field(default="512Mi", description="Memory request and limit.")
    node_selector: Labels = Field(default={}, description="Node labels that the pod requires.")
    api_ports: list[PortNumber] = Field(
        default=[443, 6443],
        min_length=1,
        description="Ports of the API server. With network isolation, the pod may connect only "
        "to these.",
    )
