"""The engine's event log (one JSON object a line) as typed data.

The format is `apitype.EngineEvent` of the Pulumi SDK. Only what the report needs is read; the order
of events differs from run to run, so everything is put in order here.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gitops.errors import GitopsError
from gitops.preview.values import Mask, manifest, plain

Operation = Literal["same", "create", "update", "replace", "delete"]

# Steps of which a replacement consists are told once, by the step "replace"; others (read,
# refresh) change nothing.
_OPERATIONS: dict[str, Operation] = {
    "same": "same",
    "create": "create",
    "import": "create",
    "update": "update",
    "replace": "replace",
    "import-replacement": "replace",
    "delete": "delete",
    "discard": "delete",
}


@dataclass(frozen=True)
class State:
    """One side of a step: a resource as it is, or as it will be. No secret is in it."""

    inputs: dict[str, Any]
    outputs: dict[str, Any] = field(default_factory=dict)
    protected: bool = False
    retained: bool = False
    """Whether the object stays in the cluster when it leaves the stack."""


@dataclass(frozen=True)
class Step:
    """What happens to one resource; `old` or `new` is missing where there is none."""

    operation: Operation
    urn: str
    type: str
    old: State | None = None
    new: State | None = None
    replaced_for: tuple[str, ...] = ()
    """The fields that cannot be changed in place."""

    @property
    def name(self) -> str:
        """Pulumi's name of the resource."""
        return self.urn.rpartition("::")[2]


@dataclass(frozen=True)
class PolicyFinding:
    """A rule that a resource, or the stack as a whole (no URN), does not keep."""

    rule: str
    mandatory: bool
    message: str
    urn: str = ""
    severity: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything that a preview has said."""

    steps: tuple[Step, ...]
    findings: tuple[PolicyFinding, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    succeeded: bool = True
    complete: bool = True
    """Whether the engine came to the end; if not, resources that it had not reached are missing."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _State(_Model):
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None
    protect: bool = False
    retain: bool = Field(default=False, alias="retainOnDelete")


class _Metadata(_Model):
    op: str
    urn: str
    type: str
    old: _State | None = None
    new: _State | None = None
    keys: list[str] | None = None


class _Resource(_Model):
    metadata: _Metadata


class _Policy(_Model):
    message: str
    rule: str = Field(alias="policyName")
    level: str = Field(alias="enforcementLevel")
    urn: str = Field(default="", alias="resourceUrn")
    severity: str = ""


class _Diagnostic(_Model):
    message: str
    severity: str
    urn: str = ""


class _Summary(_Model):
    result: str = "succeeded"


class _Event(_Model):
    resource: _Resource | None = Field(default=None, alias="resourcePreEvent")
    policy: _Policy | None = Field(default=None, alias="policyEvent")
    diagnostic: _Diagnostic | None = Field(default=None, alias="diagnosticEvent")
    summary: _Summary | None = Field(default=None, alias="summaryEvent")
    stack_judged: dict[str, Any] | None = Field(
        default=None, alias="policyAnalyzeStackSummaryEvent"
    )


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a log. Raises GitopsError where it is missing or is no event log."""
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
    except (OSError, ValueError) as error:
        raise GitopsError(f"the engine's event log {path} cannot be read: {error}") from error


def plan(events: Iterable[dict[str, Any]], hide: Mask | None = None) -> Plan:
    """What the events say, in an order that does not depend on theirs, without `hide`'s secrets.

    Raises GitopsError where an event is not what the pinned Pulumi writes.
    """
    hide = hide or Mask()
    steps: dict[tuple[str, Operation], Step] = {}
    findings: set[PolicyFinding] = set()
    errors: dict[str, None] = {}
    warnings: dict[str, None] = {}
    succeeded = reached_end = False
    for raw in events:
        event = _validated(raw)
        if event.resource is not None:
            step = _step(event.resource.metadata, hide)
            if step is not None:
                steps[step.urn, step.operation] = step
        elif event.policy is not None:
            findings.add(_finding(event.policy, hide))
        elif event.diagnostic is not None:
            said = {"error": errors, "warning": warnings}.get(event.diagnostic.severity)
            if said is not None:
                said[hide(_said(event.diagnostic))] = None
        elif event.stack_judged is not None:
            # Rules about the stack are asked when everything has been registered.
            reached_end = True
        elif event.summary is not None:
            succeeded = event.summary.result == "succeeded"
    return Plan(
        steps=tuple(sorted(steps.values(), key=lambda step: (step.urn, step.operation))),
        findings=tuple(sorted(findings, key=lambda f: (not f.mandatory, f.rule, f.urn, f.message))),
        errors=tuple(sorted(errors)),
        warnings=tuple(sorted(warnings)),
        succeeded=succeeded,
        complete=succeeded or reached_end,
    )


def _validated(raw: dict[str, Any]) -> _Event:
    try:
        return _Event.model_validate(raw)
    except ValidationError as error:
        raise GitopsError(
            "the engine's event log is not what this version of Pulumi is known to write; use the "
            f"version in requirements.txt: {error}"
        ) from error


def _step(metadata: _Metadata, hide: Mask) -> Step | None:
    operation = _OPERATIONS.get(metadata.op)
    if operation is None:
        return None
    return Step(
        operation=operation,
        urn=hide(metadata.urn),
        type=metadata.type,
        old=_state(metadata.old, hide),
        new=_state(metadata.new, hide) if operation != "delete" else None,
        replaced_for=tuple(sorted(metadata.keys or ())),
    )


def _state(state: _State | None, hide: Mask) -> State | None:
    if state is None:
        return None
    inputs = hide.tree(manifest(state.inputs or {}))
    outputs = hide.tree(plain(state.outputs or {}))
    return State(inputs, outputs, state.protect, state.retain)


def _finding(policy: _Policy, hide: Mask) -> PolicyFinding:
    # `remediate` repairs what it can and reports, as mandatory, what it cannot.
    mandatory = policy.level != "advisory"
    message, urn = hide(policy.message), hide(policy.urn)
    return PolicyFinding(policy.rule, mandatory, message, urn, policy.severity)


def _said(diagnostic: _Diagnostic) -> str:
    name = diagnostic.urn.rpartition("::")[2]
    text = diagnostic.message.strip()
    return f"{name}: {text}" if name else text
