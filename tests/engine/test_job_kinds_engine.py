"""One stack with a job of every kind, rendered by the engine and checked by the pack."""

import json
from typing import Any

import pytest

from kube.kinds import KINDS, RESOURCES, kinds_that_support
from kube.kinds.volcano import FLOW
from tests.engine.conftest import MakeStack, Manifest, Outcome, Stack
from tests.infra.jobs import PACK, job

STEPS = {
    "prepare": {"command": ["./prepare"]},
    "evaluate": {"command": ["./evaluate"], "after": ["train"], "gpus": 1},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "volcano": {"min_nodes": 1},
    "indexed": {"command": ["accelerate", "launch", "own.py"], "hyperparameters": None},
    "pytorch": {"deadline_seconds": 3600},
    "mpi": {"launcher": {"cpu": "1", "memory": "1Gi"}},
    "plain": {
        "steps": STEPS,
        "after": ["prepare"],
        "env_from": {"HUB": {"secret": "h", "key": "k"}},
    },
}
SUSPENDED = kinds_that_support("state: suspended")


def every_kind(config: dict[str, Any]) -> None:
    config["gpu-platform:training"]["jobs"] = {
        f"job-{kind}": job(kind, datasets=None, **SETTINGS.get(kind, {})) for kind in KINDS
    }
    config["gpu-platform:volcano"]["priority_classes"]["notebooks"] = {"value": 50}
    config["gpu-platform:inference"] = {}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path = tmp_path_factory.mktemp("pack") / "config.json"
    elastic = {"elasticWorkloads": ["ml-simulated/Job.batch.volcano.sh/job-volcano-*"]}
    names = ("training-gang-whole", "training-pod-group-whole")
    path.write_text(json.dumps(PACK | dict.fromkeys(names, elastic)))
    return ("--policy-pack", "policies", "--policy-pack-config", str(path))


@pytest.fixture(scope="module")
def stack(engine: MakeStack) -> Stack:
    return engine("simulated", every_kind)


@pytest.fixture(scope="module")
def outcome(stack: Stack, pack: tuple[str, ...]) -> Outcome:
    return stack.up(*pack)


def by_kind(stack: Stack) -> dict[str, Manifest]:
    """Return the last object of each job, by the job's kind."""
    runs = {run["name"]: run["kind"] for run in stack.outputs()["runs"].values()}
    last = {resource.kind for resource in RESOURCES}
    return {
        runs[manifest["metadata"]["name"]]: manifest
        for manifest in stack.manifests()
        if manifest["kind"] in last
    }


def test_stack_with_every_job_kind_passes_the_policy_pack(outcome: Outcome) -> None:
    assert outcome.status == 0, outcome.text
    assert "[mandatory]" not in outcome.text
    assert "can't run policy" not in outcome.text


def test_every_job_kind_is_rendered(outcome: Outcome, stack: Stack) -> None:
    rendered = {kind: manifest["apiVersion"] for kind, manifest in by_kind(stack).items()}
    of_records = {name: kind.resource.api_version for name, kind in KINDS.items()}
    assert rendered == {**of_records, "plain": FLOW.api_version}
    templates = {m["metadata"]["name"] for m in stack.manifests() if m["kind"] == "JobTemplate"}
    flow = by_kind(stack)["plain"]
    assert templates == {step["name"] for step in flow["spec"]["flows"]}


def test_suspending_a_job_starts_no_new_run(
    outcome: Outcome, stack: Stack, pack: tuple[str, ...]
) -> None:
    before = stack.outputs()["runs"]

    def suspend(config: dict[str, Any]) -> None:
        for kind in SUSPENDED:
            config["gpu-platform:training"]["jobs"][f"job-{kind}"]["state"] = "suspended"

    stack.edit(suspend)
    outcome = stack.up(*pack)
    assert outcome.status == 0, outcome.text
    assert stack.outputs()["runs"] == before
    found = by_kind(stack)
    specs = {kind: found[kind]["spec"] for kind in SUSPENDED}
    specs["pytorch"] = specs["pytorch"]["runPolicy"]
    assert all(spec["suspend"] is True for spec in specs.values())
    assert f"{len(SUSPENDED)} updated" in outcome.text
