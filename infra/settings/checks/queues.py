"""Checks that queues are consistent with each other, the scheduler's policy and the jobs."""

import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from infra.settings.problems import choice, full_key, job_key
from infra.settings.training import TrainingSettings
from infra.settings.volcano import OVERRIDE, UNLISTED_AMOUNT, ResourceAmounts, VolcanoSettings
from kube.quantities import parse_quantity

_FIRST_WITH_PARENTS: Final = (1, 11)
"""First release that supports parent queues."""
_FIRST_WITH_PARTIAL_DESERVED: Final = (1, 15)
"""First release in which queues reclaim even if `deserved` does not list CPU and memory."""
_SCHEDULER: Final = full_key("volcano", "scheduler")
_TOTALS: Final = {
    "guarantee": "are guaranteed {:f} in total",
    "deserved": "deserve {:f} in total, including their guarantees",
}


def _key(name: str, *path: str) -> str:
    return full_key("volcano", "queues", name, *path)


def scheduler_settings_have_an_effect(volcano: VolcanoSettings) -> Iterator[str]:
    """Check that `volcano.scheduler` has an effect if it is set."""
    if "scheduler" not in volcano.model_fields_set:
        return
    if volcano.custom_configuration:
        yield (
            f"{full_key('volcano', 'values', 'custom', OVERRIDE)} is set, so {_SCHEDULER} has no "
            "effect: remove one of them."
        )
    if not volcano.install:
        yield (
            f"{_SCHEDULER} is set, but {full_key('volcano', 'install')} is false: the stack "
            "configures the scheduler only if it installs Volcano. Remove the setting."
        )


def queue_settings_are_supported(volcano: VolcanoSettings) -> Iterator[str]:
    """Check that the scheduler's `share` and Volcano's release support the queues' settings."""
    if "root" in volcano.queues:
        yield f"{_key('root')} is created by Volcano: choose another name."
    scheduler = volcano.configured
    if scheduler is None:
        return
    here = f"{_SCHEDULER}.share"
    for name, queue in volcano.queues.items():
        if scheduler.share == "proportion" and queue.deserved:
            yield (
                f"{_key(name, 'deserved')} has no effect if {here} is proportion: set weight "
                f"instead, or set {here} to capacity."
            )
        if scheduler.share == "proportion" and queue.parent not in (None, "root"):
            yield (
                f"{_key(name, 'parent')} is {queue.parent!r}, but queues have no parents if {here} "
                f"is proportion: set {here} to capacity."
            )
        if scheduler.share == "capacity" and queue.weight != 1:
            yield (
                f"{_key(name, 'weight')} is {queue.weight}, which has no effect if {here} is "
                f"capacity: set deserved instead, or set {here} to proportion."
            )
    reclaims = scheduler.share == "capacity" and scheduler.reclaim != "none"
    for name, queue in volcano.queues.items():
        unlisted = [key for key in ("cpu", "memory") if key not in queue.deserved]
        # A queue may reclaim only while it stays within its deserved amount of every resource.
        if (
            reclaims
            and queue.deserved
            and unlisted
            and volcano.release < _FIRST_WITH_PARTIAL_DESERVED
        ):
            yield (
                f"{_key(name, 'deserved')} does not list {' or '.join(unlisted)}, which Volcano "
                f"{volcano.version} reads as 0, so the queue would reclaim nothing although "
                f"{_SCHEDULER}.reclaim is {scheduler.reclaim}: add "
                f"{' and '.join(unlisted)}."
            )
    if volcano.hierarchical and volcano.release < _FIRST_WITH_PARENTS:
        yield (
            f"{full_key('volcano', 'version')} is {volcano.version!r}, which does not support "
            "parent queues: set 1.11 or later, or remove parent."
        )


def queues_fit_their_parents(volcano: VolcanoSettings) -> Iterator[str]:
    """Check, as Volcano's webhooks do, that child queues stay within the limits of their parent."""
    for name, parent in volcano.queues.items():
        child_queues = {key: queue for key, queue in volcano.queues.items() if queue.parent == name}
        exceeded: set[str] = set()
        for field, attribute in (("guarantee", "guarantee"), ("deserved", "deserved_at_least")):
            limiting = field if getattr(parent, attribute) else "capability"
            limits: ResourceAmounts = getattr(parent, attribute) or parent.capability
            children: list[ResourceAmounts] = [
                getattr(queue, attribute) for queue in child_queues.values()
            ]
            for resource in dict.fromkeys(itertools.chain(*children) if limits else ()):
                parts = (parse_quantity(child.get(resource, "0")) for child in children)
                total = sum(parts, Decimal(0))
                if resource in exceeded or total <= parse_quantity(limits.get(resource, "0")):
                    continue
                exceeded.add(resource)
                shown = limits.get(resource, UNLISTED_AMOUNT)
                guaranteed = not parent.deserved or resource in limits.keys() - parent.deserved
                listed = "guarantee" if limiting == "deserved" and guaranteed else limiting
                yield (
                    f"{_key(name, listed)} for {resource} is {shown}, but its child queues "
                    f"({', '.join(child_queues)}) {_TOTALS[field].format(total.normalize())}: "
                    "lower the amounts of the child queues, or raise the amount of the parent."
                )
        for key, queue in child_queues.items():
            for resource, amount in queue.capability.items():
                maximum = parent.capability.get(resource, "0")
                if parse_quantity(amount) > parse_quantity(maximum):
                    shown = parent.capability.get(resource, UNLISTED_AMOUNT)
                    yield (
                        f"{_key(key, 'capability')} for {resource} is {amount}, more than the "
                        f"{shown} of its parent {name!r}."
                    )


def jobs_wait_in_leaf_queues(training: TrainingSettings, volcano: VolcanoSettings) -> Iterator[str]:
    """Check that jobs wait in leaf queues, the only queues from which Volcano schedules jobs."""
    leaves = volcano.leaf_queues
    for key, job in training.all_jobs.items():
        if leaves and job.queue in volcano.queues and job.queue not in leaves:
            yield (
                f"{job_key(key, 'queue')} is {job.queue!r}, which has child queues: "
                f"{choice(leaves)}."
            )


def classes_permit_preemption(
    training: TrainingSettings, volcano: VolcanoSettings
) -> Iterator[str]:
    """Check that priority classes permit the scheduler's preemption and reclaiming."""
    scheduler = volcano.configured
    if scheduler is None or not scheduler.evicts:
        return
    non_preempting = {
        key for key, each in volcano.priority_classes.items() if each.preemption == "Never"
    }
    if scheduler.reclaim != "none":
        for key, job in training.all_jobs.items():
            if job.priority_class in non_preempting:
                yield (
                    f"{job_key(key, 'priority_class')} is {job.priority_class!r}, whose preemption "
                    f"is Never, so the job reclaims nothing although {_SCHEDULER}.reclaim is "
                    f"{scheduler.reclaim}: set the class's preemption to PreemptLowerPriority."
                )
    if scheduler.preempt != "none" and non_preempting == volcano.priority_classes.keys():
        yield (
            f"{_SCHEDULER}.preempt is {scheduler.preempt}, but no class under "
            f"{full_key('volcano', 'priority_classes')} may preempt: set preemption to "
            "PreemptLowerPriority for the classes that should."
        )
