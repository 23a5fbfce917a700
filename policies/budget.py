"""Rules about the number of GPUs that a stack may request, and their cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.quantities import quantity_or_none
from policies.claims import claimed_devices
from policies.rule import Level, Rule, Severity, Violation, stack_rule
from policies.settings import GpuConfig
from policies.values import Node
from policies.views import Stack
from policies.workloads import Pod


class BudgetConfig(GpuConfig):
    """Configuration of `gpu-budget`."""

    max_gpus: int | None = Field(default=None, ge=0, description="GPUs of the whole stack.")
    max_gpus_per_queue: dict[str, int] = Field(default={}, description="GPUs by queue.")


class CostConfig(GpuConfig):
    """Configuration of `gpu-cost`."""

    hourly_prices: dict[str, float] = Field(
        default={}, description="Price of one GPU per hour, by resource name or DRA device class."
    )
    max_hourly_cost: float | None = Field(
        default=None, ge=0, description="Maximum hourly cost of all GPUs, in the same currency."
    )


def _gpus(stack: Stack, config: GpuConfig) -> Iterator[tuple[str, str, Decimal]]:
    """Return (queue, resource, number) of the GPUs that all pods of a stack request together."""
    counted: set[str] = set()
    for workload in stack.workloads:
        for pod in workload.pods:
            queue = workload.queue(pod).text or ""
            pods = pod.replicas or Decimal(1)
            for name, amount in _of_containers(pod, config):
                yield queue, name, amount * pods
            for shared, name, amount in claimed_devices(stack, pod, config.accelerators):
                if not shared or shared not in counted:
                    yield queue, name, amount if shared else amount * pods
                counted.add(shared)


def _of_containers(pod: Pod, config: GpuConfig) -> Iterator[tuple[str, Decimal]]:
    for container in pod.containers:
        for name, request, limit in container.gpus(config.accelerators):
            if container.is_long_running:
                amount = quantity_or_none(request.value if limit.absent else limit.value)
                yield name, amount or Decimal(0)


@stack_rule(
    name="gpu-budget",
    description="The stack requests no more GPUs than its budget allows.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Request fewer GPUs, or raise the budget.",
    config=BudgetConfig,
)
def gpu_budget(stack: Stack, config: BudgetConfig) -> Iterator[Violation]:
    """A typo in a number of nodes is found before the GPUs are allocated."""
    by_queue: dict[str, Decimal] = defaultdict(Decimal)
    for queue, _, count in _gpus(stack, config):
        by_queue[queue] += count
    total = sum(by_queue.values(), Decimal(0))
    if config.max_gpus is not None and total > config.max_gpus:
        yield Violation(
            Node(None),
            f"at most {config.max_gpus}, or raise maxGpus of gpu-budget",
            found=f"{int(total)} GPUs in the whole stack",
        )
    for queue, allowed in config.max_gpus_per_queue.items():
        if by_queue[queue] > allowed:
            yield Violation(
                Node(None),
                f"at most {allowed}, or raise maxGpusPerQueue of gpu-budget",
                found=f"{int(by_queue[queue])} GPUs in queue {queue}",
            )


@stack_rule(
    name="gpu-cost",
    description="The hourly cost of the stack's GPUs is within its limit.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Request fewer or cheaper GPUs, or raise the limit.",
    config=CostConfig,
)
def gpu_cost(stack: Stack, config: CostConfig) -> Iterator[Violation]:
    """The cost appears in the pull request, not at the end of the month."""
    cost = Decimal(0)
    for _, name, count in _gpus(stack, config):
        cost += count * Decimal(str(config.hourly_prices.get(name, 0)))
    if config.max_hourly_cost is not None and cost > Decimal(str(config.max_hourly_cost)):
        yield Violation(
            Node(None),
            f"at most {config.max_hourly_cost:g}, or raise maxHourlyCost of gpu-cost",
            found=f"GPUs for {cost:f} an hour",
        )


RULES: list[Rule[Any]] = [gpu_budget, gpu_cost]
