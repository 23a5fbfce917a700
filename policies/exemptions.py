"""Exemptions, which allow a workload to violate certain rules until an expiry date.

All exemptions are part of the pack's configuration file, so that they can be reviewed together:

    "exemptions": {"workloads": [{"workload": "ml/Job/old", "rule": "no-host-path",
                                  "reason": "moves to a claim with #12", "expires": "2027-01-31"}]}

Incomplete or expired exemptions are rejected and have no effect. Unused ones are reported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from policies.resources import Resource
from policies.rule import Level, Rule, RuleConfig, Severity, declared_rule

KEY = "exemptions"
"""Key in the configuration file."""
MAX_DAYS = 366
"""Maximum number of days from today to the expiry date of an exemption."""


class ExemptionsConfig(RuleConfig):
    """Schema of the exemptions for the engine; `Exemptions` reads and checks them."""

    workloads: list[dict[str, Any]] = Field(
        default=[],
        description="Exemptions, each with `workload`, `rule` or `rules`, `reason` and `expires`.",
    )


REJECTED = declared_rule(
    name=KEY,
    description="Exemptions are complete and have not expired.",
    reason="An exemption that nobody reviews amounts to a disabled rule.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="State workload, rule (or rules), reason and expires, or remove the exemption.",
    config=ExemptionsConfig,
)
USED = declared_rule(
    name="exemption-used",
    description="Every use of an exemption is reported.",
    reason="A reviewer sees which violations are accepted, why and until when.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Correct the workload and remove the exemption before it expires.",
    config=RuleConfig,
)
UNUSED = declared_rule(
    name="exemption-unused",
    description="Every exemption is needed.",
    reason="An unused exemption is either misspelled or obsolete. An obsolete exemption would hide "
    "new violations.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Remove the exemption, or correct its address.",
    config=RuleConfig,
)
DECLARED_RULES: list[Rule[Any]] = [REJECTED, USED, UNUSED]
"""Rules about exemptions. The pack itself reports their violations."""

_FIELDS = ("workload", "rule", "rules", "reason", "expires", "wildcard")
_REQUIRED_KEYS = "workload, rule (or rules), reason and expires"
_ADDRESS = re.compile(r"[^/\s?\[]+/[^/\s?\[]+/[^/\s?\[]+")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class Exemption:
    """One exemption, which is valid until the end of its `expires` date (UTC)."""

    location: str
    workload: str
    rules: tuple[str, ...]
    reason: str
    expires: date

    def text(self, rule: str) -> str:
        """Return the description of the exemption from a rule, for reports."""
        return f"exempted from {rule} until {self.expires}, because: {self.reason}"

    def covers(self, address: str) -> bool:
        """Return whether the exemption covers the resource with this address."""
        return self.workload == address or fnmatchcase(address, self.workload)


class Exemptions:
    """The valid exemptions of a configuration, and the errors in its invalid exemptions."""

    def __init__(
        self, values: Any = None, rules: Collection[str] = (), today: date | None = None
    ) -> None:
        self.rejected: list[str] = []
        self._in_force: dict[str, list[Exemption]] = {}
        self._used: set[tuple[str, str]] = set()
        today = today or datetime.now(UTC).date()
        for index, entry in enumerate(self._entries(values)):
            location = f"{KEY}.workloads[{index}]"
            problems = list(_problems(entry, rules, today))
            if problems:
                self.rejected.append(f"{location}{_title(entry)}: {'; '.join(problems)}")
                continue
            names = tuple(_rules(entry))
            expires = date.fromisoformat(entry["expires"])
            exemption = Exemption(location, entry["workload"], names, entry["reason"], expires)
            for name in names:
                self._in_force.setdefault(name, []).append(exemption)

    def _entries(self, values: Any) -> list[Any]:
        values = {} if values is None else values
        unknown = sorted(set(values) - {"workloads"}) if isinstance(values, Mapping) else ["…"]
        entries = values.get("workloads", []) if isinstance(values, Mapping) else None
        if unknown or not isinstance(entries, list):
            self.rejected.append(
                f"{KEY}: found {values!r}; write " + '{"workloads": [{"workload": …, "rule": …, '
                '"reason": …, "expires": …}]}'
            )
        return entries if isinstance(entries, list) else []

    def for_rule(self, rule: str) -> list[Exemption]:
        """Return the valid exemptions for a rule."""
        return self._in_force.get(rule, [])

    def covering(self, rule: str, resource: Resource | None) -> Exemption | None:
        """Return a resource's first exemption for a rule, or None if it has none.

        All exemptions of the resource from the rule are marked as used.
        """
        if resource is None:
            return None
        exemptions = [each for each in self.for_rule(rule) if each.covers(resource.address)]
        self._used |= {(exemption.location, rule) for exemption in exemptions}
        return exemptions[0] if exemptions else None

    def covers(self, rule: str, resource: Resource) -> bool:
        """Return whether a resource is exempted from a rule, without marking exemptions as used."""
        return any(each.covers(resource.address) for each in self.for_rule(rule))

    def unused(self, rules: Collection[str]) -> Iterator[str]:
        """Yield a message for each exemption from these rules that was not used."""
        for rule, exemptions in self._in_force.items():
            for exemption in exemptions if rule in rules else ():
                if (exemption.location, rule) not in self._used:
                    yield f"{exemption.location}: {exemption.workload} does not violate {rule}"


def _title(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return ""
    return f" ({entry.get('workload')!r}, {', '.join(map(str, _rules(entry))) or 'no rule'})"


def _rules(entry: Mapping[str, Any]) -> list[Any]:
    """Return the rules from which an entry exempts its workload."""
    listed = entry.get("rules")
    single = [entry["rule"]] if "rule" in entry else []
    return [*single, *listed] if isinstance(listed, list) else single


def _parse_date(value: Any) -> date | None:
    try:
        return date.fromisoformat(value) if _DATE.fullmatch(str(value)) else None
    except (TypeError, ValueError):
        return None


def _problems(entry: Any, rules: Collection[str], today: date) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        yield f"found {entry!r}; write an object with {_REQUIRED_KEYS}"
        return
    for key in sorted(set(entry) - set(_FIELDS)):
        yield f"{key}: found {entry[key]!r}; use only the keys {', '.join(_FIELDS)}"
    yield from _address_problems(entry.get("workload"), entry.get("wildcard", False))
    yield from _rule_problems(entry, rules)
    reason = entry.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        yield f"reason: found {reason!r}; write why this workload cannot follow the rule yet"
    yield from _expiry_problems(entry.get("expires"), today)


def _address_problems(workload: Any, wildcard: Any) -> Iterator[str]:
    if not isinstance(workload, str) or not _ADDRESS.fullmatch(workload):
        yield (
            f"workload: found {workload!r}; write namespace/Kind/name, such as ml/Job/digits, or "
            "namespace/Kind.group/name for a custom resource"
        )
        return
    if not workload.replace("*", "").strip("/") or workload.startswith("*/*/"):
        yield f"workload: found {workload!r}; write a kind, and a namespace or a name"
    if not isinstance(wildcard, bool):
        yield f"wildcard: found {wildcard!r}; write true or false"
    elif wildcard and "*" not in workload:
        yield f"wildcard: found true, but {workload!r} contains no *; remove wildcard"
    elif not wildcard and "*" in workload:
        yield f'workload: found {workload!r}; write one name, or add "wildcard": true'


def _rule_problems(entry: Mapping[str, Any], rules: Collection[str]) -> Iterator[str]:
    listed = entry.get("rules", [])
    if ("rule" in entry) == ("rules" in entry) or not isinstance(listed, list):
        rule = entry.get("rule")
        yield (
            f"rule: found {rule!r}, rules: {listed!r}; write either rule (one name) or rules "
            "(a list)"
        )
    elif not _rules(entry):
        yield "rules: found []; write at least one rule"
    for rule in _rules(entry):
        if not isinstance(rule, str) or rule not in rules:
            yield f"rule: found {rule!r}; write the name of a rule, such as no-host-path"


def _expiry_problems(expires: Any, today: date) -> Iterator[str]:
    expiry, last = _parse_date(expires), today + timedelta(days=MAX_DAYS)
    if expiry is None:
        yield f"expires: found {expires!r}; write the last valid day, as YYYY-MM-DD"
    elif expiry < today:
        yield (
            f"expires: found {expires!r}, which is in the past; fix the workload or write a new "
            "date"
        )
    elif expiry > last:
        yield f"expires: found {expires!r}, more than a year ahead; write {last} or earlier"
