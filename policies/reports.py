"""Reports of findings as text, JSON, GitHub annotations, SARIF, JUnit and OpenReports."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from policies import exemptions
from policies.configuration import DECLARED_RULES
from policies.evaluation import Finding
from policies.rule import Level, Rule, Severity

TOOL = "gpu-platform-policies"
LEVELS = ("mandatory", "advisory")
FAIL_ON = (*LEVELS, *(severity.value for severity in Severity))
"""Thresholds at which a finding fails the check."""
_RANKS = list(Severity)
_COMMAND = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _COMMAND | str.maketrans({":": "%3A", ",": "%2C"})
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# Code scanning services rank security findings by this score, from 0 to 10.
_SCORES = {
    Severity.LOW: "3.0",
    Severity.MEDIUM: "5.5",
    Severity.HIGH: "8.0",
    Severity.CRITICAL: "9.5",
}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
            f"objects: {self.objects}, rules: {len(self.rules)}, "
            f"violations: {self.mandatory} mandatory and {advisory} advisory"
        ]
        if self.skipped_rules:
            lines.append(f"skipped: {self.skipped_rules} rules that need the whole stack")
        if self.disabled:
            lines.append(f"disabled rules: {', '.join(self.disabled)}")
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


def sarif(report: Report) -> str:
    """Return a SARIF 2.1.0 log; findings without an object refer to line 1 of the first file."""
    rules = [_sarif_rule(rule) for rule in report.reportable]
    indexes = {rule["id"]: index for index, rule in enumerate(rules)}
    driver = {"name": TOOL, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {"executionSuccessful": True, "toolExecutionNotifications": _notifications(report)}
        ],
        "results": [_result(finding, report, indexes) for finding in report.findings]
        + [_pass(rule, indexes) for rule in report.listed],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _notifications(report: Report) -> list[dict[str, Any]]:
    """Return a notification for each rule and document that was not evaluated."""
    texts = [f"the rule {name} is disabled" for name in report.disabled]
    texts += [f"not evaluated: {text}" for text in report.skipped_documents]
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
    """Return the help link of a rule; SARIF accepts only absolute URIs."""
    return {"helpUri": page} if page and "://" in page else {}


def _result(finding: Finding, report: Report, indexes: dict[str, int]) -> dict[str, Any]:
    source, line = position(finding) or (report.sources[0], 1)
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(source)},
            "region": {"startLine": line},
        }
    }
    if finding.resource is not None:
        name = f"{finding.resource.address} {finding.field}".strip()
        location["logicalLocations"] = [{"fullyQualifiedName": name, "kind": "object"}]
    return {
        "ruleId": finding.rule,
        "ruleIndex": indexes[finding.rule],
        "level": "error" if finding.mandatory else "warning",
        "message": {"text": f"{finding.message}. {finding.remediation}"},
        "locations": [location],
    }


def _pass(rule: Rule[Any], indexes: dict[str, int]) -> dict[str, Any]:
    return {
        "ruleId": rule.name,
        "ruleIndex": indexes[rule.name],
        "kind": "pass",
        "level": "none",
        "message": {"text": rule.description},
    }


def _uri(source: str) -> str:
    """Return a relative path as a URI reference, or an absolute path as a file URI."""
    path = Path(source)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def junit(report: Report) -> str:
    """Return a JUnit test suite in which every rule is a test case.

    Findings that fail the check are failures. All other findings are in the output of the test
    case.
    """
    failed = {finding.rule for finding in report.findings if report.fails(finding)}
    suite = ET.Element("testsuite", name=TOOL, failures=str(len(failed)))
    for rule in report.reportable:
        findings = [finding for finding in report.findings if finding.rule == rule.name]
        case = ET.SubElement(suite, "testcase", classname=rule.topic, name=rule.name)
        failing = [finding for finding in findings if report.fails(finding)]
        if failing:
            text = "\n".join(map(_line, failing))
            failure = ET.SubElement(
                case, "failure", message=_xml(rule.description), type="violation"
            )
            failure.text = _xml(f"{text}\n{rule.remediation}")
        if others := [finding for finding in findings if not report.fails(finding)]:
            ET.SubElement(case, "system-out").text = _xml("\n".join(map(_line, others)))
    for name in report.disabled:
        case = ET.SubElement(suite, "testcase", classname="disabled", name=name)
        ET.SubElement(case, "skipped", message="disabled in the configuration")
    suite.set("tests", str(len(suite)))
    suite.set("skipped", str(len(report.disabled)))
    suite.set("errors", "0")
    ET.SubElement(suite, "system-out").text = _xml("\n".join(report.summary))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _line(finding: Finding) -> str:
    location = "".join(f"{part}:" for part in position(finding) or ())
    effect = f"{level(finding)} ({finding.severity.value})"
    return f"{location} {effect}: {finding.message}".lstrip()


def _xml(text: str) -> str:
    """Replace characters that XML does not allow."""
    return _NOT_XML.sub("\ufffd", text)


def openreports(report: Report) -> str:
    """Return an `openreports.io/v1alpha1` Report as JSON, for `kubectl apply`."""
    results = [_openreports_result(finding, report.rule(finding)) for finding in report.findings]
    results += [_openreports_fields(rule, "pass") for rule in report.passed]
    results += [{"policy": name, "result": "skip", "scored": True} for name in report.disabled]
    counts = dict.fromkeys(("pass", "fail", "warn", "error", "skip"), 0)
    for result in results:
        counts[result["result"]] += 1
    document = {
        "apiVersion": "openreports.io/v1alpha1",
        "kind": "Report",
        "metadata": {"name": TOOL},
        "source": TOOL,
        "summary": counts,
        "results": results,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _openreports_fields(rule: Rule[Any], result: str) -> dict[str, Any]:
    return {
        "policy": rule.name,
        "category": rule.topic,
        "severity": rule.severity.value,
        "result": result,
        "scored": True,
    }


def _openreports_result(finding: Finding, rule: Rule[Any]) -> dict[str, Any]:
    resource = finding.resource
    file, line = position(finding) or ("", 0)
    properties = {
        "field": finding.field,
        "file": file,
        "line": str(line or ""),
        "remediation": finding.remediation,
        "references": "; ".join(str(control) for control in rule.controls),
        "url": rule.page or "",
    }
    result = _openreports_fields(rule, "fail" if finding.mandatory else "warn") | {
        "severity": finding.severity.value,
        "message": finding.message,
        "properties": {key: text for key, text in properties.items() if text},
    }
    if resource is not None:
        subject = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": resource.name,
            "namespace": resource.namespace,
        }
        result["resources"] = [{key: text for key, text in subject.items() if text}]
    return result
