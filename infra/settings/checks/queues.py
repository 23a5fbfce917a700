"""Queues suit each other, the scheduler's way of sharing, and those who wait in them."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from infra.settings.problems import choice, full_key, job_key
from infra.settings.training import TrainingSettings
from infra.settings.volcano import OVERRIDE, ResourceAmounts, VolcanoSettings
from kube.quantities import parse_quantity

_FIRST_WITH_PARENTS: Final = (1, 11)
_FIRST_WITH_ANY_DIMENSION: Final = (1, 15)
_SCHEDULER: Final = full_key("volcano", "scheduler")


def _key(name: str, *path: str) -> str:
    return full_key("volcano", "queues", name, *path)


def the_scheduler_is_configured_once(volcano: VolcanoSettings) -> Iterator[str]:
    """The typed settings are not lost behind others."""
    if "scheduler" not in volcano.model_fields_set:
        return
    if volcano.own_configuration:
        yield (
            f"{full_key('volcano', 'values', 'custom', OVERRIDE)} is written, and so is "
            f"{_SCHEDULER}, which it replaces: keep one of them."
        )
    if not volcano.install:
        yield (
            f"{_SCHEDULER} is written, but {full_key('volcano', 'install')} is false: whoever "
            "installs Volcano configures its scheduler. Leave it out."
        )


def queues_say_what_the_scheduler_reads(volcano: VolcanoSettings) -> Iterator[str]:
    """Each way of sharing has settings of its own and is silent about the others'."""
    if "root" in volcano.queues:
        yield f"{_key('root')} is made by Volcano itself: write another name."
    scheduler = volcano.configured
    if scheduler is None:
        return
    here = f"{_SCHEDULER}.share"
    for name, queue in volcano.queues.items():
        if scheduler.share == "proportion" and queue.deserved:
            yield (
                f"{_key(name, 'deserved')} is not read while {here} is proportion: write weight "
                f"instead, or {here}: capacity."
            )
        if scheduler.share == "proportion" and queue.parent not in (None, "root"):
            yield (
                f"{_key(name, 'parent')} is {queue.parent!r}, but while {here} is proportion no "
                f"queue has another above it: write {here}: capacity."
            )
        if scheduler.share == "capacity" and queue.weight != 1:
            yield (
                f"{_key(name, 'weight')} is {queue.weight}, which is not read while {here} is "
                f"capacity: write deserved instead, or {here}: proportion."
            )
    reclaims = scheduler.share == "capacity" and scheduler.reclaim != "none"
    for name, queue in volcano.queues.items():
        unnamed = [basic for basic in ("cpu", "memory") if basic not in queue.deserved]
        # A queue may take back only while it stays within all that it deserves.
        if reclaims and queue.deserved and unnamed and volcano.release < _FIRST_WITH_ANY_DIMENSION:
            yield (
                f"{_key(name, 'deserved')} names no {' and no '.join(unnamed)}, which Volcano "
                f"{volcano.version} reads as none, so the queue would take back nothing although "
                f"{_SCHEDULER}.reclaim is {scheduler.reclaim}: write them, too."
            )
    if volcano.hierarchical and volcano.release < _FIRST_WITH_PARENTS:
        yield (
            f"{full_key('volcano', 'version')} is {volcano.version!r}, which does not know parents "
            "of queues: write 1.11 or later, or leave out parent."
        )


def queues_fit_their_parents(volcano: VolcanoSettings) -> Iterator[str]:
    """What is promised to the queues below is there."""
    for name, parent in volcano.queues.items():
        below = {key: queue for key, queue in volcano.queues.items() if queue.parent == name}
        for promise in ("guarantee", "deserved"):
            limits: ResourceAmounts = getattr(parent, promise)
            for resource, limit in limits.items():
                parts = [getattr(queue, promise).get(resource, "0") for queue in below.values()]
                total = sum((parse_quantity(part) for part in parts), Decimal(0))
                if total > parse_quantity(limit):
                    yield (
                        f"{_key(name, promise)} of {resource} is {limit}, but the queues below it "
                        f"({', '.join(below)}) have {total.normalize():f} together: write no more "
                        "than it has."
                    )
        for key, queue in below.items():
            for resource, amount in queue.capability.items():
                most = parent.capability.get(resource)
                if most is not None and parse_quantity(amount) > parse_quantity(most):
                    yield (
                        f"{_key(key, 'capability')} of {resource} is {amount}, more than the "
                        f"{most} of its parent {name!r}."
                    )


def jobs_wait_in_queues_without_others_below(
    training: TrainingSettings, volcano: VolcanoSettings
) -> Iterator[str]:
    """Volcano places nothing from a queue that others stand below."""
    parents = {queue.parent for queue in volcano.queues.values()}
    for key, job in training.jobs.items():
        if job.queue in parents and job.queue in volcano.queues:
            yield (
                f"{job_key(key, 'queue')} is {job.queue!r}, which has queues below it: "
                f"{choice(volcano.queues.keys() - parents)}."
            )


def classes_allow_what_the_scheduler_is_to_do(
    training: TrainingSettings, volcano: VolcanoSettings
) -> Iterator[str]:
    """Pods of a class with `preemption: Never` push nobody out, for their queue's share neither."""
    scheduler = volcano.configured
    if scheduler is None or not scheduler.evicts:
        return
    never = {key for key, made in volcano.priority_classes.items() if made.preemption == "Never"}
    if scheduler.reclaim != "none":
        for key, job in training.jobs.items():
            if job.priority_class in never:
                yield (
                    f"{job_key(key, 'priority_class')} is {job.priority_class!r}, whose preemption "
                    f"is Never, so it takes back nothing although {_SCHEDULER}.reclaim is "
                    f"{scheduler.reclaim}: write preemption PreemptLowerPriority for the class."
                )
    if scheduler.preempt != "none" and never == volcano.priority_classes.keys():
        yield (
            f"{_SCHEDULER}.preempt is {scheduler.preempt}, but no class under "
            f"{full_key('volcano', 'priority_classes')} may preempt: write preemption "
            "PreemptLowerPriority for those that may."
        )
