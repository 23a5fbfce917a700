"""Parser for the engine's event log (one JSON object per line). The result contains no secrets.

The format is `apitype.EngineEvent` of the Pulumi SDK. Only the fields that the report needs are
read. The results are sorted, because the order of events differs between runs. The engine marks
secrets, outputs, assets, archives and resource references with a signature
(`sdk/go/common/resource/sig`).
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gitops.errors import GitopsError
from gitops.secrets import HIDDEN, Mask
from policies.values import UNKNOWN

Operation = Literal["same", "create", "update", "replace", "delete"]

SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
_SECRET_MARK: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105  marks that a secret follows
_OUTPUT_MARK: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
UNKNOWN_TEXT: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""Text that the engine writes for an unknown value of any type (`pulumi.runtime.rpc`)."""

# This advice is omitted, because following it during a short outage would drop existing objects
# from the state.
_DELETION_ADVICE: Final = re.compile(
    r" *If the cluster was deleted, [^\n]*PULUMI_K8S_DELETE_UNREACHABLE.*"
)
# This line is omitted: it describes the machine that runs the preview, not the change.
_PROVIDER_PATH: Final = re.compile(r"(?m)^(?:warning: )?using pulumi-\S+ from \$PATH.*\n?")
_STACK: Final = "pulumi:pulumi:Stack"
_SECRET_FIELDS: Final = ("data", "stringData")

# A replacement consists of several operations, but only one of them is listed here. Unlisted
# operations, such as "read", are ignored.
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
_CREATIONS: dict[str, Operation] = {"create": "create", "create-replacement": "replace"}


@dataclass(frozen=True)
class State:
    """A resource before or after a step, without secrets."""

    inputs: dict[str, Any]
    outputs: dict[str, Any] = field(default_factory=dict)
    protected: bool = False
    retained: bool = False
    """True if the object stays in the cluster when the resource is removed from the stack."""
    provider: str = ""
    """Reference to the provider, which differs between clusters."""


@dataclass(frozen=True)
class Step:
    """An operation on one resource. `old` is None for a new resource, `new` for a deleted one."""

    operation: Operation
    urn: str
    type: str
    old: State | None = None
    new: State | None = None
    replaced_for: tuple[str, ...] = ()
    """Changed fields that require a replacement."""
    found: bool = False
    """True if an object with the new object's name already exists in the cluster."""
    deleted_last: tuple[State, ...] = ()
    """Replaced objects, which the engine deletes at the end of the update.

    They include objects that an earlier update replaced but did not delete, because that update
    failed.
    """

    @property
    def name(self) -> str:
        """Pulumi's name for the resource."""
        return self.urn.rpartition("::")[2]


@dataclass(frozen=True)
class PolicyFinding:
    """A violation of a rule by a resource or, without a URN, by the stack as a whole."""

    rule: str
    mandatory: bool
    message: str
    urn: str = ""
    severity: str = ""


@dataclass(frozen=True)
class Plan:
    """Result of a preview."""

    steps: tuple[Step, ...]
    findings: tuple[PolicyFinding, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """Reasons why the preview is incomplete."""
    succeeded: bool = True
    complete: bool = True
    """False if the engine stopped early and the remaining resources are missing."""
    outputs: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    """Outputs of the stack now and after the update; empty if the plan does not contain both."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _State(_Model):
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None
    protect: bool = False
    retain: bool = Field(default=False, alias="retainOnDelete")
    provider: str = ""


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
    registered: _Resource | None = Field(default=None, alias="resOutputsEvent")
    policy: _Policy | None = Field(default=None, alias="policyEvent")
    diagnostic: _Diagnostic | None = Field(default=None, alias="diagnosticEvent")
    summary: _Summary | None = Field(default=None, alias="summaryEvent")
    stack_analyzed: dict[str, Any] | None = Field(
        default=None, alias="policyAnalyzeStackSummaryEvent"
    )


def read(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log.

    Raises:
        GitopsError: If the file cannot be read or is not an event log.
    """
    try:
        # `str.splitlines` would also split at characters such as U+2028 within JSON strings.
        return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    except (OSError, ValueError) as error:
        raise GitopsError(f"the engine's event log {path} cannot be read: {error}") from error


def plan(events: Iterable[dict[str, Any]], hide: Mask | None = None) -> Plan:
    """Return the plan that the events describe, sorted and with secrets masked by `hide`.

    Raises:
        GitopsError: If an event has an unknown format, for example because a different version of
            Pulumi wrote it.
    """
    hide = hide or Mask()
    steps: dict[tuple[str, Operation], Step] = {}
    replaced: dict[str, list[State]] = {}
    refreshed: set[str] = set()
    results: list[_Metadata] = []
    findings: set[PolicyFinding] = set()
    errors: dict[str, None] = {}
    warnings: dict[str, None] = {}
    outputs: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    succeeded = reached_end = False
    for raw in events:
        event = _parse(raw)
        if event.resource is not None:
            metadata = event.resource.metadata
            if metadata.op == "refresh":
                refreshed.add(metadata.urn)
            if metadata.op == "delete-replaced" and (old := _state(metadata.old, hide)):
                replaced.setdefault(hide(metadata.urn), []).append(old)
            step = _step(metadata, hide)
            if step is not None:
                steps[step.urn, step.operation] = step
        elif event.registered is not None:
            results.append(event.registered.metadata)
            if event.registered.metadata.type == _STACK:
                outputs = _outputs(event.registered.metadata, hide)
        elif event.policy is not None:
            findings.add(_finding(event.policy, hide))
        elif event.diagnostic is not None:
            messages = {"error": errors, "warning": warnings}.get(event.diagnostic.severity)
            if messages is not None and (text := _diagnostic_text(event.diagnostic)):
                messages[hide(text)] = None
        elif event.stack_analyzed is not None:
            # Rules about the stack are checked after all resources have been registered.
            reached_end = True
        elif event.summary is not None:
            succeeded = event.summary.result == "succeeded"
    for result in results:
        # A refresh reports its result only after it has read the object.
        step = _refresh_step(result, hide) if result.urn in refreshed else None
        if step is not None:
            steps[step.urn, step.operation] = step
        elif (operation := _CREATIONS.get(result.op)) is not None and _exists(result):
            key = hide(result.urn), operation
            if key in steps:
                steps[key] = replace(steps[key], found=True)
    complete_steps = (
        replace(step, deleted_last=tuple(replaced.get(step.urn, ()))) for step in steps.values()
    )
    return Plan(
        steps=tuple(sorted(complete_steps, key=lambda step: (step.urn, step.operation))),
        findings=tuple(sorted(findings, key=lambda f: (not f.mandatory, f.rule, f.urn, f.message))),
        errors=tuple(sorted(_causes(errors))),
        warnings=tuple(sorted(warnings)),
        succeeded=succeeded,
        complete=succeeded or reached_end,
        outputs=outputs if succeeded else ({}, {}),
    )


def _parse(raw: dict[str, Any]) -> _Event:
    try:
        return _Event.model_validate(raw)
    except ValidationError as error:
        raise GitopsError(
            "the engine's event log has an unknown format; use the version of Pulumi in "
            f"requirements.txt: {error}"
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


def _exists(result: _Metadata) -> bool:
    """Return whether the API server's response to a dry run describes an existing object."""
    found = plain((result.new and result.new.outputs) or {}).get("metadata")
    return isinstance(found, dict) and bool(found.get("resourceVersion"))


def _refresh_step(metadata: _Metadata, hide: Mask) -> Step | None:
    step = _step(metadata, hide)
    if step is None or step.old is None or step.operation != "delete":
        return step
    # The object no longer exists, so no option protects or retains it.
    return replace(step, old=replace(step.old, protected=False, retained=False))


def _state(state: _State | None, hide: Mask) -> State | None:
    if state is None:
        return None
    inputs = hide.tree(manifest(state.inputs or {}))
    outputs = hide.tree(plain(state.outputs or {}))
    return State(inputs, outputs, state.protect, state.retain, state.provider)


def _outputs(stack: _Metadata, hide: Mask) -> tuple[dict[str, Any], dict[str, Any]]:
    if stack.old is None or stack.new is None:
        return {}, {}
    now, later = (hide.tree(plain(state.outputs or {})) for state in (stack.old, stack.new))
    return now, later


def _finding(policy: _Policy, hide: Mask) -> PolicyFinding:
    # At the `remediate` level, violations that cannot be remediated count as mandatory.
    mandatory = policy.level != "advisory"
    message, urn = hide(policy.message), hide(policy.urn)
    return PolicyFinding(policy.rule, mandatory, message, urn, policy.severity)


def _diagnostic_text(diagnostic: _Diagnostic) -> str:
    name = diagnostic.urn.rpartition("::")[2]
    text = relevant_output(_DELETION_ADVICE.sub("", diagnostic.message))
    return f"{name}: {text}" if name and text else text


def relevant_output(output: str) -> str:
    """Return the CLI's output without repeated errors and without lines about provider paths."""
    lines = _PROVIDER_PATH.sub("", output).strip().splitlines()
    kept = (
        line
        for n, line in enumerate(lines)
        if not line.startswith("error: ") or line not in lines[:n]
    )
    return "\n".join(kept).strip()


def _causes(errors: Iterable[str]) -> Iterator[str]:
    """Yield the errors that are not part of a longer error.

    Operations that the engine canceled because of another error are omitted.
    """
    texts = [*errors]
    texts = [text for text in texts if not text.endswith(": context canceled")] or texts
    return (each for each in texts if not any(each != o and each in o for o in texts))


def plain(value: Any) -> Any:
    """Return plain data, with `[secret]` for secrets and `UNKNOWN` for unknown values."""
    if isinstance(value, dict):
        return _decode(value) if SIGNATURE in value else {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return UNKNOWN if value == UNKNOWN_TEXT else value


def _decode(value: dict[str, Any]) -> Any:
    mark = value[SIGNATURE]
    if mark == _SECRET_MARK or value.get("secret"):
        return HIDDEN
    if mark == _OUTPUT_MARK:
        return plain(value["value"]) if "value" in value else UNKNOWN
    return value.get("urn") or value.get("hash") or "(asset)"


def manifest(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a Kubernetes object; the data of a Secret is masked."""
    fields = {key: value for key, value in plain(inputs).items() if not key.startswith("__")}
    if fields.get("kind") == "Secret":
        for field in _SECRET_FIELDS:
            if isinstance(fields.get(field), dict):
                fields[field] = dict.fromkeys(fields[field], HIDDEN)
    return fields
