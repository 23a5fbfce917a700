"""The report of a preview: everything that a reviewer is told, as typed data."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel

from gitops.preview import gpus
from gitops.preview.cost import Cost, costs
from gitops.preview.demand import demands
from gitops.preview.events import Plan
from gitops.preview.findings import exempted, violations
from gitops.preview.impact import held_by_earlier_runs, impacts, is_refused
from gitops.preview.limits import Limit, limits
from gitops.preview.manifest_diff import differences, unknown_fields
from gitops.preview.objects import Change, after, before, changes
from gitops.prices import Prices

Status = Literal["unchanged", "changes", "blocked", "failed"]
Mode = Literal["live", "drift", "rendered"]
Number = Annotated[
    Decimal, PlainSerializer(lambda value: round(float(value), 4), return_type=float)
]


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class ResourceChange(_Model):
    """One resource that an update would touch."""

    operation: Literal["create", "update", "replace", "delete"]
    title: str
    urn: str
    kept_in_cluster: bool = False


class GpuRow(_Model):
    """GPUs of one queue and product; `fewest_after` differs where an autoscaler decides."""

    queue: str
    product: str
    resource: str
    purchase: str
    role: str
    now: Number
    after: Number
    fewest_after: Number


class CostRow(_Model):
    """What these GPUs cost; `price` is null where the price table does not say."""

    queue: str
    product: str
    resource: str
    purchase: str
    role: str
    price: Number | None
    utilisation: Number
    now_hour: Number
    after_hour: Number
    now_month: Number
    after_month: Number


class LimitRow(_Model):
    """What is left under a limit, in base units: bytes, cores or pieces."""

    what: str
    resource: str
    asked: Number
    allowed: Number
    left: Number


class Violation(_Model):
    """A rule of the policy pack that is not kept."""

    rule: str
    mandatory: bool
    severity: str
    message: str
    remedy: str


class Unknown(_Model):
    """Fields of an object that only the update will tell."""

    title: str
    fields: list[str]


class Difference(_Model):
    """A unified diff of an object's manifest."""

    title: str
    lines: list[str]


class Report(_Model):
    """A preview's report. Every list is in an order that does not depend on the run."""

    stack: str
    mode: Mode
    base: str | None = None
    """What a rendered preview is compared with."""
    status: Status
    complete: bool
    """False where an error ended the preview: then nothing that is counted would be right."""
    currency: str
    counts: dict[str, int]
    impacts: list[str]
    resources: list[ResourceChange]
    gpus: list[GpuRow]
    held_by_earlier_runs: dict[str, Number]
    """GPUs by queue of runs that leave the stack and may go on in the cluster."""
    costs: list[CostRow]
    limits: list[LimitRow]
    violations: list[Violation]
    exemptions: list[str]
    unknown: list[Unknown]
    errors: list[str]
    warnings: list[str]
    differences: list[Difference]


def build(
    plan: Plan, *, stack: str, prices: Prices, mode: Mode = "live", base: str | None = None
) -> Report:
    """The report of a plan."""
    found = changes(plan.steps)
    whole = found if plan.complete else []
    now, later = demands(before(whole)), demands(after(whole))
    counted = gpus.count(now, later, prices, stack)
    touched = [change for change in found if change.step.operation != "same"]
    return Report(
        stack=stack,
        mode=mode,
        base=base,
        status=_status(plan, touched),
        complete=plan.complete,
        currency=prices.currency,
        counts=_counts(found),
        impacts=[impact.text for impact in impacts(found)],
        resources=[_resource(change) for change in touched],
        gpus=[_gpus(item) for item in counted],
        held_by_earlier_runs=held_by_earlier_runs(whole),
        costs=[_cost(item) for item in costs(counted, prices, stack)],
        limits=[
            _limit(item)
            for item in limits(after(whole), later, counted, prices.environment(stack))
            if plan.complete
        ],
        violations=[Violation(**vars(item)) for item in violations(plan.findings)],
        exemptions=[item.message for item in exempted(plan.findings)],
        unknown=_unknown(touched),
        errors=list(plan.errors),
        warnings=[*plan.warnings, *(_not_counted(name) for name in gpus.uncounted(later))],
        differences=[
            Difference(title=item.title, lines=list(item.lines)) for item in differences(found)
        ],
    )


def _status(plan: Plan, touched: Sequence[Change]) -> Status:
    if any(finding.mandatory for finding in plan.findings):
        return "blocked"
    if not plan.succeeded:
        return "blocked" if any(is_refused(change) for change in touched) else "failed"
    return "changes" if touched else "unchanged"


def _counts(found: Sequence[Change]) -> dict[str, int]:
    operations = [
        "kept" if c.step.operation == "delete" and c.is_retained else c.step.operation
        for c in found
    ]
    names = ("create", "update", "replace", "delete", "kept", "same")
    return {name: operations.count(name) for name in names}


def _resource(change: Change) -> ResourceChange:
    operation = change.step.operation
    if operation == "same":
        raise ValueError(f"{change.step.urn} is not changed")
    return ResourceChange(
        operation=operation,
        title=change.title,
        urn=change.step.urn,
        kept_in_cluster=operation == "delete" and change.is_retained,
    )


def _gpus(item: gpus.Count) -> GpuRow:
    return GpuRow(**vars(item.pool), now=item.now, after=item.after, fewest_after=item.fewest_after)


def _cost(item: Cost) -> CostRow:
    return CostRow(
        **vars(item.pool),
        price=item.hourly,
        utilisation=item.utilisation,
        now_hour=item.now_hour,
        after_hour=item.after_hour,
        now_month=item.now_month,
        after_month=item.after_month,
    )


def _limit(item: Limit) -> LimitRow:
    return LimitRow(**vars(item), left=item.left)


def _unknown(touched: Sequence[Change]) -> list[Unknown]:
    fields = [(c.title, unknown_fields(c.resource)) for c in touched if c.new is not None]
    return [Unknown(title=title, fields=paths) for title, paths in sorted(fields) if paths]


def _not_counted(name: str) -> str:
    return f"{name}: the number of its pods is not known here, and its GPUs are not counted."
