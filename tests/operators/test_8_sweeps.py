"""A sweep on real nodes: its controller, its trials and the server of its winner are pods."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.settings.training.sweep import template_name
from kube.names import SWEEP_SUMMARY_ANNOTATION
from tests.cluster.platform import COLD_SECONDS, Platform, await_
from workload.manifest import read_manifest

EPOCHS, TRIALS = 9, 4
IMAGE = {
    "build": {
        "dockerfile": "sweeps/Dockerfile",
        "base_image": "127.0.0.1:5000/pytorch-sweeps-cpu:2.15.0",
        "sources": [
            "sweeps",
            "infra",
            "kube",
            "workload",
            "training/__init__.py",
            "training/config.py",
            "training/settings.py",
            "inference/__init__.py",
            "inference/config.py",
            "requirements/sweeps.txt",
        ],
    }
}


def add(config: dict[str, Any]) -> None:
    """Replace the job of the dev stack with a sweep, and serve its winner."""
    config["gpu-platform:images"]["workloads"]["sweeps"] = IMAGE
    classes = config["gpu-platform:volcano"]["priority_classes"]
    classes["sweeps"] = {"value": 50, "preemption": "Never"}
    job = config["gpu-platform:training"]["jobs"].pop("digits")
    job |= {"priority_class": "sweeps", "retries": 5, "strict_spread": False, "nodes": 1}
    job["hyperparameters"] |= {"epochs": EPOCHS, "step_delay": 0.05}
    del job["hyperparameters"]["learning_rate"]
    config["gpu-platform:training"]["sweeps"] = {
        "digits": {
            "job": job,
            "space": {"learning_rate": {"min": 3e-4, "max": 3e-2, "log": True}},
            "objective": {"metric": "accuracy", "goal": "maximize"},
            "early_stopping": {"minimum": 1, "factor": 3},
            "parallel": 2,
            "trials": TRIALS,
            "budget": {"gpu_hours": 2},
            "winner": "serve",
        }
    }
    config["gpu-platform:training"]["sweep_controller"] = {"interval_seconds": 1}
    service = config["gpu-platform:inference"]["services"]["digits"]
    del service["job"]
    service["sweep"] = "digits"


@dataclass
class Swept:
    """A completed sweep, whose controller was killed during the first trials."""

    platform: Platform
    checkpoints: Path
    earlier: set[str]
    """Names of the runs that other tests started."""
    output: str = ""

    def summary(self) -> dict[str, Any]:
        name = template_name("digits")
        template = "jobtemplates.flow.volcano.sh"
        found = self.platform.kubectl("get", template, name, "-n", "ml-dev")
        return dict(json.loads(found["metadata"]["annotations"][SWEEP_SUMMARY_ANNOTATION]))

    def jobs(self) -> list[dict[str, Any]]:
        selector = "app.kubernetes.io/name=digits"
        found = self.platform.kubectl(
            "get", "jobs.batch.volcano.sh", "-n", "ml-dev", "-l", selector
        )
        return [job for job in found["items"] if job["metadata"]["name"] not in self.earlier]

    def files(self, path: str) -> list[Path]:
        """Return the files with a path in the directory of a trial."""
        found = self.checkpoints.glob(f"digits-????????/{path}")
        return [
            file
            for file in found
            if file.relative_to(self.checkpoints).parts[0] not in self.earlier
        ]

    def controllers(self) -> list[dict[str, Any]]:
        selector = "app.kubernetes.io/name=sweep-controller"
        return list(self.platform.kubectl("get", "pods", "-n", "ml-dev", "-l", selector)["items"])


@pytest.fixture(scope="module")
def swept(real: Platform, checkpoints: Path) -> Swept:
    real.reset()
    real.edit(add)
    made = Swept(real, checkpoints, {run.name for run in checkpoints.glob("digits-*")})
    with real.started("up") as process:
        await_(
            lambda: bool(made.files("progress.jsonl")) or process.poll() is not None,
            "an epoch of a trial",
        )
        assert process.poll() is None, process.communicate()[0]
        (controller,) = made.controllers()
        name = controller["metadata"]["name"]
        real.shell(f"kubectl delete pod -n ml-dev {name} --grace-period=0 --force")
        made.output, _ = process.communicate(timeout=COLD_SECONDS)
        assert process.returncode == 0, made.output
    return made


def test_every_trial_is_a_single_job_and_some_were_paused(swept: Swept) -> None:
    summary = swept.summary()
    assert summary["state"] == "complete"
    runs = {trial["run"] for trial in summary["trials"]}
    assert len(runs) == TRIALS
    assert {job["metadata"]["name"] for job in swept.jobs()} == runs
    phases = {trial["run"]: trial["phase"] for trial in summary["trials"]}
    assert set(phases.values()) == {"succeeded", "paused"}
    for run, phase in phases.items():
        exported = (swept.checkpoints / run / "export/manifest.json").exists()
        assert exported == (phase == "succeeded")


def test_a_controller_that_was_killed_is_replaced(swept: Swept) -> None:
    (controller,) = swept.controllers()
    (status,) = controller["status"]["containerStatuses"]
    assert status["ready"]


def test_a_promoted_trial_resumed_from_its_checkpoint(swept: Swept) -> None:
    winner = swept.summary()["winner"]
    lines = (swept.checkpoints / winner / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [*range(1, EPOCHS + 1)]


def test_winner_of_the_sweep_is_served(swept: Swept) -> None:
    winner = swept.summary()["winner"]
    accuracy = read_manifest(swept.checkpoints / winner / "export").metrics["accuracy"]
    others = [
        read_manifest(path.parent).metrics["accuracy"]
        for path in swept.files("export/manifest.json")
    ]
    assert accuracy == max(others) > 0.9
    assert f"serves {winner}" in swept.output
