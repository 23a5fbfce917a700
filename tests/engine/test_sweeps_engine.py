"""Trials of a sweep, compared with runs of jobs that have the same hyperparameters."""

import json
from pathlib import Path
from typing import Any

from devcluster.paths import CHECKOUT
from infra.settings.training.sweep import CONTROLLER
from infra.sweep import PLAN, parse_plan
from tests.engine.conftest import MakeStack
from tests.infra.examples import DIGEST

IMAGE = f"127.0.0.1:5000/gpu-platform/sweeps@sha256:{DIGEST}"
CHOSEN = {"learning_rate": 0.0123456789, "optimizer": "sgd"}
JOB: dict[str, Any] = {
    "queue": "research",
    "priority_class": "sweeps",
    "nodes": 2,
    "gpus_per_node": 2,
    "memory": "16Gi",
    "cpu": 4,
    "retries": 5,
    "env": {"ZONE": "a", "ALPHA": "b"},
    "hyperparameters": {"model": "digits-net", "epochs": 9, "dataset": "digits"},
}


def test_trial_equals_the_object_that_the_stack_creates_for_a_job(
    engine: MakeStack, tmp_path: Path
) -> None:
    def add(config: dict[str, Any]) -> None:
        config["gpu-platform:cluster"]["labels"] = {"team": "vision"}
        config["gpu-platform:volcano"]["priority_classes"]["sweeps"] = {"value": 10}
        config["gpu-platform:images"]["workloads"]["sweeps"] = {"reference": IMAGE}
        config["gpu-platform:training"]["sweeps"] = {
            "digits-net": {
                "job": JOB,
                "space": {
                    "learning_rate": {"min": 1e-4, "max": 0.1, "log": True},
                    "optimizer": {"choices": ["adamw", "sgd"]},
                },
                "early_stopping": {},
                "trials": 12,
                "budget": {"gpu_hours": 6},
            }
        }

    def keep(config: dict[str, Any]) -> None:
        chosen = {**JOB, "hyperparameters": {**JOB["hyperparameters"], **CHOSEN}}
        config["gpu-platform:training"]["jobs"]["digits-net"] = chosen

    stack = engine("simulated", add)
    rules = json.loads((CHECKOUT / "policies" / "config" / "simulated.json").read_text())
    token = rules.setdefault("no-hidden-token", {}).setdefault("systemWorkloads", [])
    token.append(f"ml-simulated/Deployment/{CONTROLLER}")
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    pack = ("--policy-pack", "policies", "--policy-pack-config", str(tmp_path / "rules.json"))
    previewed = stack.preview(*pack)
    assert previewed.status == 0, previewed.text
    stack.edit(keep)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    found = {(each["kind"], each["metadata"]["name"]): each for each in stack.manifests()}
    assert ("Deployment", CONTROLLER) in found
    assert ("JobTemplate", "digits-net-sweep") in found
    (sweep,) = parse_plan(found["ConfigMap", CONTROLLER]["data"][PLAN]).values()
    run = sweep.run(CHOSEN)
    assert run == stack.outputs()["runs"]["digits-net"]["name"]
    assert sweep.manifest(CHOSEN) == found["Job", run]
