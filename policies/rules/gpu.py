"""Rules about GPU requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from kube.quantities import parse_quantity, quantity_or_none
from policies import cel
from policies.rule import Level, Rule, Severity, Violation, pod_rule, show
from policies.settings import GpuConfig, Quantity
from policies.values import UNKNOWN, Node
from policies.workloads import Pod

_PLAIN_COUNT = re.compile(r"[1-9][0-9]{0,5}")


class MemoryConfig(GpuConfig):
    """Configuration of `gpu-memory-guaranteed`."""

    min_memory: Quantity = Field(
        default="256Mi", description="Minimum memory limit of a GPU container."
    )


class CpuConfig(GpuConfig):
    """Configuration of `gpu-cpu-requested`."""

    min_cpu: Quantity = Field(default="100m", description="Minimum CPU request of a GPU container.")


@pod_rule(
    name="gpu-requests-equal-limits",
    description="GPUs are set as limits; a GPU request, if there is one, equals the limit.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set GPUs under limits; under requests, leave them out or set the same number.",
    config=GpuConfig,
)
def gpu_requests_equal_limits(pod: Pod, config: GpuConfig) -> Iterator[Violation]:
    """The API server rejects a pod whose GPU request and limit differ, and the update fails."""
    for container in pod.containers:
        for name, request, limit in container.gpus(config.accelerators):
            if request.absent or UNKNOWN in (request.value, limit.value):
                continue
            if limit.absent:
                yield Violation(limit, f"{show(request.value)}, because {name} is only in requests")
            elif quantity_or_none(request.value) != quantity_or_none(limit.value):
                yield Violation(
                    request, f"{show(limit.value)}, the same as the limit, or remove it"
                )


@pod_rule(
    name="gpu-counts-whole",
    description="GPU counts are positive integers in plain notation.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation='Write a plain number such as 1, not "0.5", "1000m" or "1e0". To request no GPU, '
    "omit the entry.",
    config=GpuConfig,
    admission=cel.containers(
        "[c.?resources.?limits, c.?resources.?requests].exists(r, r.orValue({}).exists(n,"
        f" {cel.accelerator('n')}"
        " && !r.orValue({})[n].matches('^[1-9][0-9]{0,5}$')))"
    ),
)
def gpu_counts_whole(pod: Pod, config: GpuConfig) -> Iterator[Violation]:
    """A limit cannot split a device; sharing is configured in the device plugin."""
    for container in pod.containers:
        for _, request, limit in container.gpus(config.accelerators):
            for amount in (request, limit):
                if amount.present and not _is_plain_count(amount):
                    yield Violation(amount, "an integer such as 1, or remove the entry")


def _is_plain_count(amount: Node) -> bool:
    value = amount.value
    return not isinstance(value, bool | float) and bool(_PLAIN_COUNT.fullmatch(str(value)))


@pod_rule(
    name="gpu-memory-guaranteed",
    description="A GPU container has a memory limit and an equal memory request.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set limits.memory; leave requests.memory out or set it to the same value.",
    config=MemoryConfig,
    references=["NSA Resource policies", "OWASP K01"],
    admission=cel.gpu_containers(
        f"[{cel.resources_that_set('memory')}].exists(l, l == [] || !has(l[0].limits) ||"
        " !('memory' in l[0].limits) ||"
        " quantity(l[0].limits.memory).isLessThan(quantity(settings.minMemory)) ||"
        " quantity(l[0].?requests.?memory.orValue(l[0].limits.memory))"
        ".compareTo(quantity(l[0].limits.memory)) != 0)"
    ),
)
def gpu_memory_guaranteed(pod: Pod, config: MemoryConfig) -> Iterator[Violation]:
    """A pod that uses more memory than it requests can stop expensive runs on the same node."""
    for container in pod.gpu_containers(config.accelerators):
        resources = container.effective_resources("memory")
        limit, request = resources["limits"]["memory"], resources["requests"]["memory"]
        if not limit.known:
            continue
        amount = quantity_or_none(limit.value)
        if amount is None or amount < parse_quantity(config.min_memory):
            yield Violation(limit, f"a memory limit of at least {config.min_memory}, such as 16Gi")
        elif request.present and quantity_or_none(request.value) != amount:
            yield Violation(request, f"{show(limit.value)}, the same as the limit, or remove it")


@pod_rule(
    name="gpu-cpu-requested",
    description="A GPU container requests CPU for its data loaders.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Set requests.cpu. Do not set a CPU limit: throttling starves the data loaders.",
    config=CpuConfig,
    admission=cel.gpu_containers(
        f"[{cel.resources_that_set('cpu')}].exists(l, l == [] ||"
        " quantity(l[0].?requests.?cpu.or(l[0].?limits.?cpu).orValue('0'))"
        ".isLessThan(quantity(settings.minCpu)))"
    ),
)
def gpu_cpu_requested(pod: Pod, config: CpuConfig) -> Iterator[Violation]:
    """Without a request, data loaders get only the remaining CPU time, and the GPU waits."""
    for container in pod.gpu_containers(config.accelerators):
        resources = container.effective_resources("cpu")
        request, limit = resources["requests"]["cpu"], resources["limits"]["cpu"]
        effective = limit if request.absent and not limit.absent else request
        if not effective.known:
            continue
        amount = quantity_or_none(effective.value)
        if amount is None or amount < parse_quantity(config.min_cpu):
            yield Violation(effective, f"a CPU request of at least {config.min_cpu}, such as 4")


RULES: list[Rule[Any]] = [
    gpu_requests_equal_limits,
    gpu_counts_whole,
    gpu_memory_guaranteed,
    gpu_cpu_requested,
]
