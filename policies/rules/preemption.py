"""Rules about workloads that other workloads may preempt: sweeps and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from policies.controllers import Workload
from policies.rule import Level, Rule, Severity, Violation, stack_rule
from policies.rules.notebooks import is_notebook
from policies.rules.scheduling import SystemsConfig, training_pods
from policies.rules.sweeps import is_sweep
from policies.values import Node
from policies.views import Stack
from policies.workloads import Pod

_NAME_LABEL: Final = "app.kubernetes.io/name"


@stack_rule(
    name="sweep-preemptible",
    description="The trials of a sweep have a lower priority than other runs in their queue.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Set the priority_class of the sweep's job to a class with a smaller value than "
    "the classes of other jobs.",
    config=SystemsConfig,
)
def sweep_preemptible(stack: Stack, config: SystemsConfig) -> Iterator[Violation]:
    """A sweep may use its queue for days. Other runs should not wait behind its trials.

    A job that is created from a trial may keep the priority class of the sweep.
    """
    yield from _check_priorities(stack, config, _is_sweep)


@stack_rule(
    name="notebook-preemptible",
    description="A notebook has a lower priority than the training runs in its queue.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Set the priority_class of the notebook to a class with a smaller value than the "
    "classes of other jobs.",
    config=SystemsConfig,
)
def notebook_preemptible(stack: Stack, config: SystemsConfig) -> Iterator[Violation]:
    """A notebook is idle most of the time, and training should not wait for it."""
    yield from _check_priorities(stack, config, is_notebook)


def _is_sweep(workload: Workload) -> bool:
    return is_sweep(workload.resource)


def _check_priorities(
    stack: Stack, config: SystemsConfig, is_preemptible: Callable[[Workload], bool]
) -> Iterator[Violation]:
    """Yield a violation for each workload whose priority class is missing or too high.

    Only workloads for which `is_preemptible` is true are checked. Their priority must be below the
    priority of all training in the same queue. Jobs that are created from trials do not count as
    training.
    """
    classes = {
        priority_class.name: priority_class.root["value"].value
        for priority_class in stack.of_kind("scheduling.k8s.io", "PriorityClass")
    }
    sweeps = [each for each in stack.workloads if _is_sweep(each)]
    trials = {_job_key(pod) for each in sweeps for pod in each.pods} - {None}
    lowest_by_queue: dict[str, int] = {}
    for workload in stack.workloads:
        if _is_sweep(workload) or is_notebook(workload):
            continue
        for pod in training_pods(workload, config):
            value = classes.get(pod.priority_classes[0].text or "", 0)
            queue = workload.queue(pod).text
            if queue and isinstance(value, int) and _job_key(pod) not in trials:
                lowest_by_queue[queue] = min(value, lowest_by_queue.get(queue, value))
    for workload in filter(is_preemptible, stack.workloads):
        for pod in workload.pods:
            queue = workload.queue(pod).text
            lowest = lowest_by_queue.get(queue) if queue else None
            invalid = [n for n in pod.priority_classes if _is_invalid(n, classes, lowest)]
            if queue and invalid:
                limit = f" with a value below {lowest}" if lowest is not None else ""
                expected = f"a priority class of this stack{limit}"
                yield Violation(invalid[0], expected, resource=workload.resource)
                break


def _is_invalid(name: Node, classes: Mapping[str, Any], lowest: int | None) -> bool:
    """Return whether a priority class is missing or has a value of at least `lowest`."""
    value = classes.get(name.text or "")
    above = isinstance(value, int) and lowest is not None and value >= lowest
    return name.known and (not name.text or above)


def _job_key(pod: Pod) -> tuple[str, str | None] | None:
    """Return a pod's name label and priority class, which a sweep and its trials share."""
    key = pod.metadata["labels"][_NAME_LABEL].text
    return (key, pod.priority_classes[0].text) if key else None


RULES: list[Rule[Any]] = [sweep_preemptible, notebook_preemptible]
