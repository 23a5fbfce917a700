"""Manifests of real projects that must pass, and ways around the rules that must be refused.

The first line of each file says what it is. `NOT_YET` lists what does not hold yet; it must only
shrink.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate

CASES = Path(__file__).parent / "cases"
COMMON = json.loads((CASES / "config.json").read_text())
SETTINGS = {
    group: json.loads((CASES / f"{group}-config.json").read_text())
    for group in ("evasions", "good")
}
LATER_RULES = {
    "claim-declared",
    "kind-known",
    "claim-devices-counted",
    "namespace-pod-security",
    "no-hidden-token",
    "no-host-ports",
    "no-host-volume",
    "no-secrets-in-manifests",
    "node-not-chosen",
    "priority-class-bounded",
    "priority-not-of-system",
    "probes-stay-in-pod",
    "queue-quota-bounded",
    "rbac-least-privilege",
    "security-profiles-kept",
    "sysctls-safe",
    "tolerations-bounded",
    "volume-types-restricted",
}
NOT_YET = frozenset([])


def parameters(group: str) -> list[Any]:
    return [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.xfail(strict=True)] if path.stem in NOT_YET else [],
        )
        for path in sorted((CASES / group).glob("*.yaml"))
    ]


def settings(path: Path) -> dict[str, Any]:
    """The settings of all cases with those of one case."""
    merged = dict(COMMON)
    for rule, value in SETTINGS[path.parent.name].get(path.stem, {}).items():
        common = merged.get(rule)
        merged[rule] = {**common, **value} if common and isinstance(value, dict) else value
    return merged


def refusing_rules(path: Path) -> set[str]:
    documents = list(read(path.name, path.read_bytes()))
    findings = evaluate(documents, configure(settings(path), RULES))
    assert not [finding for finding in findings if "itself failed" in finding.message]
    return {finding.rule for finding in findings if finding.mandatory}


def fitting_rules(path: Path) -> set[str]:
    """The rules that the file names, or all, and those that did not exist when it was written."""
    named = re.search(r"^# ought to be refused by: (.*)$", path.read_text(), re.MULTILINE)
    return {*named[1].split(), *LATER_RULES} if named else {rule.name for rule in RULES}


@pytest.mark.parametrize("path", parameters("evasions"))
def test_an_evasion_is_refused_by_a_rule_that_fits(path: Path) -> None:
    assert refusing_rules(path) & fitting_rules(path)


@pytest.mark.parametrize("path", parameters("good"))
def test_a_good_manifest_passes(path: Path) -> None:
    assert refusing_rules(path) == set()


def test_what_does_not_hold_yet_exists() -> None:
    assert {path.stem for path in CASES.glob("*/*.yaml")} >= NOT_YET
