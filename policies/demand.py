"""The most GPUs that the objects of a stack may ever run at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from kube.accelerators import Accelerators
from kube.names import GROUP_ANNOTATION
from policies.claims import claimed_devices
from policies.controllers import Workload
from policies.views import Stack
from policies.workloads import Pod

Demand = tuple[str, str, Decimal]
"""Queue, resource and number, which is infinite if nothing limits it."""


def most_pods(stack: Stack, pod: Pod) -> Decimal:
    """Return the largest number of such pods that may ever run, autoscalers included."""
    most = pod.most(stack.scalings.maximum(pod.resource))
    return Decimal(1) if most is None else most


def demanded_gpus(stack: Stack, accelerators: Accelerators) -> Iterator[Demand]:
    """Yield the GPUs of all workloads of a stack."""
    counted: set[str] = set()
    for workload in stack.workloads:
        for pod in (*workload.pods, *workload.machines):
            queue, pods = queue_of(stack, workload, pod), most_pods(stack, pod)
            for name, amount in pod.gpus(accelerators).items():
                yield queue, name, _times(amount, pods)
            for shared, name, amount in claimed_devices(stack, pod, accelerators):
                if not shared or shared not in counted:
                    yield queue, name, amount if shared else _times(amount, pods)
                counted.add(shared)


def queue_of(stack: Stack, workload: Workload, pod: Pod) -> str:
    """Return the queue of a pod, which the PodGroup that it joins may state."""
    queue = workload.queue(pod).text
    name = pod.metadata["annotations"][GROUP_ANNOTATION].text
    if queue or not name:
        return queue or ""
    group = stack.find("scheduling.volcano.sh", "PodGroup", workload.resource.namespace, name)
    return group.root["spec"]["queue"].text or "" if group is not None else ""


def _times(amount: Decimal, pods: Decimal) -> Decimal:
    return amount * pods if amount and pods else Decimal(0)
