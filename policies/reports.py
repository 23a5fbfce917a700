"""Reports of findings as text, JSON and GitHub workflow annotations."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from policies import exemptions
from policies.configuration import DECLARED_RULES
from policies.evaluation import Finding
from policies.rule import Rule, Severity

TOOL = "gpu-platform-policies"
LEVELS = ("mandatory", "advisory")
FAIL_ON = (*LEVELS, *(severity.value for severity in Severity))
"""Thresholds at which a finding fails the check."""
_RANKS = list(Severity)
_COMMAND = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _COMMAND | str.maketrans({":": "%3A", ",": "%2C"})


@dataclass(frozen=True)
class Report:
    """Findings, with the evaluated files and rules.

    `skipped_rules` is the number of rules that were skipped because they need the whole stack.
    `disabled` lists the rules that the configuration disables, and `skipped_documents` lists the
    documents that are not Kubernetes objects. `fail_on` is one of `FAIL_ON`. With `verbose`, rules
    without findings are also listed.
    """

    findings: Sequence[Finding]
    sources: Sequence[str]
    objects: int
    rules: Sequence[Rule[Any]]
    skipped_rules: int = 0
    disabled: Sequence[str] = ()
    skipped_documents: Sequence[str] = ()
    fail_on: str = "mandatory"
    verbose: bool = False

    @property
    def mandatory(self) -> int:
        """Number of mandatory violations."""
        return sum(finding.mandatory for finding in self.findings)

    @property
    def failed(self) -> bool:
        """True if a finding reaches the threshold."""
        return any(self.fails(finding) for finding in self.findings)

    @property
    def passed(self) -> list[Rule[Any]]:
        """Rules without findings."""
        violated = {finding.rule for finding in self.findings}
        return [rule for rule in self.rules if rule.name not in violated]

    @property
    def listed(self) -> list[Rule[Any]]:
        """Rules without findings, if the report is verbose."""
        return self.passed if self.verbose else []

    @property
    def reportable(self) -> list[Rule[Any]]:
        """Every rule that may have findings."""
        return [*self.rules, *DECLARED_RULES]

    @property
    def summary(self) -> list[str]:
        """Lines that state what was evaluated, what was skipped, and how many violations exist."""
        advisory = len(self.findings) - self.mandatory
        lines = [
            f"{self.objects} objects, {len(self.rules)} rules: "
            f"{self.mandatory} mandatory and {advisory} advisory violations"
        ]
        if self.skipped_rules:
            lines.append(f"skipped: {self.skipped_rules} rules that need the whole stack")
        if self.disabled:
            lines.append(f"disabled: {len(self.disabled)} rules: {', '.join(self.disabled)}")
        return [*lines, *(f"not evaluated: {text}" for text in self.skipped_documents)]

    def fails(self, finding: Finding) -> bool:
        """Return whether a finding reaches the threshold; an exempted violation never does."""
        if finding.rule == exemptions.USED.name:
            return False
        if self.fail_on in LEVELS:
            return finding.mandatory or self.fail_on == "advisory"
        return _RANKS.index(finding.severity) >= _RANKS.index(Severity(self.fail_on))

    def rule(self, finding: Finding) -> Rule[Any]:
        """Return the rule of a finding."""
        return self._by_name[finding.rule]

    @cached_property
    def _by_name(self) -> dict[str, Rule[Any]]:
        return {rule.name: rule for rule in self.reportable}


def level(finding: Finding) -> str:
    """Return the name of a finding's level."""
    return "mandatory" if finding.mandatory else "advisory"


def position(finding: Finding) -> tuple[str, int] | None:
    """Return the file and line of a finding, if it is about an object."""
    document = finding.document
    return (document.source, document.line(finding.steps)) if document is not None else None


def human(report: Report) -> str:
    """Return one paragraph for each finding, and a summary."""
    lines = [f"passed: {rule.name}: {rule.description}" for rule in report.listed]
    for finding in report.findings:
        location = "".join(f"{part}:" for part in position(finding) or ())
        effect = f"{level(finding)} ({finding.severity.value})"
        lines.append(f"{location} {effect}: {finding.rule}: {finding.message}".lstrip())
        lines.append(f"    {finding.remediation}")
        lines += [f"    {text}" for text in _references(report.rule(finding))]
    return "\n".join([*lines, *report.summary]) + "\n"


def _references(rule: Rule[Any]) -> list[str]:
    """Return the controls that a rule implements, and the link to the rule's documentation."""
    return [text for text in (", ".join(rule.references), rule.page) if text]


def as_json(report: Report) -> str:
    """Return the findings and a summary as a JSON object."""
    summary = {
        "objects": report.objects,
        "rules": len(report.rules),
        "rulesLeftOut": report.skipped_rules,
        "rulesDisabled": list(report.disabled),
        "notEvaluated": list(report.skipped_documents),
        "mandatory": report.mandatory,
        "advisory": len(report.findings) - report.mandatory,
        "failed": report.failed,
    }
    passed = {"passed": [rule.name for rule in report.passed]} if report.verbose else {}
    findings = [_finding_fields(finding, report.rule(finding)) for finding in report.findings]
    document = {"summary": summary, **passed, "findings": findings}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _finding_fields(finding: Finding, rule: Rule[Any]) -> dict[str, Any]:
    resource = finding.resource
    file, line = position(finding) or (None, None)
    return {
        "rule": finding.rule,
        "level": level(finding),
        "severity": finding.severity.value,
        "resource": resource.address if resource is not None else None,
        "field": finding.field or None,
        "file": file,
        "line": line,
        "message": finding.message,
        "remediation": finding.remediation,
        "references": [str(control) for control in rule.controls],
        "url": rule.page,
    }


def github(report: Report) -> str:
    """Return workflow commands, which GitHub shows as annotations in the files."""
    lines = []
    for finding in report.findings:
        kind = "error" if report.fails(finding) else "warning"
        properties = {"title": f"{finding.rule} ({finding.severity.value})"}
        if location := position(finding):
            properties |= {"file": location[0], "line": str(location[1])}
        listed = ",".join(f"{key}={_escape(text)}" for key, text in properties.items())
        text = f"{finding.message}. {finding.remediation}"
        lines.append(f"::{kind} {listed}::{text.translate(_COMMAND)}")
    lines += [f"::notice title=passed::{rule.name}" for rule in report.listed]
    # GitHub must not read a line of the summary as a workflow command.
    summary = [re.sub(r"^::", " ::", text) for text in report.summary]
    return "\n".join([*lines, *summary]) + "\n"


def _escape(text: str) -> str:
    return text.translate(_PROPERTY)
