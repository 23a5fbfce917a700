"""Reports of findings: as text, as JSON, and as SARIF 2.1.0 for code hosts and editors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from policies.configuration import OWN_RULES
from policies.evaluation import Finding
from policies.rule import Level, Rule, Severity

TOOL = "gpu-platform-policies"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# Code hosts sort security findings by this score, from 0 to 10.
_SCORES = {
    Severity.LOW: "3.0",
    Severity.MEDIUM: "5.5",
    Severity.HIGH: "8.0",
    Severity.CRITICAL: "9.5",
}


@dataclass(frozen=True)
class Report:
    """Findings and their files.

    `left_out` counts rules that need the whole stack, `disabled` are rules that the configuration
    disables, `skipped` are documents that are no Kubernetes objects.
    """

    findings: Sequence[Finding]
    sources: Sequence[str]
    objects: int
    rules: Sequence[Rule[Any]]
    left_out: int = 0
    disabled: Sequence[str] = ()
    skipped: Sequence[str] = ()

    @property
    def mandatory(self) -> int:
        """Number of mandatory violations."""
        return sum(finding.mandatory for finding in self.findings)

    def rule(self, finding: Finding) -> Rule[Any]:
        """Return the rule of a finding."""
        return self._by_name[finding.rule]

    @cached_property
    def _by_name(self) -> dict[str, Rule[Any]]:
        return {rule.name: rule for rule in [*self.rules, *OWN_RULES]}


def human(report: Report) -> str:
    """Return one paragraph for each finding, and a summary."""
    lines = []
    for finding in report.findings:
        level = "mandatory" if finding.mandatory else "advisory"
        level = f"{level} ({finding.severity.value})"
        lines.append(f"{_place(finding)}{level}: {finding.rule}: {finding.message}")
        lines.append(f"    {finding.remediation}")
        lines += [f"    {text}" for text in _sources(report.rule(finding))]
    advisory = len(report.findings) - report.mandatory
    lines.append(
        f"{report.objects} objects, {len(report.rules)} rules: "
        f"{report.mandatory} mandatory and {advisory} advisory violations"
    )
    if report.left_out:
        lines.append(f"left out: {report.left_out} rules that need the whole stack")
    if report.disabled:
        lines.append(f"disabled: {len(report.disabled)} rules: {', '.join(report.disabled)}")
    lines += [f"not evaluated: {text}" for text in report.skipped]
    return "\n".join(lines) + "\n"


def _sources(rule: Rule[Any]) -> list[str]:
    """Return the controls that a rule implements and the link to its documentation."""
    controls = "; ".join(str(control) for control in rule.controls)
    return [text for text in (controls, rule.page) if text]


def _place(finding: Finding) -> str:
    document = finding.document
    return f"{document.source}:{document.line(finding.steps)}: " if document is not None else ""


def as_json(report: Report) -> str:
    """Return the findings and a summary as an object."""
    summary = {
        "objects": report.objects,
        "rules": len(report.rules),
        "rulesLeftOut": report.left_out,
        "rulesDisabled": list(report.disabled),
        "notEvaluated": list(report.skipped),
        "mandatory": report.mandatory,
        "advisory": len(report.findings) - report.mandatory,
    }
    found = [_finding(finding, report.rule(finding)) for finding in report.findings]
    return json.dumps({"summary": summary, "findings": found}, indent=2, ensure_ascii=False) + "\n"


def _finding(finding: Finding, rule: Rule[Any]) -> dict[str, Any]:
    document, resource = finding.document, finding.resource
    return {
        "rule": finding.rule,
        "level": "mandatory" if finding.mandatory else "advisory",
        "severity": finding.severity.value,
        "resource": resource.address if resource is not None else None,
        "field": finding.field or None,
        "file": document.source if document is not None else None,
        "line": document.line(finding.steps) if document is not None else None,
        "message": finding.message,
        "remediation": finding.remediation,
        "references": [str(control) for control in rule.controls],
        "url": rule.page,
    }


def sarif(report: Report) -> str:
    """Return a log of one run; findings without an object are at the start of the first file."""
    rules = [_sarif_rule(rule) for rule in [*report.rules, *OWN_RULES]]
    indexes = {rule["id"]: index for index, rule in enumerate(rules)}
    driver = {"name": TOOL, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {"executionSuccessful": True, "toolExecutionNotifications": _notifications(report)}
        ],
        "results": [_result(finding, report, indexes) for finding in report.findings],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _notifications(report: Report) -> list[dict[str, Any]]:
    """Return what was not evaluated."""
    texts = [f"the rule {name} is disabled" for name in report.disabled]
    texts += [f"not evaluated: {text}" for text in report.skipped]
    return [{"level": "note", "message": {"text": text}} for text in texts]


def _sarif_rule(rule: Rule[Any]) -> dict[str, Any]:
    tags = [rule.topic, *(str(control) for control in rule.controls)]
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.description},
        "fullDescription": {"text": f"{rule.description} {rule.reason}"},
        "help": {"text": rule.remediation},
        **_help(rule.page),
        "defaultConfiguration": {"level": "error" if rule.level is Level.MANDATORY else "warning"},
        "properties": {"tags": tags, "security-severity": _SCORES[rule.severity]},
    }


def _help(page: str | None) -> dict[str, str]:
    """Return the link of a rule; SARIF accepts only absolute URIs."""
    return {"helpUri": page} if page and "://" in page else {}


def _result(finding: Finding, report: Report, indexes: dict[str, int]) -> dict[str, Any]:
    document, resource = finding.document, finding.resource
    source = document.source if document is not None else report.sources[0]
    line = document.line(finding.steps) if document is not None else 1
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(source)},
            "region": {"startLine": line},
        }
    }
    if resource is not None:
        name = f"{resource.address} {finding.field}".strip()
        location["logicalLocations"] = [{"fullyQualifiedName": name, "kind": "object"}]
    return {
        "ruleId": finding.rule,
        "ruleIndex": indexes[finding.rule],
        "level": "error" if finding.mandatory else "warning",
        "message": {"text": f"{finding.message}. {finding.remediation}"},
        "locations": [location],
    }


def _uri(source: str) -> str:
    """Return a relative reference, or the URI of an absolute path."""
    path = Path(source)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


FORMATS = {"human": human, "json": as_json, "sarif": sarif}
