"""Runs that an update would start, their cost, and the limits that lack capacity for them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby

from gitops.demand import Demand, demands, with_gpus
from gitops.preview.capacity import count_gpus, count_hosts
from gitops.preview.changes import Change, after
from gitops.preview.report import LimitRow, RunRow
from gitops.prices import Prices

_HOUR = 3600
_ROLES = ("training", "interactive")
REJECTION_EFFECT = (
    "Volcano terminates a Volcano Job after about three minutes without its pods; jobs of other "
    "kinds wait."
)


def started(changes: Iterable[Change]) -> list[Demand]:
    """Return the demand of the runs and notebooks with GPUs that an update starts or resumes."""
    all_changes = list(changes)
    new = {
        (f"{c.resource.kind} {c.resource.name}", c.resource.namespace or "default")
        for c in all_changes
        if c.new is not None and (c.step.operation in ("create", "replace") or c.resumes)
    }
    # Evaluate all objects together, because claims and PodGroups may exist already.
    runs = (
        demand
        for demand in demands(after(all_changes))
        if (demand.workload, demand.namespace) in new and demand.role in _ROLES and demand.pods
    )
    return list(with_gpus(runs))


def run_rows(demands: Iterable[Demand], prices: Prices, stack: str) -> list[RunRow]:
    """Return the new runs with their cost until the deadline, sorted by name."""

    def name(demand: Demand) -> tuple[str, str]:
        return demand.workload, demand.namespace

    grouped = groupby(sorted(demands, key=name), key=name)
    return [_row(list(pods), prices, stack) for _, pods in grouped]


def _row(pods: Sequence[Demand], prices: Prices, stack: str) -> RunRow:
    deadlines = [demand.deadline for demand in pods if demand.deadline is not None]
    hours = min(deadlines) / _HOUR if deadlines else None
    hourly = cost_per_hour(pods, prices, stack)
    gpus = sum((row.after for row in count_gpus([], pods, prices, stack)), Decimal(0))
    budget = pods[0].gpu_hours
    if budget is not None:
        hours = budget / gpus
    return RunRow(
        run=pods[0].run,
        queue=pods[0].queue,
        gpus=gpus,
        hours=hours,
        each_attempt=budget is None and any(demand.each_attempt for demand in pods),
        cost_hour=hourly,
        cost=None if hourly is None or hours is None else hourly * hours,
        gpu_hours=budget,
        expected_share=pods[0].expected_share,
    )


def cost_per_hour(demands: Iterable[Demand], prices: Prices, stack: str) -> Decimal | None:
    """Return the hourly cost of all GPUs, CPUs and memory; None if a price is unknown."""
    total, pods = Decimal(0), list(demands)
    for row in [*count_gpus([], pods, prices, stack), *count_hosts([], pods, prices, stack)]:
        price = prices.of_resource(row.product, row.resource, row.purchase)
        if price is None:
            return None
        total += row.after * price
    return total


def waiting(
    new: Sequence[Demand],
    earlier: Sequence[Demand],
    limits: Iterable[LimitRow],
    ancestors: Mapping[str, set[str]],
) -> Iterator[str]:
    """Yield a sentence for each queue or quota that lacks capacity for the new and earlier runs.

    `ancestors` maps each queue to itself and its ancestors.
    """
    rows, queued = list(limits), set[str]()
    for row in rows:
        kind, _, queue = row.what.partition(" ")
        runs = {demand.run for demand in new if queue in ancestors.get(demand.queue, ())}
        inside = [demand for demand in earlier if queue in ancestors.get(demand.queue, ())]
        if kind == "queue" and runs and (text := _shortage(f"Queue `{queue}`", row, inside)):
            queued |= runs
            yield f"{text}: {_names(runs)} will wait until other runs finish."
    for row in rows:
        kind, _, namespace = row.what.partition(" of ")
        resource = row.resource.removeprefix("requests.")
        runs = {d.run for d in new if d.namespace == namespace and resource in d.requests}
        inside = [demand for demand in earlier if demand.namespace == namespace]
        # A run that waits in its queue has no pods yet.
        if (
            kind == "quota"
            and runs - queued
            and (text := _shortage(f"The {row.what}", row, inside))
        ):
            rejected = f"the API server may reject pods of {_names(runs - queued)}"
            yield f"{text}: {rejected}. {REJECTION_EFFECT}"


def _shortage(limit: str, row: LimitRow, earlier: Iterable[Demand]) -> str:
    """Return the start of a sentence if new and earlier runs exceed a limit, otherwise ""."""
    resource = row.resource.removeprefix("requests.")
    held = sum((demand.total(demand.requests, resource) for demand in earlier), Decimal(0))
    if row.asked + held <= row.allowed:
        return ""
    older = f", {held:f} of them for earlier runs that may continue" if held else ""
    return (
        f"{limit} allows {row.allowed:f} `{row.resource}`, but {row.asked + held:f} are "
        f"requested{older}"
    )


def _names(runs: Iterable[str]) -> str:
    return ", ".join(f"`{run}`" for run in sorted(runs))
