"""The other kinds of job, each training for real in two pods on two nodes, while one is killed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from devcluster import host, links
from devcluster.spec import Kind, cluster_spec
from tests.cluster.platform import Platform, await_, copy_checkout
from tests.tiers import unavailable

KINDS = ("mpi", "tensorflow", "plain", "pytorch", "trainjob", "indexed")
BASE = "127.0.0.1:5000/"
PROGRAM = {"model": "digits-net", "dataset": "digits", "batch_size": 32, "learning_rate": 0.005}
# Long enough for a pod to be killed in its midst.
TRAINED = {**PROGRAM, "epochs": 24, "step_delay": 0.05, "peer_timeout": 120}
OF_KIND: dict[str, dict[str, Any]] = {
    "mpi": {"image": "mpi", "hyperparameters": TRAINED},
    "tensorflow": {
        "image": "tensorflow",
        "hyperparameters": {**PROGRAM, "epochs": 120, "peer_timeout": 120},
    },
    "pytorch": {"hyperparameters": TRAINED},
    "trainjob": {"hyperparameters": TRAINED},
    "indexed": {"hyperparameters": TRAINED},
}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in TRAINED.items()]
PLAIN = (
    "exec python3 -m training.launch --nnodes=$NNODES --nproc-per-node=$NPROC_PER_NODE "
    "--node-rank=$VC_TASK_INDEX --master-addr=${VC_WORKER_HOSTS%%,*} --master-port=23456 "
    '-m training --run-dir="$RUN_DIR" "$@"'
)
OF_KIND["plain"] = {"command": ["sh", "-c", PLAIN, "sh", *FLAGS]}


def configure(config: dict[str, Any]) -> None:
    """A job of every kind instead of the dev stack's, and the images for them."""
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
    # Together they want four GPUs more than there are: the last of them wait for the first.
    config["gpu-platform:tenancy"]["quota"]["gpus"] = 16
    jobs = config["gpu-platform:training"]["jobs"]
    common = {**jobs.pop("digits"), "hyperparameters": None, "cpu": "100m"}
    for kind in KINDS:
        described = {**common, "kind": kind, **OF_KIND[kind]}
        jobs[kind] = {key: value for key, value in described.items() if value is not None}


@dataclass
class Story:
    """What was seen of each kind while all of them trained, and a pod of each was killed."""

    platform: Platform
    environment: dict[str, str]
    output: str = ""
    placed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    after: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        done = subprocess.run(
            ["kubectl", *arguments],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def pods(self) -> dict[str, list[dict[str, Any]]]:
        """The pods of each kind's run by name, so that the one that tells comes first."""
        found = json.loads(self.kubectl("get", "pods", "-n=ml-dev", "-o=json") or "{}")
        # A Job keeps the pods that have failed beside those that take their places.
        by_name = {
            str(pod["metadata"]["name"]): pod
            for pod in found.get("items", [])
            if pod["status"]["phase"] != "Failed"
        }
        return {
            kind: [by_name[name] for name in sorted(by_name) if name.startswith(f"{kind}-")]
            for kind in KINDS
        }

    def lines(self, pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the first process of a run has printed since its last start."""
        if not pods or pods[0]["status"]["phase"] == "Pending":
            return []
        text = self.kubectl("logs", "-n=ml-dev", pods[0]["metadata"]["name"])
        return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]

    def kill_pods_of_runs_with_a_checkpoint(self) -> None:
        """The last pod of each, once."""
        pods = self.pods()
        for kind in [kind for kind in KINDS if kind not in self.before]:
            lines = self.lines(pods[kind])
            if any(line["event"] == "epoch" and line["epoch"] >= 3 for line in lines):
                self.before[kind] = lines
                self.placed[kind] = [
                    pod for pod in pods[kind] if "launcher" not in pod["metadata"]["name"]
                ]
                victim = self.placed[kind][-1]["metadata"]["name"]
                self.kubectl("delete", "pod", "-n=ml-dev", victim, "--grace-period=0", "--force")

    def status(self, resource: str, kind: str) -> dict[str, Any]:
        """Status of the kind's own object, which is named like the kind or begins so."""
        found = json.loads(self.kubectl("get", resource, "-n=ml-dev", "-o=json"))["items"]
        (status,) = [
            item.get("status", {})
            for item in found
            if item["metadata"]["name"].partition("-")[0] == kind
        ]
        return dict(status)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    verdict = host.choose_kind("auto")
    if verdict.kind is not Kind.REAL:
        unavailable(verdict.reason)
    if clashes := links.clashing_routes(cluster_spec(Kind.REAL).network):
        unavailable(f"the embedded cluster's network is in use: {clashes}; `make down` ends it")
    folder = tmp_path_factory.mktemp("kinds")
    platform = Platform(copy_checkout(folder / "checkout"), folder / "state", "real")
    platform.edit(configure)
    process = platform.start("up")
    try:
        exported = folder / "state" / "real" / "kubeconfig"
        await_(lambda: exported.exists() or process.poll() is not None, 1800, "a cluster")
        told = Story(platform, {**os.environ, **environment(platform)})

        def all_had_a_pod_killed() -> bool:
            told.kill_pods_of_runs_with_a_checkpoint()
            time.sleep(1.5)
            return len(told.before) == len(KINDS) or process.poll() is not None

        await_(all_had_a_pod_killed, 1800, "a killed pod of each kind")
        told.output, _ = process.communicate(timeout=900)
        assert process.returncode == 0, told.output
        assert told.before.keys() == set(KINDS), told.output
        pods = told.pods()
        told.after = {kind: told.lines(pods[kind]) for kind in KINDS}
        yield told
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=60)
        platform.make("down", "PURGE=1")


def environment(platform: Platform) -> dict[str, str]:
    """The variables of `make env`, once: asking for them takes as long as using them."""
    text = platform.shell("""python -c 'import json, os; print(json.dumps(dict(os.environ)))'""")
    return dict(json.loads(text))


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_in_pods_on_two_nodes_train_together(story: Story, kind: str) -> None:
    pods = story.placed[kind]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == 2
    (start,) = [line for line in story.before[kind] if line["event"] == "start"]
    assert start["processes"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_killed_pod_the_run_goes_on_from_its_checkpoint(story: Story, kind: str) -> None:
    first = next(line for line in story.after[kind] if line["event"] == "epoch")
    assert first["epoch"] >= 3
    finished = story.after[kind][-1]
    assert finished["event"] == "finished"
    assert finished["accuracy"] > 0.9
    assert finished["event"] not in {line["event"] for line in story.before[kind]}


@pytest.mark.parametrize("kind", ["mpi", "tensorflow", "plain"])
def test_volcano_restarted_the_gang(story: Story, kind: str) -> None:
    status = story.status("jobs.batch.volcano.sh", kind)
    assert status["state"]["phase"] == "Completed"
    assert status["retryCount"] >= 1


def test_the_training_operator_replaced_the_pod_and_its_peer_started_again(story: Story) -> None:
    conditions = story.status("pytorchjobs.kubeflow.org", "pytorch")["conditions"]
    assert {c["type"] for c in conditions if c["status"] == "True"} >= {"Succeeded"}
    # A worker that was still ending when the master had succeeded is removed.
    master, *workers = story.pods()["pytorch"]
    assert master["status"]["containerStatuses"][0]["restartCount"] >= 1
    killed = story.placed["pytorch"][-1]["metadata"]["uid"]
    assert killed not in {pod["metadata"]["uid"] for pod in workers}


def test_job_set_restarted_all_of_the_trainjob(story: Story) -> None:
    conditions = story.status("trainjobs.trainer.kubeflow.org", "trainjob")["conditions"]
    assert {c["type"] for c in conditions if c["status"] == "True"} >= {"Complete"}
    assert story.status("jobsets.jobset.x-k8s.io", "trainjob").get("restarts", 0) >= 1


def test_the_job_controller_replaced_the_pod_and_its_peer(story: Story) -> None:
    status = story.status("jobs.batch", "indexed")
    assert {c["type"] for c in status["conditions"] if c["status"] == "True"} >= {"Complete"}
    assert status["succeeded"] == 2
    before = {pod["metadata"]["uid"] for pod in story.placed["indexed"]}
    assert not before & {pod["metadata"]["uid"] for pod in story.pods()["indexed"]}


def test_a_program_that_says_it_can_never_succeed_is_not_started_again(story: Story) -> None:
    """The job of kind plain once more, with another command: 64 is wrong configuration."""
    jobs = json.loads(story.kubectl("get", "jobs.batch.volcano.sh", "-n=ml-dev", "-o=json"))
    (job,) = [j for j in jobs["items"] if j["metadata"]["name"].startswith("plain-")]
    for task in job["spec"]["tasks"]:
        task["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", "exit 64"]
    made = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "metadata": {"name": "wrong", "namespace": "ml-dev"},
        "spec": job["spec"],
    }
    story.kubectl("create", "--filename=-", text=json.dumps(made))
    resource = "jobs.batch.volcano.sh"

    def state() -> str:
        return str(story.status(resource, "wrong").get("state", {}).get("phase"))

    await_(lambda: state() in ("Terminated", "Failed", "Completed"), 240, "the end of the job")
    assert state() == "Terminated"
    status = story.status(resource, "wrong")
    assert status["failed"] >= 1
    assert "retryCount" not in status


@pytest.mark.parametrize("kind", KINDS)
def test_make_up_waits_for_every_kind_and_tells_its_result(story: Story, kind: str) -> None:
    text = story.output
    row = text[text.rindex(f"(2 x 1 GPU, {kind})") :]
    assert "accuracy" in row[: row.find("training run")] if "training run" in row else row
