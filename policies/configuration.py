"""The pack's configuration file: rule levels, rule settings, exemptions and custom kinds.

Under Pulumi, the engine parses the file and passes each policy its settings. In all other cases,
`parse` reads the file.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from kube.workloads import WORKLOAD_KINDS, Registry, by_name
from kube.workloads.record import WorkloadKind, steps
from policies import exemptions
from policies.exemptions import KEY, Exemptions
from policies.rule import (
    ConfigurationError,
    Level,
    Rule,
    RuleConfig,
    Severity,
    declared_rule,
    validated,
)
from policies.rules import simulated
from policies.settings import ClusterConfig, SystemNames

KINDS: Final = "kinds"
"""Key of the records in the configuration."""
_RECORD: Final = TypeAdapter(WorkloadKind)
_KEY_FIELDS: Final = ("group", "kind")
"""Record fields that are set from the record's key."""
_TEXT_FIELDS: Final = ("labels", "unseen", "values", "adapter")
"""Fields that are not checked as paths. All other fields contain paths, or names that are valid
paths."""


def configured_kinds(values: Mapping[str, Any]) -> Registry:
    """Return the built-in registry with the records that a configuration adds or replaces.

    The key of a record is `Kind.group`, or `Kind` for the core group. Raise a `ConfigurationError`
    that lists all problems.
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


KNOWN_NAMES = declared_rule(
    name="configuration",
    description="The configuration names only rules that exist.",
    reason="A misspelled name would leave a rule at its default.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Correct the name in the pack's configuration file.",
    config=RuleConfig,
)


class _SystemWorkloads(RuleConfig):
    workloads: SystemNames = Field(
        default=[],
        description="Objects that are exempt from all rules that have a `systemWorkloads` setting.",
    )


# The engine accepts settings only for policies that the pack declares.
SYSTEM = declared_rule(
    name="systemWorkloads",
    description="The top-level `systemWorkloads` lists objects as `namespace/Kind/name`.",
    reason="A list that cannot be read would exempt nothing.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Correct the list in the pack's configuration file.",
    config=_SystemWorkloads,
)
CLUSTER = declared_rule(
    name="cluster",
    description="The settings under `cluster` are well formed.",
    reason="A setting that cannot be read would apply to no rule.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Correct the setting in the pack's configuration file.",
    config=ClusterConfig,
)
KIND_RECORDS = declared_rule(
    name=KINDS,
    description="The records of workload kinds in the configuration are well formed.",
    reason="A record that cannot be read would leave its kind unknown.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Correct the record in the pack's configuration file.",
    config=RuleConfig,
)
DECLARED_RULES: list[Rule[Any]] = [
    KNOWN_NAMES,
    SYSTEM,
    CLUSTER,
    KIND_RECORDS,
    *exemptions.DECLARED_RULES,
]
"""Rules about the configuration. The pack itself reports their violations."""
_ALL = "all"
RESERVED = (_ALL, *(rule.name for rule in (*DECLARED_RULES, *simulated.DECLARED_RULES)))
"""Configuration keys that are not the names of rules in the catalog."""
_DISABLED = "disabled"
_LEVELS = ("advisory", "mandatory", "remediate", _DISABLED)
ALL_DISABLED = "it disables every rule; enable at least one, or do not use the pack"


def system_workloads(values: Mapping[str, Any]) -> list[str]:
    """Return the objects that are exempt from all rules that have a `systemWorkloads` setting.

    Raise `ConfigurationError` if the setting is invalid.
    """
    return validated(_SystemWorkloads, SYSTEM.name, values.get(SYSTEM.name, {})).workloads


def cluster_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configured settings of the cluster, keyed by name.

    Raise `ConfigurationError` if a setting is invalid.
    """
    settings = validated(ClusterConfig, CLUSTER.name, values.get(CLUSTER.name, {}))
    return {name: getattr(settings, name) for name in settings.model_fields_set}


@dataclass(frozen=True)
class Configuration:
    """Enabled rules, exemptions, the names of disabled rules, and workload kinds.

    Each entry of `rules` is a tuple: the rule, whether it is mandatory, and its settings.
    `simulated` has the same form and contains the rules about simulations, which the pack does not
    evaluate.
    """

    rules: list[tuple[Rule[Any], bool, RuleConfig]]
    exemptions: Exemptions
    disabled: list[str]
    kinds: Registry
    simulated: list[tuple[Rule[Any], bool, RuleConfig]]


def parse(text: str, rules: Iterable[Rule[Any]]) -> Configuration:
    """Parse a configuration file; raise a `ConfigurationError` that lists all problems."""
    try:
        values = json.loads(text, object_pairs_hook=_unique)
    except ConfigurationError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"it is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"found {values!r:.60}; write an object that maps rules to levels")
    return configure(values, rules)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise `ConfigurationError` if a key appears twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"the key {duplicate!r} appears twice; remove one")
    return values


def configure(values: Mapping[str, Any], rules: Iterable[Rule[Any]]) -> Configuration:
    """Return the configuration for parsed values.

    Raise a `ConfigurationError` that lists all problems.
    """
    by_name = {rule.name: rule for rule in rules}
    problems = unknown_rules(values, by_name)
    shared = _pack_settings(values, problems)
    registry = _registry(values, problems)
    levels, settings = {}, {}
    for name, value in values.items():
        if name in (SYSTEM.name, CLUSTER.name, KINDS):
            continue
        levels[name], settings[name] = _split(name, value, problems)
    enabled: dict[bool, list[tuple[Rule[Any], bool, RuleConfig]]] = {True: [], False: []}
    disabled = []
    for rule in (*by_name.values(), *simulated.DECLARED_RULES):
        level = levels.get(rule.name) or levels.get(_ALL) or rule.level.value
        try:
            config = rule.configure(settings.get(rule.name, {}), shared)
        except ConfigurationError as error:
            problems.append(str(error))
            continue
        if level != _DISABLED:
            enabled[rule.name in by_name].append((rule, level != "advisory", config))
        elif rule.name in by_name:
            disabled.append(rule.name)
    if len(disabled) == len(by_name):
        problems.append(ALL_DISABLED)
    if problems:
        raise ConfigurationError("; ".join(problems))
    exempted = Exemptions(settings.get(KEY), by_name)
    return Configuration(enabled[True], exempted, disabled, registry, enabled[False])


def _registry(values: Mapping[str, Any], problems: list[str]) -> Registry:
    try:
        return configured_kinds(values)
    except ConfigurationError as error:
        problems.append(str(error))
        return WORKLOAD_KINDS


def _pack_settings(values: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the pack-wide settings that rules receive."""
    try:
        return {"system_workloads": system_workloads(values), **cluster_settings(values)}
    except ConfigurationError as error:
        problems.append(str(error))
        return {}


def _split(name: str, value: Any, problems: list[str]) -> tuple[str | None, dict[str, Any]]:
    """Return a rule's level, if one is set, and its settings."""
    settings = {"enforcementLevel": value} if isinstance(value, str) else value
    if not isinstance(settings, dict):
        problems.append(f"{name}: found {value!r}; write a level or an object with settings")
        return None, {}
    level = settings.get("enforcementLevel")
    if level is not None and level not in _LEVELS:
        problems.append(f"{name}: found the level {level!r}; write one of {', '.join(_LEVELS)}")
    return level, {key: item for key, item in settings.items() if key != "enforcementLevel"}


def unknown_rules(names: Iterable[str], rules: Iterable[str]) -> list[str]:
    """Return an error for each name in a configuration that is not the name of a rule."""
    known = [*rules, *RESERVED]
    problems = []
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            problems.append(f"unknown rule {name!r}{hint}")
    return problems
