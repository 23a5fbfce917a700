"""Rules about the queues of training workloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.accelerators import is_amount
from kube.kinds.volcano import with_ancestors
from kube.names import KUEUE_MINIMUM_ANNOTATION, KUEUE_QUEUE_LABEL, SCHEDULING_GROUP
from kube.quantities import quantity_or_none
from policies.controllers import Workload
from policies.counts import UNLIMITED
from policies.demand import Demand, demanded_gpus, queue_of
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
from policies.rules.scheduling import BATCH_LABEL, SystemsConfig, admitted_by_kueue, training_pods
from policies.settings import ExactNames, GpuConfig
from policies.values import Node
from policies.views import Stack
from policies.workloads import Pod

KUEUE = "kueue.x-k8s.io"


class QueueConfig(SystemsConfig):
    """Configuration of `training-queue-declared`."""

    existing_queues: ExactNames = Field(
        default=[], description="Queues that exist without being declared in this stack."
    )


class QuotaConfig(GpuConfig):
    """Configuration of `queue-quota-bounded`."""

    max_gpus: int = Field(
        default=4096, ge=0, description="Maximum number of GPUs that one queue may allow."
    )


@workload_rule(
    name="training-queue-named",
    description="Training workloads specify their queue.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Set the queue: spec.queue on a Volcano Job, the scheduling.volcano.sh/queue-name "
    "annotation on the pod template of other kinds, or, for Kueue, the kueue.x-k8s.io/queue-name "
    f"label on the workload. {BATCH_LABEL}",
    config=SystemsConfig,
)
def training_queue_named(workload: Workload, config: SystemsConfig) -> Iterator[Violation]:
    """Workloads without a queue bypass the teams' shares and can use the whole cluster."""
    reported = set()
    for pod in training_pods(workload, config):
        queue = _missing_queue(workload, pod, config)
        if queue is not None and queue.steps not in reported:
            reported.add(queue.steps)
            yield Violation(queue, "the name of a queue of this stack")


def _missing_queue(workload: Workload, pod: Pod, config: SystemsConfig) -> Node | None:
    """Return the field that should name a queue, or None if the pod already has a queue."""
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
    description="The queue of a training workload exists, and allows the GPUs that the workload "
    "requests.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Declare the queue with enough GPUs, or list it under existingQueues.",
    config=QueueConfig,
)
def training_queue_declared(stack: Stack, config: QueueConfig) -> Iterator[Violation]:
    """A job in a queue that is missing or smaller than the job stays pending without an error."""
    yield from _larger_than_queue(stack, config)
    yield from _without_queue(stack, config)
    for workload in stack.workloads:
        for pod in training_pods(workload, config):
            queue, local = workload.queue(pod), workload.local_queue(pod)
            name = queue_of(stack, workload, pod)
            is_local = local is not None and queue.steps == local.steps and queue.text == name
            kind = (KUEUE, "LocalQueue") if is_local else (SCHEDULING_GROUP, "Queue")
            namespace = workload.resource.namespace if is_local else None
            if not name or name in config.existing_queues:
                continue
            if not stack.may_have(*kind, namespace, name):
                declared = (item.name for item in stack.of_kind(*kind))
                known = ", ".join(sorted({*declared, *config.existing_queues}))
                text = f"a queue of this stack ({known or 'none is declared'})"
                found = None if queue.text == name else f"the PodGroup's queue {name}"
                yield Violation(queue, text, found=found, resource=workload.resource)
                break


def _without_queue(stack: Stack, config: QueueConfig) -> Iterator[Violation]:
    """Yield a violation for each TrainJob if both it and its runtime lack a queue."""
    for runtime in stack.workloads:
        pods = training_pods(runtime, config) if runtime.is_template else []
        if all(runtime.uses_volcano(pod) or runtime.local_queue(pod) for pod in pods):
            continue
        for resource in stack.runs_of(runtime.resource) if "kueue" in config.queue_systems else ():
            label = resource.labels[KUEUE_QUEUE_LABEL]
            if label.known and not label.text:
                yield Violation(label, "the name of a queue of this stack", resource=resource)


def _larger_than_queue(stack: Stack, config: QueueConfig) -> Iterator[Violation]:
    """Yield a violation for each workload that requests more accelerators than its queue grants."""
    needed: dict[tuple[Workload, Resource, str], list[Decimal]] = defaultdict(list)
    for demand in demanded_gpus(stack, config.accelerators):
        for queue in _queues(stack, demand, config):
            needed[demand.workload, queue, demand.resource].append(demand.largest)
    for (workload, queue, name), numbers in needed.items():
        if not training_pods(workload, config):
            continue
        granted = _granted_amounts(queue, name)
        if sum(numbers) > sum(granted) or max(numbers) > max(granted):
            total = f"{sum(numbers):f} {name} in one workload"
            limit = max(granted) if sum(numbers) <= sum(granted) else sum(granted)
            expected = f"at most {limit:f}, the quota of {queue.kind} {queue.name}"
            yield Violation(Node(None), expected, found=total, resource=workload.resource)


def _queues(stack: Stack, demand: Demand, config: QueueConfig) -> Iterator[Resource]:
    """Yield the declared Volcano and Kueue queues whose quota a demand uses."""
    workload, local = demand.workload, demand.workload.local_queue(demand.pod)
    if local is None or demand.queue != local.text:
        yield from _with_ancestors(stack, demand.queue)
    may_shrink = not workload.resource.annotations[KUEUE_MINIMUM_ANNOTATION].absent
    if local is None or "kueue" not in config.queue_systems or may_shrink or demand.claimed:
        return
    local_queue = stack.find(KUEUE, "LocalQueue", workload.resource.namespace, local.text or "")
    name = local_queue.root["spec"]["clusterQueue"].text if local_queue is not None else None
    yield from (queue for queue in stack.of_kind(KUEUE, "ClusterQueue") if queue.name == name)


def _with_ancestors(stack: Stack, name: str | None) -> Iterator[Resource]:
    """Yield a declared Volcano queue and its ancestors, whose `capability` limits it as well."""
    queues = {queue.name: queue for queue in stack.of_kind(SCHEDULING_GROUP, "Queue")}
    parents = {key: queue.root["spec"]["parent"].text for key, queue in queues.items()}
    yield from (queues[key] for key in with_ancestors(name or "", parents) if key in queues)


def _granted_amounts(queue: Resource, resource: str) -> list[Decimal]:
    """Return the amount of a resource that each flavor of a queue grants; infinite if unlimited.

    Kueue never admits a workload with a resource that its queue does not cover, and assigns all
    pods of a PodSet to one flavor.
    """
    spec = queue.root["spec"]
    if not queue.is_kind(KUEUE, "ClusterQueue"):
        return [_or_unlimited(spec["capability"][resource])]
    borrows = any(not spec[field].absent for field in ("cohort", "cohortName"))
    groups = spec["resourceGroups"]
    flavors = [flavor for group in groups.items() for flavor in group["flavors"].items()]
    quotas = [
        _or_unlimited(quota["nominalQuota"])
        + (_or_unlimited(quota["borrowingLimit"]) if borrows else 0)
        for flavor in flavors
        for quota in flavor["resources"].items()
        if quota["name"].text == resource
    ]
    return quotas or [Decimal(0) if groups.complete else UNLIMITED]


def _or_unlimited(limit: Node) -> Decimal:
    number = quantity_or_none(limit.value)
    return UNLIMITED if number is None else number


@resource_rule(
    name="queue-quota-bounded",
    description="GPU quotas set by queues are finite.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Set the number of GPUs that the team may use, or raise maxGpus.",
    config=QuotaConfig,
)
def queue_quota_bounded(resource: Resource, config: QuotaConfig) -> Iterator[Violation]:
    """A quota larger than the cluster has no effect: one team can take every GPU."""
    for name, amount in _quotas(resource):
        count = quantity_or_none(amount.value)
        too_large = (
            amount.present if count is None else count > config.max_gpus and not is_amount(name)
        )
        if too_large and config.accelerators.includes(name):
            yield Violation(amount, f"at most {config.max_gpus} {name}")


def _quotas(queue: Resource) -> Iterator[tuple[str, Node]]:
    """Yield the resources of a Kueue or Volcano queue with their quotas."""
    spec = queue.root["spec"]
    if queue.is_kind(KUEUE, "ClusterQueue", "Cohort"):
        for group in spec["resourceGroups"].items():
            for flavor in group["flavors"].items():
                for resource in flavor["resources"].items():
                    for field in ("nominalQuota", "borrowingLimit"):
                        yield resource["name"].text or "", resource[field]
    elif queue.is_kind(SCHEDULING_GROUP, "Queue"):
        for field in ("capability", "deserved", "guarantee"):
            yield from (spec[field]["resource"] if field == "guarantee" else spec[field]).fields()


RULES: list[Rule[Any]] = [training_queue_named, training_queue_declared, queue_quota_bounded]
