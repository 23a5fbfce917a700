"""A RayJob on real nodes: KubeRay starts the Ray cluster, and Ray starts the training program."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.platform import COLD_SECONDS, Platform, await_

RAY_IMAGE = {
    "build": {
        "dockerfile": "examples/ray/Dockerfile",
        "base_image": "127.0.0.1:5000/pytorch-ray-cpu:2.60.0",
        "sources": [
            "training",
            "workload",
            "examples/ray",
            "requirements/ray.txt",
            "requirements/workload.txt",
        ],
    }
}
PROGRAM = (
    "--model=digits-net",
    "--dataset=digits",
    "--epochs=10",
    "--batch-size=32",
    "--learning-rate=0.005",
    "--step-delay=0.08",
    "--peer-timeout=120",
    "--run-dir=$(RUN_DIR)",
)


def add(config: dict[str, Any]) -> None:
    """Replace the job and the service of the dev stack with a RayJob."""
    config["gpu-platform:images"]["workloads"]["ray"] = RAY_IMAGE
    config["gpu-platform:images"]["workloads"].pop("inference")
    config["gpu-platform:inference"]["services"] = {}
    jobs = config["gpu-platform:training"]["jobs"]
    jobs["ray"] = {
        **jobs.pop("digits"),
        "kind": "ray",
        "image": "ray",
        "command": ["python3", "-m", "examples.ray", *PROGRAM],
        "memory": "2Gi",
        "launcher": {"cpu": "200m", "memory": "2Gi"},
        "retries": 3,
        # On a busy machine, Ray's daemons need longer to start than Ray waits for them.
        "env": {"RAY_raylet_start_wait_time_s": "180"},
    }
    del jobs["ray"]["hyperparameters"]


class RayRun:
    """The run of the job: its Ray cluster, its pods and its progress."""

    def __init__(self, platform: Platform, checkpoints: Path) -> None:
        self.platform = platform
        self._checkpoints = checkpoints
        self.output = ""
        self.placed: list[dict[str, Any]] = []
        self.lost_at = 0

    @property
    def folder(self) -> Path:
        (found,) = self._checkpoints.glob("ray-*")
        return found

    def epochs(self) -> list[int]:
        if not [*self._checkpoints.glob("ray-*/progress.jsonl")]:
            return []
        lines = (self.folder / "progress.jsonl").read_text().splitlines()
        return [line["epoch"] for line in map(json.loads, lines) if line["event"] == "epoch"]

    def pods(self) -> list[dict[str, Any]]:
        selector = "ray.io/node-type=worker"
        return list(self.platform.kubectl("get", "pods", "-n", "ml-dev", "-l", selector)["items"])

    def job(self) -> dict[str, Any]:
        (job,) = self.platform.kubectl("get", "rayjobs.ray.io", "-n", "ml-dev")["items"]
        return dict(job)


@pytest.fixture(scope="module")
def run(real: Platform, checkpoints: Path) -> RayRun:
    """The run, after one of its workers was killed during training."""
    real.edit(add)
    made = RayRun(real, checkpoints)
    with real.started("up") as process:
        await_(lambda: bool(made.epochs()) or process.poll() is not None, "an epoch")
        assert process.poll() is None, process.communicate()[0]
        made.placed = made.pods()
        victim = made.placed[0]["metadata"]["name"]
        real.shell(f"kubectl delete pod -n ml-dev {victim} --grace-period=0 --force")
        made.lost_at = made.epochs()[-1]
        made.output, _ = process.communicate(timeout=COLD_SECONDS)
        assert process.returncode == 0, made.output
    return made


def test_ray_trains_on_two_nodes(run: RayRun) -> None:
    assert len({pod["spec"]["nodeName"] for pod in run.placed}) == len(run.placed) == 2
    manifest = json.loads(next(run.folder.glob("export/**/manifest.json")).read_text())
    assert manifest["metrics"]["accuracy"] > 0.9


def test_ray_run_resumes_from_its_checkpoint_after_a_worker_is_killed(run: RayRun) -> None:
    status = run.job()["status"]
    assert status["jobDeploymentStatus"] == "Complete"
    assert (status["succeeded"], status["failed"]) == (1, 1)
    # Only the epoch during which the worker was killed was repeated.
    assert run.epochs() == [*range(1, 11)]
    assert run.lost_at < 10


def test_the_ray_cluster_of_a_finished_job_is_removed(run: RayRun) -> None:
    await_(lambda: not run.pods(), "the removal of the Ray cluster")


def test_make_up_waits_for_the_ray_job(run: RayRun) -> None:
    assert "(2 x 1 GPU, ray)" in run.output
