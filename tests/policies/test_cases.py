"""Manifests of real projects that must pass, and evasions of the rules that must be rejected.

The first line of each file describes it.
"""

import json
import re
from pathlib import Path
from typing import Any

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


def settings(path: Path) -> dict[str, Any]:
    """Return the common settings merged with those of one case."""
    merged = dict(COMMON)
    for rule, value in SETTINGS[path.parent.name].get(path.stem, {}).items():
        common = merged.get(rule)
        merged[rule] = {**common, **value} if common and isinstance(value, dict) else value
    return merged


def rejecting_rules(path: Path) -> set[str]:
    documents = list(read(path.name, path.read_bytes()))
    findings = evaluate(documents, configure(settings(path), RULES))
    assert not [finding for finding in findings if "itself failed" in finding.message]
    return {finding.rule for finding in findings if finding.mandatory}


def expected_rules(path: Path) -> set[str]:
    """Return the rules named in the file and those added later, or all rules if none is named."""
    named = re.search(r"^# expected rules: (.*)$", path.read_text(), re.MULTILINE)
    return {*named[1].split(), *LATER_RULES} if named else {rule.name for rule in RULES}


def test_evasions_are_rejected_by_an_expected_rule() -> None:
    found = {path: rejecting_rules(path) for path in (CASES / "evasions").glob("*.yaml")}
    assert found
    assert [path.stem for path, rules in found.items() if not rules & expected_rules(path)] == []


def test_good_manifests_pass_all_rules() -> None:
    found = {path.stem: rejecting_rules(path) for path in (CASES / "good").glob("*.yaml")}
    assert {name: rules for name, rules in found.items() if rules} == {}


PROJECTS = (
    *("vllm", "kserve|llmisvc|llminference", "triton", "nim_", "dynamo", "ray_"),
    *("kubeflow|train_job|pytorch_job|mpi_?job", "jobset", "lws|LeaderWorkerSet", "kueue", "dcgm"),
    *("gpu_operator|mig_configuration|nvidia_driver|device_plugin", "jupyterhub", "argo_|argocd"),
    *("tekton", "spark", "nccl", "prometheus|alertmanager"),
)


def test_good_manifests_cover_the_projects_used_for_gpu_workloads() -> None:
    """Match projects against file names and the descriptions in the first lines."""
    titles = {
        path: f"{path.stem} {path.read_text().splitlines()[0]}"
        for path in (CASES / "good").glob("*.yaml")
    }
    manifests_by_project = {
        project: {path for path, title in titles.items() if re.search(project, title)}
        for project in PROJECTS
    }
    assert all(len(paths) > 1 for paths in manifests_by_project.values())
    assert len(set.union(*manifests_by_project.values())) >= 60
