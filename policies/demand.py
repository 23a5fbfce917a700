"""Maximum numbers of pods and accelerators that a stack can use at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final

from kube.accelerators import Accelerators
from kube.names import GROUP_ANNOTATION, SCHEDULING_GROUP
from kube.quantities import quantity_or_none
from kube.workloads.control import RuntimeReference
from policies.controllers import Workload
from policies.resources import Resource
from policies.rules.claims import claimed_devices
from policies.rules.gpu_devices import is_cpu_task
from policies.settings import TaskConfig
from policies.views import Stack
from policies.workloads import Pod

_TASKS: Final = TaskConfig()


@dataclass(frozen=True)
class Demand:
    """Accelerators of one type that the pods of one pod specification request."""

    workload: Workload
    pod: Pod
    queue: str
    resource: str
    """Name of the extended resource, or of a claim's device class; empty if unknown."""
    claimed: bool
    maximum: Decimal
    """The maximum number of accelerators; infinite if nothing limits it."""
    requested: Decimal
    """The requested number, without autoscaling or the surge of rolling updates."""
    largest: Decimal
    """The largest number that a single object, such as a TrainJob, requests for these pods."""


def max_pods(stack: Stack, pod: Pod, *, surge: bool = True) -> Decimal:
    """Return the maximum number of pods that can run at the same time for a pod specification.

    Pods that an autoscaler may add are included. With `surge`, the additional pods of a rolling
    update are included as well.
    """
    run = pod.resource.record.runs if pod.resource.record is not None else None
    maximum = pod.max_replicas(stack.scalings.maxima(pod.resource), surge=surge)
    if maximum is None and run is not None:
        return _node_count(stack, pod.resource, run, None)
    return sum(_pods_by_run(stack, pod, maximum), Decimal(0))


@lru_cache(maxsize=2)
def demanded_gpus(stack: Stack, accelerators: Accelerators) -> tuple[Demand, ...]:
    """Return the accelerators that a stack's workloads request, computed once for all rules."""
    return tuple(_demands(stack, accelerators))


def _demands(stack: Stack, accelerators: Accelerators) -> Iterator[Demand]:
    counted: set[str] = set()
    for workload in stack.workloads:
        for pod in (*workload.pods, *workload.machines):
            queue = queue_of(stack, workload, pod)
            maximum_pods = _times(max_pods(stack, pod), workload.resource.copies)
            by_run = _pods_by_run(stack, pod, pod.replicas)
            pods = maximum_pods, sum(by_run, Decimal(0)), max(by_run)
            for name, amount in _gpus(stack, pod, accelerators).items():
                numbers = (_times(amount, number) for number in pods)
                yield Demand(workload, pod, queue, name, False, *numbers)
            claimed = list(claimed_devices(stack, pod, accelerators))
            for shared, name, amount in claimed:
                if not shared or shared not in counted:
                    numbers = (_times(amount, Decimal(1) if shared else each) for each in pods)
                    yield Demand(workload, pod, queue, name, True, *numbers)
            # Added after the loop, because a claim may have several requests, all of which count.
            counted |= {shared for shared, _, _ in claimed}


def _gpus(stack: Stack, pod: Pod, accelerators: Accelerators) -> dict[str, Decimal]:
    """Return the accelerators that a pod requests in addition to those of its Kubeflow runtime."""
    gpus = pod.gpus(accelerators)
    runtime = stack.runtime_of(pod.resource) if gpus else None
    if runtime is None:
        return gpus
    pods = [each for item in stack.workloads if item.resource is runtime for each in item.pods]
    counted = [each.gpus(accelerators) for each in pods]
    return {
        name: max(amount - max(each.get(name, Decimal(0)) for each in counted), Decimal(0))
        for name, amount in gpus.items()
    }


def queue_of(stack: Stack, workload: Workload, pod: Pod) -> str:
    """Return the queue of a pod's PodGroup, or the pod's queue if the PodGroup sets none."""
    name = pod.metadata["annotations"][GROUP_ANNOTATION].text
    if name and workload.joins_pod_group(pod):
        group = stack.find(SCHEDULING_GROUP, "PodGroup", workload.resource.namespace, name)
        if group is not None and not group.root["spec"]["queue"].absent:
            return group.root["spec"]["queue"].text or ""
    return workload.queue(pod).text or ""


def nodes_of(stack: Stack, runtime: Resource) -> Decimal | None:
    """Return the maximum node count of the objects that refer to a Kubeflow runtime.

    Return None if no object of the stack refers to the runtime.
    """
    jobs = ((job, job.record.runs) for job in stack.runs_of(runtime) if job.record is not None)
    return max(
        (_node_count(stack, job, run, None) for job, run in jobs if run is not None), default=None
    )


def _pods_by_run(stack: Stack, pod: Pod, number: Decimal | None) -> list[Decimal]:
    """Return, for each object that runs a pod specification, the number of pods that it starts.

    `number` is the number of replicas in the specification. Each object that refers to a Kubeflow
    runtime starts its own pods: `number` pods for a CPU task, otherwise one pod per node. Each
    JobFlow that names a JobTemplate starts `number` pods.
    """
    jobs = stack.runs_of(pod.resource)
    if not jobs or is_cpu_task(pod, _TASKS):
        return [_or_one(number)] * max(len(jobs), 1)
    runs = [(job, job.record.runs) for job in jobs if job.record is not None]
    return [_node_count(stack, job, run, number) for job, run in runs if run]


def _node_count(
    stack: Stack, job: Resource, run: RuntimeReference, number: Decimal | None
) -> Decimal:
    """Return the node count that an object or its runtime sets; the default is `number` or 1."""
    nodes = quantity_or_none(job.root.at(run.nodes).value)
    runtime = stack.runtime_of(job)
    if nodes is None and runtime is not None:
        nodes = quantity_or_none(runtime.root.at(run.nodes_default).value)
    return _or_one(number if nodes is None else nodes)


def _or_one(number: Decimal | None) -> Decimal:
    return Decimal(1) if number is None else max(number, Decimal(0))


def _times(amount: Decimal, pods: Decimal) -> Decimal:
    return amount * pods if amount and pods else Decimal(0)
