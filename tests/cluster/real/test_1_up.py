"""The life cycle of a stack on real nodes, in the order in which a user experiences it.

The cluster is taken down in `test_9_down.py`.
"""

import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from tests.cluster.gangs import MALFORMED_QUEUE, WEBHOOK
from tests.cluster.host_state import HostState
from tests.cluster.killed_pods import TRAINED, KilledPods
from tests.cluster.load import Load, Seen, inference_request
from tests.cluster.platform import HANG_SECONDS, Platform, await_
from training.data import held_out_digits


def test_up_recovers_after_being_killed_during_the_chart_installation(real: Platform) -> None:
    events = real.state / "real" / "logs" / "pulumi-up.events"
    begun = b"volcano-release"

    def installing() -> bool:
        return events.exists() and begun in events.read_bytes()

    with real.started("up") as process:
        await_(lambda: installing() or process.poll() is not None, "the chart")
        assert process.poll() is None, process.communicate()[0]
    output = real.make("up")
    accuracy = re.search(r"accuracy (\d+\.\d+)%", output)
    assert accuracy is not None
    assert float(accuracy[1]) >= 97.0
    assert "(correct)" in output
    state = real.state / "real" / "pulumi" / ".pulumi" / "stacks" / "gpu-platform" / "dev.json"
    assert len(json.loads(state.read_text())["checkpoint"]["latest"]["resources"]) > 20


def test_device_plugin_of_the_stack_advertises_the_gpus(real: Platform) -> None:
    nodes = real.kubectl("get", "nodes")["items"]
    assert {node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes} == {"4"}


def test_volcanos_webhooks_reject_malformed_queues(real: Platform) -> None:
    assert WEBHOOK in real.refusal(MALFORMED_QUEUE)


def test_gang_ran_on_two_nodes_with_one_gpu_each(real: Platform) -> None:
    pods = real.pods(real.run_name())
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    for pod in pods:
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == "1"


def test_make_env_provides_docker_and_kubectl(real: Platform) -> None:
    environment = 'eval "$(make --no-print-directory env NODES=real)"'
    assert "gpu-node-0" in real.run(f"{environment} && docker info")
    service = real.outputs()["inference"]["digits"]
    pods = f"deploy/{service['service']}"
    spec = real.kubectl("get", pods, "-n", service["namespace"])["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm")
    size = str(volumes[mount["name"]]["emptyDir"]["sizeLimit"])
    shown = real.shell(f"kubectl exec -n {service['namespace']} {pods} -- df -B1 /dev/shm")
    assert int(shown.split()[8]) == int(size.removesuffix("Mi")) * 2**20


UNCOMPILED = """
import pathlib, sys
import inference.engine.worker, inference.server
for name, module in sys.modules.items():
    cached = getattr(module, "__cached__", None)
    # Debian decides which of its own modules it compiles.
    ours = isinstance(cached, str) and not cached.startswith("/usr/lib/")
    if ours and not pathlib.Path(cached).exists():
        print(name)
"""


def test_images_contain_bytecode_for_every_imported_module(real: Platform) -> None:
    service = real.outputs()["inference"]["digits"]
    pod = f"-n {service['namespace']} deploy/{service['service']}"
    assert real.shell(f"kubectl exec {pod} -- python3 -c {shlex.quote(UNCOMPILED)}").split() == []


def test_second_make_up_changes_nothing(real: Platform) -> None:
    before = _resources(real)
    assert "unchanged" in real.make("up")
    assert _resources(real) == before


def test_served_model_has_the_accuracy_reported_by_training(
    real: Platform, checkpoints: Path
) -> None:
    run = real.run_name()
    manifest = json.loads((checkpoints / run / "export" / "manifest.json").read_text())
    url = _model_url(real)
    described = httpx.get(url, timeout=60).json()["inputs"][0]
    shape = tuple(described["shape"][1:])
    images, labels = held_out_digits(shape)
    answers: list[int] = []
    for batch in np.array_split(images, 8):
        tensor = {
            "name": described["name"],
            "datatype": "FP32",
            "shape": list(batch.shape),
            "data": batch.ravel().tolist(),
        }
        answer = httpx.post(f"{url}/infer", json={"inputs": [tensor]}, timeout=60)
        outputs = {output["name"]: output for output in answer.json()["outputs"]}
        answers += outputs["class"]["data"]
    accuracy = float((np.asarray(answers) == labels).mean())
    assert abs(accuracy - manifest["metrics"]["accuracy"]) < 1e-6


KINDS = {"digits": "volcano", "plain": "plain", "indexed": "indexed"}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in TRAINED.items()]
PLAIN = (
    "exec python3 -m training.launch --nnodes=$NNODES --nproc-per-node=$NPROC_PER_NODE "
    "--node-rank=$VC_TASK_INDEX --master-addr=${VC_WORKER_HOSTS%%,*} --master-port=23456 "
    '-m training --run-dir="$RUN_DIR" "$@"'
)


def _new_run_and_other_kinds(config: dict[str, Any]) -> None:
    """Change the hyperparameters of the job `digits` and add jobs of two other kinds."""
    jobs = config["gpu-platform:training"]["jobs"]
    common = {key: value for key, value in jobs["digits"].items() if key != "hyperparameters"}
    jobs["digits"]["hyperparameters"] |= {**TRAINED, "seed": 7}
    jobs["indexed"] = {**common, "kind": "indexed", "hyperparameters": TRAINED}
    jobs["plain"] = {**common, "kind": "plain", "command": ["sh", "-c", PLAIN, "sh", *FLAGS]}


@dataclass
class Update:
    """An update to a new model version under load, with pods killed during the training."""

    first: str
    second: str
    killed: KilledPods
    status: dict[str, Any]
    seen: Seen


@pytest.fixture(scope="module")
def update(real: Platform) -> Iterator[Update]:
    first = real.run_name()
    older = frozenset(pod["metadata"]["name"] for pod in real.pods(first))
    killed = KilledPods(real, tuple(KINDS), older=older)
    real.edit(_new_run_and_other_kinds)
    with Load(f"{_model_url(real)}/infer", inference_request(), 2, 0.5) as load:
        load.during(lambda: None, at_least=10)
        with real.started("up") as process:
            killed.kill(process)
            status = _status_of_a_running_gang(killed, lambda: process.poll() is not None)
            killed.finish(process)
        real.shell("kubectl rollout status -n ml-dev deployment/digits --timeout=600s")
        second = real.run_name()
        version = _version(real, second)
        await_(
            lambda: set(load.during(lambda: None, at_least=20).versions) == {version},
            "only the new version responds",
        )
        yield Update(first, second, killed, status, load.seen())


def _status_of_a_running_gang(killed: KilledPods, ended: Callable[[], bool]) -> dict[str, Any]:
    """Return what `python -m gitops status` reports about the new run of `digits` in epoch 1."""
    found: dict[str, Any] = {}

    def training() -> bool:
        # The command reads the logs of all runs, so it is not used to wait for the epoch.
        if not ended() and not killed.has_finished_an_epoch("digits"):
            return False
        runs = json.loads(killed.platform.shell("python -m gitops status --json"))["runs"]
        found.update({run["name"]: run for run in runs if run["name"].startswith("digits-")})
        return ended() or any((run.get("progress") or {}).get("epoch") for run in _live(found))

    await_(training, "a training run")
    (run,) = _live(found)
    return run


def _live(runs: dict[str, Any]) -> list[dict[str, Any]]:
    return [run for run in runs.values() if run["state"] == "running"]


def test_status_reports_pods_progress_and_gpu_hours_of_a_running_gang(update: Update) -> None:
    live = update.status
    assert (live["name"], live["state"]) == (update.second, "running")
    assert live["pods"] == {"placed": 2, "wanted": 2}
    assert live["progress"]["epoch"] >= 1
    assert live["gpuHours"] > 0


def test_edited_hyperparameter_starts_a_new_run_and_keeps_the_old_one(
    real: Platform, update: Update, checkpoints: Path
) -> None:
    of_digits = {name for name in _jobs(real) if name.startswith("digits-")}
    assert of_digits == {update.first, update.second}
    assert (checkpoints / update.first / "export" / "manifest.json").exists()
    assert (checkpoints / update.second / "export" / "manifest.json").exists()


def test_new_model_version_is_rolled_out_under_load_without_lost_requests(
    real: Platform, update: Update
) -> None:
    assert update.seen.failed == {}
    assert set(update.seen.versions) == {
        _version(real, run) for run in (update.first, update.second)
    }


@pytest.mark.parametrize("job", KINDS)
def test_two_processes_in_pods_on_two_nodes_train_together(update: Update, job: str) -> None:
    update.killed.check_two_nodes(job)


@pytest.mark.parametrize("job", KINDS)
def test_run_resumes_from_its_checkpoint_after_a_pod_is_killed(update: Update, job: str) -> None:
    update.killed.check_resumed(job)


@pytest.mark.parametrize("job", ["digits", "plain"])
def test_volcano_restarted_the_gang(update: Update, job: str) -> None:
    status = update.killed.status("jobs.batch.volcano.sh", job)
    assert status["state"]["phase"] == "Completed"
    assert status["retryCount"] >= 1


def test_job_controller_replaced_the_killed_pod_and_its_peer(update: Update) -> None:
    status = update.killed.status("jobs.batch", "indexed")
    assert {c["type"] for c in status["conditions"] if c["status"] == "True"} >= {"Complete"}
    assert status["succeeded"] == 2
    before = {pod["metadata"]["uid"] for pod in update.killed.placed["indexed"]}
    assert not before & {pod["metadata"]["uid"] for pod in update.killed.pods()["indexed"]}


@pytest.mark.parametrize("job", KINDS)
def test_make_up_waits_for_every_job_kind_and_reports_its_result(update: Update, job: str) -> None:
    update.killed.check_reported(KINDS[job])


def test_logs_and_events_of_a_killed_gang_are_saved_with_its_checkpoints(
    real: Platform, update: Update, checkpoints: Path
) -> None:
    run = update.second
    failure = min((checkpoints / run / "failures").iterdir())
    records = {path: json.loads(path.read_text()) for path in failure.glob("*.json")}
    assert {record["pod"] for record in records.values()} == {f"{run}-master-0", f"{run}-worker-0"}
    present = {pod["metadata"]["uid"] for pod in real.pods(run)}
    assert present.isdisjoint(record["uid"] for record in records.values())
    for path, record in records.items():
        assert "Killing" in {event["reason"] for event in record["events"]}
        if record["pod"] == f"{run}-worker-0":
            assert (
                record["reason"] == "Deleted"
            )  # The pod was deleted forcibly, so its exit code is unknown.
        else:
            assert '"epoch": 1' in path.with_suffix(".log").read_text()
    recorder = f"-n {real.namespace} deploy/failure-recorder"
    assert '"epoch": 1' in real.shell(f"kubectl exec {recorder} -- python3 -m recorder show {run}")


def test_second_concurrent_command_is_rejected(real: Platform) -> None:
    real.hyperparameters(seed=8)
    with real.started("up") as first:
        holder = real.state / "real" / "lock.holder"
        await_(holder.exists, "the lock of the first command")
        output = real.make("up", status=2)
        assert "has been running since" in output
        os.killpg(first.pid, signal.SIGINT)
        first_output, _ = first.communicate(timeout=HANG_SECONDS)
    assert first.returncode != 0, first_output
    assert "interrupted" in first_output


def test_run_survives_node_and_cluster_failures_and_down_leaves_nothing(
    real: Platform, untouched: HostState
) -> None:
    """The interrupted update is completed, and its run is resumed twice."""
    with real.started("up") as process:
        await_(lambda: len(_unfinished(real)) == 1, "a new run")
        (run,) = _unfinished(real)
        real.await_epoch(run, 3)
        _node_process("gpu-node-1").kill()
        await_(lambda: "resume" in [line["event"] for line in real.logs(run)], "a resumed run")
        assert process.poll() is None, process.communicate()[0]
        rejected_before = _pods_rejected_by_kubelets(real)
        record = json.loads((real.state / "real" / "cluster.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)
    real.make("down")
    assert HostState.now().added_since(untouched) == {}
    assert "(correct)" in real.make("up")
    assert real.run_name() == run
    assert "resume" in [line["event"] for line in real.logs(run)]
    assert _pods_rejected_by_kubelets(real) <= rejected_before, (
        "a kubelet rejected new pods after the restart"
    )


def _pods_rejected_by_kubelets(real: Platform) -> set[str]:
    """Return pods that a kubelet rejected, for example because their GPU was not yet registered."""
    pods = real.kubectl("get", "pods", "-n", real.namespace)["items"]
    reason = "UnexpectedAdmissionError"
    return {pod["metadata"]["uid"] for pod in pods if pod["status"].get("reason") == reason}


def _resources(real: Platform) -> set[tuple[str, str, str]]:
    """Return identity and generation of the stack's objects in its namespace."""
    kinds = "jobs.batch.volcano.sh,jobs.batch,deployments,services,configmaps,pvc,quota"
    found = real.kubectl("get", kinds, "-n", real.namespace)["items"]
    return {
        (item["kind"], item["metadata"]["name"], str(item["metadata"].get("generation")))
        for item in found
    }


def _jobs(real: Platform) -> dict[str, str]:
    """Return the phases of the Volcano Jobs by name."""
    found = real.kubectl("get", "jobs.batch.volcano.sh", "--all-namespaces")["items"]
    return {
        item["metadata"]["name"]: item.get("status", {}).get("state", {}).get("phase", "")
        for item in found
    }


def _unfinished(real: Platform) -> list[str]:
    return [name for name, phase in _jobs(real).items() if phase != "Completed"]


def _model_url(real: Platform) -> str:
    service = real.outputs()["inference"]["digits"]
    found = real.kubectl("get", "service", service["service"], "-n", service["namespace"])
    spec = found["spec"]
    port = spec["ports"][0]["port"]
    return f"http://{spec['clusterIP']}:{port}/v2/models/{service['model']}"


def _version(real: Platform, run: str) -> str:
    """Return the short name of a run's weights."""
    export = real.state / "real" / "volumes" / "checkpoints" / run / "export"
    return str(json.loads((export / "manifest.json").read_text())["weights"]["sha256"])[:12]


def _node_process(node: str) -> psutil.Process:
    """Return PID 1 of a node's namespaces, as seen from the host."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "devcluster.nodes.init" in command and node in command and "unshare" not in command[0]:
            # A cached process may have the identity of an earlier one with the same ID.
            return psutil.Process(process.pid)
    raise AssertionError(f"{node} has no process")
