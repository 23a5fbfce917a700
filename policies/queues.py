"""Rules about the queues that training is charged to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.names import KUEUE_QUEUE_LABEL
from kube.quantities import quantity_or_none
from policies.controllers import Workload
from policies.demand import demanded_gpus
from policies.resources import Resource
from policies.rule import (
    Level,
    Rule,
    Severity,
    Violation,
    resource_rule,
    stack_rule,
    workload_rule,
)
from policies.scheduling import VOLCANO, SystemsConfig, admitted_by_kueue, training_pods
from policies.settings import GpuConfig
from policies.values import Node
from policies.views import Stack
from policies.workloads import Pod


class QueueConfig(SystemsConfig):
    """Configuration of `training-queue-declared`."""

    existing_queues: list[str] = Field(
        default=[], description="Queues that exist without being declared in this stack."
    )


class QuotaConfig(GpuConfig):
    """Configuration of `queue-quota-bounded`."""

    max_gpus: int = Field(
        default=4096, ge=0, description="Maximum number of GPUs that one queue may allow."
    )


@workload_rule(
    name="training-queue-named",
    description="Training names the queue that it is charged to.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Write the queue: spec.queue on a Volcano Job, else an annotation on the template; "
    "for Kueue the label kueue.x-k8s.io/queue-name on the workload.",
    config=SystemsConfig,
)
def training_queue_named(workload: Workload, config: SystemsConfig) -> Iterator[Violation]:
    """Without a queue, no team's share is counted and anyone can take the whole cluster."""
    reported = set()
    for pod in training_pods(workload, config):
        queue = _missing_queue(workload, pod, config)
        if queue is not None and queue.steps not in reported:
            reported.add(queue.steps)
            yield Violation(queue, "the name of a queue of this stack")


def _missing_queue(workload: Workload, pod: Pod, config: SystemsConfig) -> Node | None:
    """Return where a queue of the installed systems belongs, None if there is one."""
    if admitted_by_kueue(workload, pod, config):
        return None
    if "volcano" not in config.queue_systems:
        return workload.resource.labels[KUEUE_QUEUE_LABEL]
    queue, local = workload.queue(pod), workload.local_queue(pod)
    named = bool(queue.text and queue.text.strip())
    is_local = local is not None and queue.steps == local.steps
    if workload.joins_pod_group(pod) or not queue.known or (named and not is_local):
        return None
    return queue


@stack_rule(
    name="training-queue-declared",
    description="The queue that training names exists and allows as many GPUs.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Declare the queue with enough GPUs, or list it under existingQueues.",
    config=QueueConfig,
)
def training_queue_declared(stack: Stack, config: QueueConfig) -> Iterator[Violation]:
    """A job in a queue that is missing or smaller than the job stays pending without an error."""
    yield from _larger_than_queue(stack, config)
    for workload in stack.workloads:
        for pod in training_pods(workload, config):
            queue, local = workload.queue(pod), workload.local_queue(pod)
            is_local = local is not None and queue.steps == local.steps
            kind = ("kueue.x-k8s.io", "LocalQueue") if is_local else (VOLCANO, "Queue")
            namespace = workload.resource.namespace if is_local else None
            if not queue.text or queue.text in config.existing_queues:
                continue
            if not stack.may_have(*kind, namespace, queue.text):
                declared = (item.name for item in stack.of_kind(*kind))
                wanted = ", ".join(sorted({*declared, *config.existing_queues}))
                text = f"a queue of this stack ({wanted or 'none is declared'})"
                yield Violation(queue, text, resource=workload.resource)
                break


def _larger_than_queue(stack: Stack, config: QueueConfig) -> Iterator[Violation]:
    """Return the workloads that request more accelerators than their queue of Volcano has."""
    needed: dict[tuple[Workload, str, str], Decimal] = defaultdict(Decimal)
    for demand in demanded_gpus(stack, config.accelerators):
        needed[demand.workload, demand.queue, demand.resource] += demand.least
    for (workload, name, resource), number in needed.items():
        queue = next((q for q in stack.of_kind(VOLCANO, "Queue") if q.name == name), None)
        if queue is None or not training_pods(workload, config):
            continue
        allowed = queue.root["spec"]["capability"][resource]
        most = quantity_or_none(allowed.value)
        if most is not None and number > most:
            found = f"{number:f} of {resource} in one workload"
            wanted = f"at most {most:f}, the capability of queue {name}"
            yield Violation(Node(None), wanted, found=found, resource=workload.resource)


@resource_rule(
    name="queue-quota-bounded",
    description="Queues allow a finite number of GPUs.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Write the number of GPUs that the team may use, or raise maxGpus.",
    config=QuotaConfig,
)
def queue_quota_bounded(resource: Resource, config: QuotaConfig) -> Iterator[Violation]:
    """A quota that no cluster reaches is no quota: one team can take every GPU."""
    for name, amount in _quotas(resource):
        count = quantity_or_none(amount.value)
        if config.accelerators.includes(name) and count is not None and count > config.max_gpus:
            yield Violation(amount, f"at most {config.max_gpus} of {name}")


def _quotas(queue: Resource) -> Iterator[tuple[str, Node]]:
    """Yield resource and quota of a queue of Kueue or Volcano."""
    spec = queue.root["spec"]
    if queue.is_kind("kueue.x-k8s.io", "ClusterQueue", "Cohort"):
        for group in spec["resourceGroups"].items():
            for flavor in group["flavors"].items():
                for resource in flavor["resources"].items():
                    for field in ("nominalQuota", "borrowingLimit"):
                        yield resource["name"].text or "", resource[field]
    elif queue.is_kind(VOLCANO, "Queue"):
        for field in ("capability", "deserved", "guarantee"):
            yield from (spec[field]["resource"] if field == "guarantee" else spec[field]).fields()


RULES: list[Rule[Any]] = [training_queue_named, training_queue_declared, queue_quota_bounded]
