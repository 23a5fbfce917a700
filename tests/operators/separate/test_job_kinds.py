"""Job kinds that need operators or additional images: each trains in two pods on two nodes.

One pod of each is killed. Kinds for which `make up` suffices are tested in the cluster tier.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.killed_pods import PROGRAM, TRAINED, KilledPods
from tests.cluster.platform import Platform, await_
from tests.platforms import require_real_nodes

KINDS = ("mpi", "tensorflow", "pytorch", "trainjob", "jobset")
BASE = "127.0.0.1:5000/"
SETTINGS_BY_KIND: dict[str, dict[str, Any]] = {
    "mpi": {"image": "mpi", "hyperparameters": TRAINED},
    "tensorflow": {
        "image": "tensorflow",
        "hyperparameters": {**PROGRAM, "epochs": 120, "peer_timeout": 120},
    },
    "pytorch": {"hyperparameters": TRAINED},
    "trainjob": {"hyperparameters": TRAINED},
    "jobset": {"hyperparameters": TRAINED},
}


def configure(config: dict[str, Any]) -> None:
    """Replace the dev stack's job with jobs of every kind, and add their images."""
    images = config["gpu-platform:images"]["workloads"]
    images.pop("inference")
    config["gpu-platform:inference"]["services"] = {}
    build = images["training"]["build"]
    mpi = {"base_image": f"{BASE}pytorch-mpi-cpu:2.15.0", "target": "mpi"}
    images["mpi"] = {"build": {**build, **mpi}}
    images["tensorflow"] = {
        "build": {
            "dockerfile": "examples/tensorflow/Dockerfile",
            "base_image": f"{BASE}tensorflow-cpu:2.21.0",
            "sources": ["training", "examples/tensorflow", "requirements/tensorflow.txt"],
        }
    }
    jobs = config["gpu-platform:training"]["jobs"]
    common = {**jobs.pop("digits"), "hyperparameters": None, "cpu": "100m"}
    for kind in KINDS:
        described = {**common, "kind": kind, **SETTINGS_BY_KIND[kind]}
        jobs[kind] = {key: value for key, value in described.items() if value is not None}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledPods]:
    """A stack with a job of each kind; one pod of each job is killed during training."""
    require_real_nodes()
    folder = tmp_path_factory.mktemp("kinds")
    platform = Platform.copied(folder, "real")
    platform.edit(configure)
    try:
        with platform.started("up") as process:
            exported = folder / "state" / "real" / "kubeconfig"
            await_(lambda: exported.exists() or process.poll() is not None, "a cluster")
            made = KilledPods(platform, KINDS)
            made.kill(process)
            made.finish(process)
        yield made
    finally:
        platform.make("down", "PURGE=1")


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_in_pods_on_two_nodes_train_together(killed: KilledPods, kind: str) -> None:
    killed.check_two_nodes(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_run_resumes_from_its_checkpoint_after_a_pod_is_killed(
    killed: KilledPods, kind: str
) -> None:
    killed.check_resumed(kind)


@pytest.mark.parametrize("kind", ["mpi", "tensorflow"])
def test_volcano_restarted_the_gang(killed: KilledPods, kind: str) -> None:
    status = killed.status("jobs.batch.volcano.sh", kind)
    assert status["state"]["phase"] == "Completed"
    assert status["retryCount"] >= 1


def test_training_operator_replaced_the_pod_and_its_peer_restarted(
    killed: KilledPods,
) -> None:
    conditions = killed.status("pytorchjobs.kubeflow.org", "pytorch")["conditions"]
    assert {c["type"] for c in conditions if c["status"] == "True"} >= {"Succeeded"}
    # If a worker is still terminating when the master has succeeded, it is deleted.
    master, *workers = killed.pods()["pytorch"]
    assert master["status"]["containerStatuses"][0]["restartCount"] >= 1
    killed = killed.placed["pytorch"][-1]["metadata"]["uid"]
    assert killed not in {pod["metadata"]["uid"] for pod in workers}


def test_jobset_restarted_all_pods_of_the_trainjob(killed: KilledPods) -> None:
    conditions = killed.status("trainjobs.trainer.kubeflow.org", "trainjob")["conditions"]
    assert {c["type"] for c in conditions if c["status"] == "True"} >= {"Complete"}
    assert killed.status("jobsets.jobset.x-k8s.io", "trainjob").get("restarts", 0) >= 1


def test_jobset_restarted_all_pods_of_a_jobset_job(killed: KilledPods) -> None:
    status = killed.status("jobsets.jobset.x-k8s.io", "jobset")
    assert (status["terminalState"], status.get("restarts", 0) >= 1) == ("Completed", True)


@pytest.mark.parametrize("kind", KINDS)
def test_make_up_waits_for_every_job_kind_and_reports_its_result(
    killed: KilledPods, kind: str
) -> None:
    killed.check_reported(kind)
