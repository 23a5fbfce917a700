"""Exemptions: a named workload may violate a named rule, with a reason and an expiry date.

They are part of the pack's configuration file, so that a review of that file shows all of them:

    "exemptions": {"workloads": [{"workload": "ml/Job/old", "rule": "no-host-path",
                                  "reason": "moves to a claim with #12", "expires": "2027-01-31"}]}

An incomplete or expired exemption is refused and exempts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from policies.resources import Resource

KEY = "exemptions"
"""Key in the configuration file."""
USED = "exemption-used"
"""Name of the policy that reports each use."""
DESCRIPTION = "Exemptions are complete and have not expired."
USED_DESCRIPTION = "What was exempted is said in every report."
REMEDIATION = "Write workload, rule, reason and expires, or remove the exemption."
USED_REMEDIATION = "Correct the workload and remove the exemption before it expires."
_FIELDS = ("workload", "rule", "reason", "expires")
_ADDRESS = re.compile(r"[^/\s]+/[^/\s]+/[^/\s]+")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class Exemption:
    """One exemption, valid until the end of the day `expires` in UTC."""

    workload: str
    rule: str
    reason: str
    expires: date

    @property
    def text(self) -> str:
        """The exemption as a report prints it."""
        return f"exempted from {self.rule} until {self.expires}, because: {self.reason}"


class Exemptions:
    """The valid exemptions of a configuration, and the errors in the others."""

    def __init__(
        self, values: Any = None, rules: Collection[str] = (), today: date | None = None
    ) -> None:
        self.refused: list[str] = []
        self._in_force: dict[tuple[str, str], Exemption] = {}
        today = today or datetime.now(UTC).date()
        for index, entry in enumerate(self._entries(values)):
            problems = list(_problems(entry, rules, today))
            if problems:
                self.refused.append(f"{_title(index, entry)}: {'; '.join(problems)}")
                continue
            workload, rule, reason, expires = (entry[key] for key in _FIELDS)
            held = Exemption(workload, rule, reason, date.fromisoformat(expires))
            self._in_force[held.workload, held.rule] = held

    def _entries(self, values: Any) -> list[Any]:
        values = {} if values is None else values
        unknown = sorted(set(values) - {"workloads"}) if isinstance(values, Mapping) else ["…"]
        entries = values.get("workloads", []) if isinstance(values, Mapping) else None
        if unknown or not isinstance(entries, list):
            self.refused.append(
                f"{KEY}: found {values!r}; write " + '{"workloads": [{"workload": …, "rule": …, '
                '"reason": …, "expires": …}]}'
            )
        return entries if isinstance(entries, list) else []

    def of(self, rule: str) -> list[Exemption]:
        """Return the valid exemptions from a rule."""
        return [held for (_, name), held in self._in_force.items() if name == rule]

    def covering(self, rule: str, resource: Resource | None) -> Exemption | None:
        """Return the valid exemption of a resource from a rule, if there is one."""
        if resource is None or not self._in_force:
            return None
        return self._in_force.get((resource.address, rule))


def _title(index: int, entry: Any) -> str:
    place = f"{KEY}.workloads[{index}]"
    if not isinstance(entry, Mapping):
        return place
    return f"{place} (of {entry.get('workload')!r} from {entry.get('rule')!r})"


def _day(value: Any) -> date | None:
    try:
        return date.fromisoformat(value) if _DAY.fullmatch(str(value)) else None
    except (TypeError, ValueError):
        return None


def _problems(entry: Any, rules: Collection[str], today: date) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        yield f"found {entry!r}; write an object with {', '.join(_FIELDS)}"
        return
    for key in sorted(set(entry) - set(_FIELDS)):
        yield f"{key}: found {entry[key]!r}; write only {', '.join(_FIELDS)}"
    workload, rule, reason, expires = (entry.get(key) for key in _FIELDS)
    if not isinstance(workload, str) or not _ADDRESS.fullmatch(workload):
        yield f"workload: found {workload!r}; write namespace/Kind/name, such as ml/Job/digits"
    if not isinstance(rule, str) or rule not in rules:
        yield f"rule: found {rule!r}; write the name of a rule, such as no-host-path"
    if not isinstance(reason, str) or not reason.strip():
        yield f"reason: found {reason!r}; write why this workload cannot keep the rule yet"
    day = _day(expires)
    if day is None:
        yield f"expires: found {expires!r}; write the last day on which it holds, as YYYY-MM-DD"
    elif day < today:
        yield f"expires: found {expires!r}, which is past; correct the workload or write a new day"
