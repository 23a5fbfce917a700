"""Rules about the templates of hyperparameter sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.names import (
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
    stack_rule,
)
from policies.rules.scheduling import SystemsConfig, training_pods
from policies.views import Stack


class SweepConfig(RuleConfig):
    """Configuration of `sweep-bounded`."""

    max_trials: int = Field(default=1000, ge=1, description="Maximum number of trials of a sweep.")
    max_parallel: int = Field(default=64, ge=1, description="Maximum number at the same time.")
    max_gpu_hours: float | None = Field(
        default=None, gt=0, description="Maximum budget of a sweep in GPU-hours."
    )
    max_money: float | None = Field(
        default=None,
        gt=0,
        description="Maximum `budget.money` of a sweep. null also permits sweeps without it.",
    )


def is_sweep(resource: Resource) -> bool:
    """Return whether an object is the template of a sweep's trials."""
    template = resource.is_kind("flow.volcano.sh", "JobTemplate")
    return template and not resource.annotations[SWEEP_PARALLEL_ANNOTATION].absent


@resource_rule(
    name="sweep-bounded",
    description="A hyperparameter sweep bounds its trials and its GPU-hours.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write trials, parallel and the budget of the sweep within the limits of "
    "sweep-bounded, or raise the limits.",
    config=SweepConfig,
)
def sweep_bounded(resource: Resource, config: SweepConfig) -> Iterator[Violation]:
    """A search does not end on its own. Without a bound it uses all GPUs that others leave free."""
    if not is_sweep(resource):
        return
    for name, most in (
        (SWEEP_TRIALS_ANNOTATION, config.max_trials),
        (SWEEP_PARALLEL_ANNOTATION, config.max_parallel),
        (SWEEP_GPU_HOURS_ANNOTATION, config.max_gpu_hours),
        (SWEEP_MONEY_ANNOTATION, config.max_money),
    ):
        if name == SWEEP_MONEY_ANNOTATION and most is None:
            continue
        stated = resource.annotations[name]
        number = quantity_or_none(stated.value)
        if number is None and stated.known:
            yield Violation(stated, "a number")
        elif number is not None and most is not None and number > Decimal(str(most)):
            yield Violation(stated, f"at most {most:g}")


@stack_rule(
    name="sweep-preemptible",
    description="The trials of a sweep have a lower priority than other runs of their queue.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Write a priority_class for the job of the sweep with a smaller value than those "
    "of other jobs.",
    config=SystemsConfig,
)
def sweep_preemptible(stack: Stack, config: SystemsConfig) -> Iterator[Violation]:
    """A sweep may use its queue for days. Other runs should not wait behind its trials."""
    classes = {
        found.name: found.root["value"].value
        for found in stack.of_kind("scheduling.k8s.io", "PriorityClass")
    }
    others: dict[str, int] = {}
    for workload in stack.workloads:
        for pod in training_pods(workload, config) if not is_sweep(workload.resource) else ():
            value = classes.get(pod.spec["priorityClassName"].text or "", 0)
            queue = workload.queue(pod).text
            if queue and isinstance(value, int):
                others[queue] = min(value, others.get(queue, value))
    for workload in stack.workloads:
        if not is_sweep(workload.resource):
            continue
        for pod in workload.pods:
            name, queue = pod.spec["priorityClassName"], workload.queue(pod).text or ""
            value = classes.get(name.text or "")
            lowest = others.get(queue)
            above = isinstance(value, int) and lowest is not None and value >= lowest
            if name.known and (not name.text or above):
                limit = f" below {lowest}" if lowest is not None else ""
                wanted = f"a priority class of this stack with a value{limit}"
                yield Violation(name, wanted, resource=workload.resource)
                break


RULES: list[Rule[Any]] = [sweep_bounded, sweep_preemptible]
