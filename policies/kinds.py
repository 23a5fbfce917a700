"""Workload kinds that the pack's configuration adds to the registry in `kube.workloads`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from kube.workloads import WORKLOAD_KINDS, Registry, by_name
from kube.workloads.record import WorkloadKind, steps
from policies.rule import ConfigurationError

KINDS: Final = "kinds"
"""Key of the records in the configuration."""
_RECORD: Final = TypeAdapter(WorkloadKind)
_KEY_FIELDS: Final = ("group", "kind")
"""Record fields that are set from the record's key."""
_TEXT_FIELDS: Final = ("labels", "unseen", "values", "adapter")
"""Fields that may contain any text. Names in other fields, such as roles, are also valid paths."""


def configured_kinds(values: Mapping[str, Any]) -> Registry:
    """Return the built-in registry with the records that a configuration adds or replaces.

    The key of a record is `Kind.group`, or `Kind` for the core group. Raise `ConfigurationError`
    with every problem.
    """
    records, problems = [], list[str]()
    entries = values.get(KINDS) or {}
    if not isinstance(entries, Mapping):
        raise ConfigurationError(
            f"{KINDS}: found {entries!r:.60}; write an object that maps Kind.group to a record"
        )
    for name, value in entries.items():
        kind, _, group = name.partition(".")
        try:
            records.append(_record(group, kind, value))
        except ValidationError as error:
            problems += _explain(name, error)
        except ValueError as error:
            problems.append(f"{KINDS}.{name}: {error}")
    if problems:
        raise ConfigurationError("; ".join(problems))
    return {**WORKLOAD_KINDS, **by_name(records)} if records else WORKLOAD_KINDS


def _record(group: str, kind: str, value: Any) -> WorkloadKind:
    if not isinstance(value, Mapping):
        raise ValueError(f'found {value!r:.60}; write an object such as {{"pods": []}}')
    for name in _KEY_FIELDS:
        if name in value:
            raise ValueError(
                f"{name}: found {value[name]!r}; remove it, because the key contains the {name}"
            )
    record = _RECORD.validate_python({**value, "group": group.lower(), "kind": kind})
    known = WORKLOAD_KINDS.get((record.group, kind.lower()))
    missing = {pods.at for pods in known.pods} - {pods.at for pods in record.pods} if known else ()
    if missing:
        raise ValueError(f"pods: found no entry for {min(missing)}, which the built-in record has")
    for path in _paths(asdict(record)):
        steps(path)
    if not record.roles:
        raise ValueError("roles: found []; write at least one role, or omit the field")
    if wide := [path for path in record.patterns if len(steps(path)) < 2]:
        raise ValueError(f"patterns: found {wide[0]!r}, which hides every pod; write a longer path")
    return record


def _paths(value: Any) -> Iterator[str]:
    """Yield the paths in a record or in a part of it, given as dicts and tuples."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _TEXT_FIELDS:
                yield from _paths(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _paths(item)


def _explain(name: str, error: ValidationError) -> Iterator[str]:
    known = ", ".join(field.name for field in fields(WorkloadKind) if field.name not in _KEY_FIELDS)
    for problem in error.errors(include_url=False):
        path = ".".join(str(step) for step in problem["loc"])
        text = problem["msg"].lower().replace("tuple", "list")
        if problem["type"] == "unexpected_keyword_argument" and len(problem["loc"]) == 1:
            text = f"write one of {known}"
        yield f"{KINDS}.{name}.{path}: found {problem['input']!r:.60}; {text}"
