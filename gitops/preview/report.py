"""Typed model of a preview's report."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer

from gitops.forecast.answer import Answer
from gitops.forecast.state import CamelModel
from gitops.prices import Purchase
from kube.workloads.record import Role

Status = Literal["unchanged", "changes", "blocked", "failed"]
Mode = Literal["live", "drift", "rendered"]
Number = Annotated[
    Decimal, PlainSerializer(lambda value: round(float(value), 4), return_type=float)
]


class ResourceChange(CamelModel):
    """A resource that the update would change."""

    operation: Literal["create", "update", "replace", "delete"]
    title: str
    urn: str
    kept_in_cluster: bool = False
    exists_in_cluster: bool = False


class PoolRow(CamelModel):
    """Amount of one resource in a queue: GPUs of one model, cores, or GiB of memory.

    With an autoscaler, `after` is the maximum and `fewest_after` the minimum. `product` is the GPU
    model or, for cores and memory, the host in the price table.
    """

    queue: str
    product: str
    resource: str
    purchase: Purchase
    role: Role
    now: Number
    after: Number
    fewest_after: Number


class CostRow(CamelModel):
    """Cost of a pool. A cost is null if the price table lacks the price of a resource in use."""

    queue: str
    product: str
    resource: str
    purchase: Purchase
    role: Role
    price: Number | None
    utilization: Number
    now_hour: Number | None
    after_hour: Number | None
    now_month: Number | None
    after_month: Number | None


class StorageRow(CamelModel):
    """A claim and its monthly cost. Unknown sizes and costs are null."""

    claim: str
    namespace: str
    storage_class: str
    """Empty if neither the claim nor the price table specifies a storage class."""
    now: Number | None
    """Requested GiB; 0 if the update creates the claim."""
    after: Number | None
    """Requested GiB; 0 if the update deletes the claim and its volume."""
    stays: bool
    """True if the claim is removed from the stack, but its data stays in the cluster."""
    price: Number | None
    now_month: Number | None
    after_month: Number | None


class RunRow(CamelModel):
    """A run that the update would start."""

    run: str
    queue: str
    gpus: Number
    hours: Number | None
    """Hours until the deadline, or until a sweep's budget is used up; null if there is neither."""
    each_attempt: bool
    """True if the deadline applies to each attempt."""
    cost_hour: Number | None
    """Null if the price table lacks a price."""
    cost: Number | None
    """Maximum cost over `hours`; null if the price or the hours are unknown."""
    gpu_hours: Number | None = None
    """GPU-hour budget of a sweep; null for a run.

    For a sweep, `gpus` counts all parallel trials.
    """
    expected_share: Number | None = None
    """Fraction of the maximum epochs or steps that a sweep's trials are expected to run; 1 without
    early stopping."""


class LimitRow(CamelModel):
    """Usage of a limit such as `queue vision`, in base units: bytes, cores or devices."""

    what: str
    resource: str
    asked: Number
    allowed: Number
    left: Number
    """Negative if more is requested than allowed."""


class Violation(CamelModel):
    """A violated rule of the policy pack."""

    rule: str
    mandatory: bool
    severity: str
    message: str
    remedy: str


class Unknown(CamelModel):
    """Fields of an object that are known only after the update."""

    title: str
    fields: list[str]


class Difference(CamelModel):
    """Unified diff of an object's manifest."""

    title: str
    lines: list[str]


class Report(CamelModel):
    """Report of a preview. All lists have a stable order."""

    stack: str
    mode: Mode
    base: str | None = None
    """Git revision that the settings and the rendered manifests are compared with."""
    status: Status
    notices: list[str] = Field(default=[])
    """Reasons why the preview is incomplete."""
    complete: bool
    """False if an error stopped the preview.

    In that case, the lists of GPUs, costs, new runs, storage and limits are empty.
    """
    currency: str
    simulation: Answer | None = None
    """Result of the simulation; null if the plan was not simulated."""
    settings: list[str]
    """Settings that have changed since the base, as `path: before → after`."""
    counts: dict[str, int]
    impacts: list[str]
    resources: list[ResourceChange]
    options: list[str]
    """Changes to the protection and retention of resources that remain in the stack."""
    outputs: list[str]
    """Changed outputs of the stack."""
    gpus: list[PoolRow]
    held_by_earlier_runs: dict[str, Number]
    """Number of GPUs by queue, for runs that are removed from the stack but may keep running."""
    held_cost_hour: Number | None
    """Hourly cost of the runs in `held_by_earlier_runs`; null if a price is unknown."""
    new_runs: list[RunRow]
    waiting: list[str]
    """One sentence for each queue that lacks capacity for its new and earlier runs."""
    costs: list[CostRow]
    """GPU costs."""
    host_costs: list[CostRow]
    """Cost of CPUs and memory that GPU prices do not include."""
    storage: list[StorageRow]
    limits: list[LimitRow]
    violations: list[Violation]
    exemptions: list[str]
    unknown: list[Unknown]
    errors: list[str]
    warnings: list[str]
    differences: list[Difference]


def total(rows: Iterable[CostRow | StorageRow], field: str) -> Decimal | None:
    """Return the total of a cost such as `now_month`; None if any row's cost is unknown."""
    amounts = [getattr(row, field) for row in rows]
    return None if None in amounts else sum(amounts, Decimal(0))
