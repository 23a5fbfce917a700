"""The whole story on real nodes, in the order in which a user would live it."""

import contextlib
import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from tests.cluster.host_state import HostState
from tests.cluster.platform import Platform, await_, created
from training.data import held_out_digits


def test_make_up_trains_serves_and_predicts(real: Platform) -> None:
    output = real.make("up", timeout=3000)
    assert created(output) > 20
    accuracy = re.search(r"accuracy (\d+\.\d+)%", output)
    assert accuracy is not None
    assert float(accuracy[1]) >= 97.0
    assert "(right)" in output


def test_gpus_were_advertised_by_the_stacks_device_plugin(real: Platform) -> None:
    nodes = real.kubectl("get", "nodes")["items"]
    assert {node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes} == {"4"}


def test_the_gang_ran_on_two_nodes_with_a_gpu_each(real: Platform) -> None:
    pods = real.pods(real.run_name())
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    for pod in pods:
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == "1"


def test_the_shell_of_make_env_reaches_docker_and_the_serving_pods_shared_memory(
    real: Platform,
) -> None:
    assert "gpu-node-0" in real.shell("docker info")
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
    # Debian compiles what it wants of its own.
    ours = isinstance(cached, str) and not cached.startswith("/usr/lib/")
    if ours and not pathlib.Path(cached).exists():
        print(name)
"""


def test_no_process_has_to_compile_what_it_imports(real: Platform) -> None:
    service = real.outputs()["inference"]["digits"]
    pod = f"-n {service['namespace']} deploy/{service['service']}"
    assert real.shell(f"kubectl exec {pod} -- python3 -c {shlex.quote(UNCOMPILED)}").split() == []


def test_a_second_up_changes_nothing(real: Platform) -> None:
    before = _resources(real)
    assert "unchanged" in real.make("up")
    assert _resources(real) == before


def test_the_server_is_as_accurate_as_the_training_said(real: Platform, checkpoints: Path) -> None:
    run = real.run_name()
    manifest = json.loads((checkpoints / run / "export" / "manifest.json").read_text())
    url = _model_url(real)
    described = httpx.get(url).json()["inputs"][0]
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
        answer = httpx.post(f"{url}/infer", json={"inputs": [tensor]}, timeout=30)
        outputs = {output["name"]: output for output in answer.json()["outputs"]}
        answers += outputs["class"]["data"]
    accuracy = float((np.asarray(answers) == labels).mean())
    assert abs(accuracy - manifest["metrics"]["accuracy"]) < 1e-6


def test_a_configuration_that_breaks_a_rule_is_refused_and_nothing_changes(real: Platform) -> None:
    original = real.stack_file.read_text()
    before = _resources(real)
    real.edit(
        lambda config: config["gpu-platform:images"]["workloads"].update(
            training={"reference": f"example.com/elsewhere/training@sha256:{'0' * 64}"}
        )
    )
    output = real.make("up", status=2)
    assert "[mandatory]" in output
    assert "image-registry-allowed" in output
    assert "example.com/elsewhere/training" in output
    assert "Traceback" not in output
    assert _resources(real) == before
    real.stack_file.write_text(original)


def test_a_broken_setting_is_one_plain_error(real: Platform) -> None:
    original = real.stack_file.read_text()
    real.edit(lambda config: config["gpu-platform:training"]["jobs"]["digits"].update(nodes=0))
    output = real.make("up", status=2)
    assert "gpu-platform:training.jobs.digits.nodes" in output
    assert "Traceback" not in output
    real.stack_file.write_text(original)


def test_an_edited_hyperparameter_is_one_new_run_that_survives_a_killed_pod(
    real: Platform, checkpoints: Path
) -> None:
    first, namespace = real.run_name(), real.outputs()["namespace"]
    before = _jobs(real)
    real.hyperparameters(seed=7, step_delay=0.12)
    process = real.start("up")
    await_(lambda: len(_jobs(real) - before) == 1, 240, "a new run")
    (second,) = _jobs(real) - before
    real.await_epoch(second, 3)
    told = json.loads(real.shell("python -m gitops status --json"))
    (live,) = (run for run in told["runs"] if run["name"] == second)
    assert (live["state"], live["pods"]) == ("running", {"placed": 2, "wanted": 2})
    assert live["progress"]["epoch"] >= 3
    assert live["gpuHours"] > 0
    real.shell(f"kubectl delete pod -n {namespace} {second}-worker-0 --grace-period=0 --force")
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    events = [line["event"] for line in real.logs(second)]
    assert "resume" in events
    assert "finished" in events
    assert first in _jobs(real)
    assert (checkpoints / first / "export" / "manifest.json").exists()
    assert (checkpoints / second / "export" / "manifest.json").exists()


def test_last_lines_and_events_of_the_killed_gang_lie_beside_its_checkpoints(
    real: Platform, checkpoints: Path
) -> None:
    run, namespace = real.run_name(), real.outputs()["namespace"]
    failure = min((checkpoints / run / "failures").iterdir())
    told = {path: json.loads(path.read_text()) for path in failure.glob("*.json")}
    assert {record["pod"] for record in told.values()} == {f"{run}-master-0", f"{run}-worker-0"}
    present = {pod["metadata"]["uid"] for pod in real.pods(run)}
    assert present.isdisjoint(record["uid"] for record in told.values())
    for path, record in told.items():
        assert "Killing" in {event["reason"] for event in record["events"]}
        if record["pod"] == f"{run}-worker-0":
            assert record["reason"] == "Deleted"  # by force: nobody saw how it ended
        else:
            assert '"epoch": 3' in path.with_suffix(".log").read_text()
    show = f"kubectl exec -n {namespace} deploy/failure-recorder -- python3 -m recorder show {run}"
    assert '"epoch": 3' in real.shell(show)


def test_a_killed_node_comes_back_and_the_run_resumes(real: Platform) -> None:
    before = _jobs(real)
    real.hyperparameters(seed=8)
    process = real.start("up")
    await_(lambda: len(_jobs(real) - before) == 1, 240, "a new run")
    (run,) = _jobs(real) - before
    real.await_epoch(run, 3)
    _node_process(real, "gpu-node-1").kill()
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    assert "resume" in [line["event"] for line in real.logs(run)]


def test_two_at_once_the_second_says_so_and_stops(real: Platform) -> None:
    real.hyperparameters(seed=9)
    first = real.start("up")
    holder = real.state / "real" / "lock.holder"
    await_(holder.exists, 120, "the first command at work")
    output = real.make("up", status=2)
    assert "is at work since" in output
    os.killpg(first.pid, signal.SIGINT)
    said, _ = first.communicate(timeout=60)
    assert first.returncode != 0, said
    assert "interrupted" in said


def test_an_interrupted_up_is_gone_on_with(real: Platform) -> None:
    output = real.make("up")
    assert "(right)" in output


def test_down_leaves_nothing_even_after_the_cluster_was_killed_in_training(
    real: Platform, untouched: HostState
) -> None:
    before = _jobs(real)
    real.hyperparameters(seed=10)
    process = real.start("up")
    await_(lambda: len(_jobs(real) - before) == 1, 240, "a new run")
    (run,) = _jobs(real) - before
    real.await_epoch(run, 2)
    record = json.loads((real.state / "real" / "cluster.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    real.make("down")
    assert HostState.now().added_since(untouched) == {}


def test_up_after_that_resumes_the_run_from_its_checkpoint(real: Platform) -> None:
    output = real.make("up")
    assert "(right)" in output
    assert "resume" in [line["event"] for line in real.logs(real.run_name())]


def test_a_fine_tune_of_ones_own_is_started_by_accelerate(
    real: Platform, checkpoints: Path
) -> None:
    base = real.outputs()["images"]["training"]

    def add(config: dict[str, Any]) -> None:
        config["gpu-platform:images"]["workloads"]["diffusion"] = {
            "build": {
                "dockerfile": "examples/diffusion/Dockerfile",
                "base_image": base,
                "sources": ["examples/diffusion", "requirements/diffusion.txt"],
            }
        }
        processes = ["--num_machines=1", "--num_processes=2", "--main_process_port=0"]
        accelerate = ["training.launch_accelerate", "--multi_gpu", *processes]
        accelerate += ["--mixed_precision=no", "--dynamo_backend=no"]
        program = ["-m", "examples.diffusion", "--run-dir=$(RUN_DIR)", "--steps=20"]
        config["gpu-platform:training"]["jobs"]["fine-tune"] = {
            "queue": "research",
            "image": "diffusion",
            "command": ["python3", "-m", *accelerate, *program],
            "gpus_per_node": 2,
            "cpu": "200m",
            "memory": "2Gi",
            "omp_threads": 1,
        }

    real.edit(add)
    real.make("up")
    run = real.run_name("fine-tune")
    [start, *_, finished] = real.logs(run)
    assert (start["event"], start["processes"]) == ("start", 2)
    assert finished["event"] == "finished"
    assert finished["held_out_loss"] < start["held_out_loss"]
    assert any((checkpoints / run / "export").iterdir())


def test_down_leaves_nothing_and_checkpoints_stay(
    real: Platform, untouched: HostState, checkpoints: Path
) -> None:
    run = real.run_name()
    real.make("down")
    assert HostState.now().added_since(untouched) == {}
    assert (checkpoints / run / "export" / "manifest.json").exists()


def test_purge_removes_the_checkpoints(real: Platform, checkpoints: Path) -> None:
    real.make("down", "PURGE=1")
    assert not checkpoints.exists()


def _resources(real: Platform) -> set[tuple[str, str, str]]:
    """Identity and generation of what the stack owns in its namespace."""
    kinds = "jobs.batch.volcano.sh,jobs.batch,deployments,services,configmaps,pvc,quota"
    found = real.kubectl("get", kinds, "-n", real.outputs()["namespace"])["items"]
    return {
        (item["kind"], item["metadata"]["name"], str(item["metadata"].get("generation")))
        for item in found
    }


def _jobs(real: Platform) -> set[str]:
    found = real.kubectl("get", "jobs.batch.volcano.sh", "--all-namespaces")["items"]
    return {item["metadata"]["name"] for item in found}


def _model_url(real: Platform) -> str:
    service = real.outputs()["inference"]["digits"]
    found = real.kubectl("get", "service", service["service"], "-n", service["namespace"])
    spec = found["spec"]
    port = spec["ports"][0]["port"]
    return f"http://{spec['clusterIP']}:{port}/v2/models/{service['model']}"


def _node_process(real: Platform, node: str) -> psutil.Process:
    """Process 1 of a node's namespaces, as the host sees it."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "devcluster.node_init" in command and node in command and "unshare" not in command[0]:
            return process
    raise AssertionError(f"{node} has no process")


def test_a_kill_of_everything_while_the_chart_is_installed_is_gone_on_with(real: Platform) -> None:
    process = real.start("up")
    events = real.state / "real" / "logs" / "pulumi-up.events"
    try:
        begun = b"volcano-release"
        await_(lambda: events.exists() and begun in events.read_bytes(), 240, "the chart")
    finally:
        everything = [
            process.pid,
            *(c.pid for c in psutil.Process(process.pid).children(recursive=True)),
        ]
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
    output = real.make("up")
    assert "(right)" in output
    real.make("down", "PURGE=1")
