"""Manifests of real projects, which must pass all rules. The first line of each describes it."""

import json
import re
from pathlib import Path

from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from tests.policies.ways.way import CONFIG, GOOD

SETTINGS = json.loads(GOOD.with_name("good-config.json").read_text())


def rejecting_rules(path: Path) -> set[str]:
    documents = list(read(path.name, path.read_bytes()))
    settings = CONFIG | SETTINGS.get(path.stem, {})
    findings = evaluate(documents, configure(settings, RULES))
    assert not [finding for finding in findings if "itself failed" in finding.message]
    return {finding.rule for finding in findings if finding.mandatory}


def test_good_manifests_pass_all_rules() -> None:
    found = {path.stem: rejecting_rules(path) for path in GOOD.glob("*.yaml")}
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
        path: f"{path.stem} {path.read_text().splitlines()[0]}" for path in GOOD.glob("*.yaml")
    }
    manifests_by_project = {
        project: {path for path, title in titles.items() if re.search(project, title)}
        for project in PROJECTS
    }
    assert all(len(paths) > 1 for paths in manifests_by_project.values())
    assert len(set.union(*manifests_by_project.values())) >= 60
