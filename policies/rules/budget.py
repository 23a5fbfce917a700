"""Rules about the number and the cost of the GPUs that a stack may request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from policies.demand import demanded_gpus
from policies.rule import Level, Rule, Severity, Violation, stack_rule
from policies.settings import GpuConfig
from policies.values import Node
from policies.views import Stack

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class BudgetConfig(GpuConfig):
    """Configuration of `gpu-budget`."""

    max_gpus: int | None = Field(
        default=None,
        ge=0,
        description="Maximum number of GPUs, including autoscaling and surge during updates.",
    )
    max_gpus_per_queue: dict[str, NonNegativeInt] = Field(
        default={}, description="Maps queues to their maximum number of GPUs."
    )


class CostConfig(GpuConfig):
    """Configuration of `gpu-cost`."""

    hourly_prices: dict[str, Price] = Field(
        default={},
        description="Maps resource names and DRA device classes to the price of one GPU per hour.",
    )
    max_hourly_cost: float | None = Field(
        default=None,
        ge=0,
        description="Maximum hourly cost of all GPUs, in the currency of `hourlyPrices`.",
    )


@stack_rule(
    name="gpu-budget",
    description="The stack can never use more GPUs than its budget allows.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Request fewer GPUs, limit concurrency, or raise the budget.",
    config=BudgetConfig,
)
def gpu_budget(stack: Stack, config: BudgetConfig) -> Iterator[Violation]:
    """A mistyped node count is caught before GPUs are allocated."""
    by_queue: dict[str, Decimal] = defaultdict(Decimal)
    requested: dict[str, Decimal] = defaultdict(Decimal)
    for demand in demanded_gpus(stack, config.accelerators):
        by_queue[demand.queue] += demand.maximum
        requested[demand.queue] += demand.requested
    total = sum(by_queue.values(), Decimal(0))
    if config.max_gpus is not None and total > config.max_gpus:
        yield Violation(
            Node(None),
            f"at most {config.max_gpus}, or raise maxGpus of gpu-budget",
            found=f"{_format_gpus(total, sum(requested.values(), Decimal(0)))} in the whole stack",
        )
    for queue, allowed in config.max_gpus_per_queue.items():
        if by_queue[queue] > allowed:
            yield Violation(
                Node(None),
                f"at most {allowed}, or raise maxGpusPerQueue of gpu-budget",
                found=f"{_format_gpus(by_queue[queue], requested[queue])} in queue {queue}",
            )


@stack_rule(
    name="gpu-cost",
    description="The hourly cost of the stack's GPUs is within the limit.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Request fewer or cheaper GPUs, or raise the limit.",
    config=CostConfig,
)
def gpu_cost(stack: Stack, config: CostConfig) -> Iterator[Violation]:
    """The cost appears in the pull request, not at the end of the month."""
    cost, unpriced = Decimal(0), set[str]()
    for demand in demanded_gpus(stack, config.accelerators):
        price = config.hourly_prices.get(demand.resource)
        cost += _cost(demand.maximum, Decimal(str(price or 0)))
        if price is None and config.max_hourly_cost is not None and demand.maximum:
            unpriced.add(demand.resource)
    for name in sorted(unpriced):
        yield Violation(Node(None), f"the price of {name} into hourlyPrices", found="no price")
    if config.max_hourly_cost is not None and cost > Decimal(str(config.max_hourly_cost)):
        yield Violation(
            Node(None),
            f"at most {config.max_hourly_cost:g}, or raise maxHourlyCost of gpu-cost",
            found=f"GPUs that cost {cost.normalize():f} an hour"
            if cost.is_finite()
            else "an unlimited number of priced GPUs",
        )


def _cost(count: Decimal, price: Decimal) -> Decimal:
    """Return the cost. GPUs without a price cost 0, even if their number is unlimited."""
    return count * price if price else Decimal(0)


def _format_gpus(maximum: Decimal, requested: Decimal) -> str:
    """Return the maximum number of GPUs as text, with the requested number if it is smaller."""
    note = (
        f" ({_format_count(requested)} without autoscaling or update surge)"
        if requested < maximum
        else ""
    )
    return f"{_format_count(maximum)} GPUs{note}"


def _format_count(total: Decimal) -> str:
    """Return the text to write before `GPUs`: a number, or `an unlimited number of`."""
    return f"{total.normalize():f}" if total.is_finite() else "an unlimited number of"


RULES: list[Rule[Any]] = [gpu_budget, gpu_cost]
