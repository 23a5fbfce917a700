"""Manifests of real projects that must pass, and ways around the rules that must be refused.

The first line of each file describes it. `NOT_YET` lists the cases that still fail; it must only
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

CASES = Path(__file__).parent / "files"
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
    """Return the settings of all cases with those of one case."""
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
    """Return the rules that the file names, and those added after it was written, or all."""
    named = re.search(r"^# ought to be refused by: (.*)$", path.read_text(), re.MULTILINE)
    return {*named[1].split(), *LATER_RULES} if named else {rule.name for rule in RULES}


@pytest.mark.parametrize("path", parameters("evasions"))
def test_an_evasion_is_refused_by_a_rule_that_fits(path: Path) -> None:
    assert refusing_rules(path) & fitting_rules(path)


@pytest.mark.parametrize("path", parameters("good"))
def test_a_good_manifest_passes(path: Path) -> None:
    assert refusing_rules(path) == set()


PROJECTS = (
    *("vllm", "kserve|llmisvc|llminference", "triton", "nim_", "dynamo", "ray_"),
    *("kubeflow|train_job|pytorch_job|mpi_?job", "jobset", "lws|LeaderWorkerSet", "kueue", "dcgm"),
    *("gpu_operator|mig_configuration|nvidia_driver|device_plugin", "jupyterhub", "argo_|argocd"),
    *("tekton", "spark", "nccl", "prometheus|alertmanager"),
)


def test_good_manifests_cover_the_projects_that_run_on_gpus() -> None:
    """Count manifests by name or by the description in their first line."""
    titles = {
        path: f"{path.stem} {path.read_text().splitlines()[0]}"
        for path in (CASES / "good").glob("*.yaml")
    }
    found = {
        project: {path for path, title in titles.items() if re.search(project, title)}
        for project in PROJECTS
    }
    assert all(len(paths) > 1 for paths in found.values())
    assert len(set.union(*found.values())) >= 60


def test_cases_that_still_fail_exist() -> None:
    assert {path.stem for path in CASES.glob("*/*.yaml")} >= NOT_YET
