"""What the policy pack says: violations with their remedies, and the exemptions in use."""

from collections.abc import Iterable
from dataclasses import dataclass

from gitops.preview.events import PolicyFinding
from policies import exemptions
from policies.catalogue import RULES_BY_NAME


@dataclass(frozen=True)
class Violation:
    """A rule that is not kept, in the pack's words."""

    rule: str
    mandatory: bool
    severity: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Exempted:
    """A violation that the configuration allows until a day, and why."""

    message: str


def violations(found: Iterable[PolicyFinding]) -> list[Violation]:
    """The violations, mandatory ones first."""
    return [_violation(finding) for finding in found if finding.rule != exemptions.USED]


def exempted(found: Iterable[PolicyFinding]) -> list[Exempted]:
    """The exemptions that were used."""
    return [
        Exempted(" ".join(_said(finding, exemptions.USED_DESCRIPTION, "")))
        for finding in found
        if finding.rule == exemptions.USED
    ]


def _violation(finding: PolicyFinding) -> Violation:
    rule = RULES_BY_NAME.get(finding.rule)
    description, remedy = (rule.description, rule.remediation) if rule else ("", "")
    if finding.rule == exemptions.KEY:
        description, remedy = exemptions.DESCRIPTION, exemptions.REMEDIATION
    message = " ".join(_said(finding, description, remedy))
    return Violation(finding.rule, finding.mandatory, finding.severity, message, remedy)


def _said(finding: PolicyFinding, description: str, remedy: str) -> list[str]:
    """The lines of a message without description and remedy, which the SDK and the pack add."""
    lines = [line.strip() for line in finding.message.splitlines() if line.strip()]
    return [line for line in lines if line not in (description, remedy)] or lines
