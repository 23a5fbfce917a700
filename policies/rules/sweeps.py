"""Rules about the limits of hyperparameter sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.names import (
    FLOW_GROUP,
    SWEEP_GPU_HOURS_ANNOTATION,
    SWEEP_MONEY_ANNOTATION,
    SWEEP_PARALLEL_ANNOTATION,
    SWEEP_TRIALS_ANNOTATION,
)
from kube.quantities import quantity_or_none
from policies.resources import Resource
from policies.rule import (
    Level,
    Rule,
    RuleConfig,
    Severity,
    Violation,
    resource_rule,
)


class SweepConfig(RuleConfig):
    """Configuration of `sweep-bounded`."""

    max_trials: int = Field(default=1000, ge=1, description="Maximum number of trials of a sweep.")
    max_parallel: int = Field(default=64, ge=1, description="Maximum number of concurrent trials.")
    max_gpu_hours: float | None = Field(
        default=None,
        gt=0,
        description="Maximum budget of a sweep in GPU-hours; null for no maximum.",
    )
    max_money: float | None = Field(
        default=None,
        gt=0,
        description="Maximum `budget.money` of a sweep. If null, sweeps need not set it.",
    )


def is_sweep(resource: Resource) -> bool:
    """Return whether an object is the template of a sweep's trials."""
    template = resource.is_kind(FLOW_GROUP, "JobTemplate")
    return template and not resource.annotations[SWEEP_PARALLEL_ANNOTATION].absent


@resource_rule(
    name="sweep-bounded",
    description="A hyperparameter sweep limits its trials, their parallelism and its budget.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Keep `trials`, `parallel` and `budget` of the sweep within the limits that are "
    "configured for sweep-bounded, or raise the limits.",
    config=SweepConfig,
)
def sweep_bounded(resource: Resource, config: SweepConfig) -> Iterator[Violation]:
    """Without limits, a sweep could run forever and use all idle GPUs."""
    if not is_sweep(resource):
        return
    for name, maximum in (
        (SWEEP_TRIALS_ANNOTATION, config.max_trials),
        (SWEEP_PARALLEL_ANNOTATION, config.max_parallel),
        (SWEEP_GPU_HOURS_ANNOTATION, config.max_gpu_hours),
        (SWEEP_MONEY_ANNOTATION, config.max_money),
    ):
        if name == SWEEP_MONEY_ANNOTATION and maximum is None:
            continue
        value = resource.annotations[name]
        number = quantity_or_none(value.value)
        if number is None and value.known:
            yield Violation(value, "a number")
        elif number is not None and maximum is not None and number > Decimal(str(maximum)):
            yield Violation(value, f"at most {maximum:.15g}")


RULES: list[Rule[Any]] = [sweep_bounded]
