"""Construction of a report from a plan."""

from collections.abc import Iterable, Sequence
from typing import Final

from gitops.demand import demands
from gitops.forecast.answer import Answer
from gitops.preview import capacity
from gitops.preview.changes import (
    Change,
    after,
    before,
    changes,
    differences,
    option_changes,
    output_changes,
    unknown_fields,
)
from gitops.preview.claims import storage_rows
from gitops.preview.events import Plan, PolicyFinding
from gitops.preview.impact import (
    changes_cluster,
    earlier_runs,
    gpus_by_queue,
    impacts,
    is_rejected,
    missing_objects,
    without_finished_runs,
)
from gitops.preview.new_runs import cost_per_hour, run_rows, started, waiting
from gitops.preview.report import Mode, Report, ResourceChange, Status, Unknown, Violation
from gitops.prices import Prices
from infra.settings.cluster import MOVE_ERROR
from kube.names import PULUMI_ANNOTATION
from policies import exemptions
from policies.catalogue import RULES
from policies.configuration import DECLARED_RULES
from policies.rules import simulated

_RULES = {rule.name: rule for rule in [*RULES, *DECLARED_RULES, *simulated.DECLARED_RULES]}


def build(
    plan: Plan,
    *,
    stack: str,
    prices: Prices,
    mode: Mode = "live",
    base: str | None = None,
    settings: Sequence[str] = (),
    simulation: Answer | None = None,
) -> Report:
    """Return the report about a plan."""
    changed = changes(plan.steps)
    is_drift = mode == "drift"
    # A drift report describes changes that have already happened, so no resources are counted.
    counted = changed if plan.complete and not is_drift else []
    planned = list(after(counted))
    now, later = demands(before(counted)), demands(planned)
    gpus = capacity.count_gpus(now, later, prices, stack)
    hosts = capacity.count_hosts(now, later, prices, stack)
    touched = [change for change in changed if change.step.operation != "same"]
    options, outputs = sorted(option_changes(changed)), [*output_changes(*plan.outputs)]
    limits = capacity.limits(planned, later, gpus, prices, stack)
    missing = [*missing_objects(changed)] if is_drift else []
    new, earlier = started(counted), earlier_runs(counted)
    # Finished runs are counted in the tables, but new runs do not wait for them.
    active = demands(after(without_finished_runs(counted)))
    requested = capacity.limits(planned, active, gpus, prices, stack)
    # Runs that continue in the previous cluster do not compete with new runs.
    competing = [] if any(map(changes_cluster, counted)) else earlier
    return Report(
        stack=stack,
        mode=mode,
        base=base,
        status=_status(plan, touched, outside_manifests=bool(options or outputs or missing)),
        notices=list(plan.notices),
        complete=plan.complete,
        currency=prices.currency,
        settings=list(settings),
        simulation=simulation,
        counts=_counts(changed),
        impacts=missing if is_drift else [impact.text for impact in impacts(changed)],
        resources=[_resource(change) for change in touched],
        options=options,
        outputs=outputs,
        gpus=gpus,
        held_by_earlier_runs=gpus_by_queue(earlier),
        held_cost_hour=cost_per_hour(earlier, prices, stack),
        new_runs=run_rows(new, prices, stack),
        waiting=list(waiting(new, competing, requested, capacity.ancestors(planned))),
        costs=capacity.costs(gpus, prices, stack),
        host_costs=capacity.costs(hosts, prices, stack),
        storage=storage_rows(counted, prices, stack),
        limits=limits if plan.complete and not is_drift else [],
        violations=_violations(plan.findings),
        exemptions=_exemptions(plan.findings),
        unknown=_unknown(touched),
        errors=list(plan.errors),
        warnings=[
            *plan.warnings,
            *capacity.uncounted(later, prices, stack),
            *(_unvalidated(touched) if mode == "live" else ()),
        ],
        differences=differences(changed),
    )


def _status(plan: Plan, touched: Sequence[Change], *, outside_manifests: bool) -> Status:
    if any(finding.mandatory for finding in plan.findings):
        return "blocked"
    if not plan.succeeded:
        moves = any(MOVE_ERROR in error for error in plan.errors)
        rejected = moves or any(is_rejected(change) for change in touched)
        return "blocked" if rejected else "failed"
    return "changes" if touched or outside_manifests else "unchanged"


def _counts(changes: Sequence[Change]) -> dict[str, int]:
    operations = [
        "kept" if c.step.operation == "delete" and c.is_retained else c.step.operation
        for c in changes
    ]
    names = ("create", "update", "replace", "delete", "kept", "same")
    return {name: operations.count(name) for name in names}


def _resource(change: Change) -> ResourceChange:
    operation = change.step.operation
    if operation == "same":
        raise ValueError(f"{change.step.urn} does not change")
    return ResourceChange(
        operation=operation,
        title=change.title,
        urn=change.step.urn,
        kept_in_cluster=operation == "delete" and change.is_retained,
        exists_in_cluster=change.adopts,
    )


def _violations(findings: Iterable[PolicyFinding]) -> list[Violation]:
    """Return the violations, mandatory ones first."""
    return [_violation(finding) for finding in findings if finding.rule != exemptions.USED.name]


def _violation(finding: PolicyFinding) -> Violation:
    rule = _RULES.get(finding.rule)
    description, remedy = (rule.description, rule.remediation) if rule else ("", "")
    return Violation(
        rule=finding.rule,
        mandatory=finding.mandatory,
        severity=finding.severity,
        message=_message(finding, description, remedy),
        remedy=remedy,
    )


def _exemptions(findings: Iterable[PolicyFinding]) -> list[str]:
    """Return the messages of exemptions in use."""
    used = (finding for finding in findings if finding.rule == exemptions.USED.name)
    return [_message(finding, exemptions.USED.description, "") for finding in used]


def _message(finding: PolicyFinding, description: str, remedy: str) -> str:
    """Return a message without the rule's description and remedy, which Pulumi and the pack add."""
    lines = [line.strip() for line in finding.message.splitlines() if line.strip()]
    return " ".join([line for line in lines if line not in (description, remedy)] or lines)


_DRY_RUN_FIELD: Final = f'metadata.annotations["{PULUMI_ANNOTATION}'


def _unknown(touched: Sequence[Change]) -> list[Unknown]:
    """Return the fields that are known only after the update.

    The annotation that prevents a dry run (see `_unvalidated`) is omitted.
    """
    fields = [
        (c.title, [path for path in paths if not path.startswith(_DRY_RUN_FIELD)])
        for c, paths in _unknown_fields(touched)
    ]
    return [Unknown(title=title, fields=paths) for title, paths in sorted(fields) if paths]


def _unvalidated(touched: Sequence[Change]) -> list[str]:
    """Return a note for each object that has no dry run because it refers to a new object.

    `infra.component.without_dry_run` adds an annotation with an unknown value to such an object.
    """
    return [
        f"{change.title} is not validated by the API server, because it refers to an object that "
        "this update creates, such as its queue."
        for change, paths in _unknown_fields(touched)
        if any(path.startswith(_DRY_RUN_FIELD) for path in paths)
    ]


def _unknown_fields(touched: Sequence[Change]) -> list[tuple[Change, list[str]]]:
    return [(change, unknown_fields(change.resource)) for change in touched if change.new]
