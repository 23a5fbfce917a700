"""A node with a slow CPU is detected before the first step and cordoned; the gang moves away.

Two of the gang's three pods are on the other node, so that one of three processes is slow.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.nodes.cgroups import ROOT as CGROUPS
from tests.cluster.platform import Platform, await_

GOOD, SLOW = "gpu-node-0", "gpu-node-1"
GPU = "nvidia.com/gpu"
CORES = 0.08
"""CPU limit of the slow node: low, because a busy host slows the other node as well."""
PERIOD = 100_000
"""Period of the CPU quota in microseconds, Kubernetes' default."""


def with_node_health(config: dict[str, Any]) -> None:
    config["gpu-platform:tenancy"]["groups"] = {"members": ["researchers"]}
    config["gpu-platform:gpu"]["node_health"] = {"slow_reports": 1}


@pytest.fixture
def platform(real: Platform) -> Iterator[Platform]:
    """The stack with the controller that cordons nodes. The former stack is restored at the end."""
    before = real.stack_file.read_text()
    real.reset()
    real.edit(with_node_health)
    real.make("up")
    yield real
    real.shell(f"kubectl uncordon {SLOW}")
    real.stack_file.write_text(before)
    real.make("up")


@contextlib.contextmanager
def slow(node: str) -> Iterator[None]:
    """Limit the processes of all pods of a node."""
    groups = (*CGROUPS.glob("cpu/gpu-platform-real"), *CGROUPS.glob("gpu-platform-real"))
    pods = min(groups[0].glob(f"{node}/**/kubepods"), key=lambda path: len(path.parts))
    file, limit, unlimited = pods / "cpu.max", f"{int(CORES * PERIOD)} {PERIOD}", f"max {PERIOD}"
    if not file.exists():
        file, limit, unlimited = pods / "cpu.cfs_quota_us", str(int(CORES * PERIOD)), "-1"
    file.write_text(limit)
    try:
        yield
    finally:
        file.write_text(unlimited)


def free_gpus(platform: Platform, node: str) -> int:
    pods = platform.kubectl("get", "pods", "-A", f"--field-selector=spec.nodeName={node}")["items"]
    running = (pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running"))
    limits = (c["resources"].get("limits", {}) for p in running for c in p["spec"]["containers"])
    total = int(platform.kubectl("get", "node", node)["status"]["allocatable"][GPU])
    return total - sum(int(each.get(GPU, 0)) for each in limits)


@contextlib.contextmanager
def filled(platform: Platform, node: str, left: int) -> Iterator[None]:
    """Occupy the GPUs of a node except `left` of them."""
    service = platform.outputs()["inference"]["digits"]
    deployment = f"deploy/{service['service']}"
    template = platform.kubectl("get", deployment, "-n", service["namespace"])["spec"]["template"]
    container = {
        "name": "filler",
        "image": template["spec"]["containers"][0]["image"],
        "command": ["sleep", "3600"],
        "resources": {"limits": {GPU: str(free_gpus(platform, node) - left), "memory": "64Mi"}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"filler-{node}", "namespace": "default"},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    }
    file = platform.checkout / f"filler-{node}.yaml"
    file.write_text(yaml.safe_dump(pod))
    platform.shell(f"kubectl apply -f {file}")
    wait = "kubectl wait --for=condition=Ready --timeout=600s"
    platform.shell(f"{wait} -n default pod/filler-{node}")
    try:
        yield
    finally:
        platform.shell(f"kubectl delete -f {file} --ignore-not-found --timeout=600s")


def submitted(platform: Platform) -> str:
    """Submit a gang of three pods, and return its name."""
    digits = yaml.safe_load(platform.stack_file.read_text())["config"]["gpu-platform:training"]
    job = digits["jobs"]["digits"] | {"nodes": 3, "strict_spread": False}
    job["hyperparameters"] = job["hyperparameters"] | {"preflight": "strict", "seed": 3}
    file = platform.checkout / "slow.yaml"
    file.write_text(yaml.safe_dump({"slow": job}))
    run = f"python -m gpu_platform run {file} --namespace {platform.namespace}"
    platform.shell(run)
    runs = platform.kubectl("get", "jobs.batch.volcano.sh", "-n", platform.namespace)["items"]
    (name,) = (each["metadata"]["name"] for each in runs if "slow-" in each["metadata"]["name"])
    return str(name)


def nodes_of(platform: Platform, run: str) -> list[str]:
    return sorted(str(pod["spec"].get("nodeName")) for pod in platform.pods(run))


def failures(checkpoints: Path, run: str) -> str:
    """Return the termination messages and logs of the run that the failure recorder saved."""
    return "\n".join(path.read_text() for path in checkpoints.glob(f"{run}/failures/*/*"))


def test_gang_reports_a_slow_node_and_trains_on_the_other_one(
    platform: Platform, checkpoints: Path
) -> None:
    with filled(platform, SLOW, left=1), slow(SLOW):
        with filled(platform, GOOD, left=2):
            run = submitted(platform)
            wanted = [GOOD, GOOD, SLOW]
            await_(lambda: nodes_of(platform, run) == wanted, f"pods on {wanted}")
        await_(lambda: cordoned(platform), f"{SLOW} is cordoned")
        await_(lambda: nodes_of(platform, run) == [GOOD] * 3, f"the gang is on {GOOD}")
        await_(lambda: finished(platform, run), "the gang has finished training")
    conditions = platform.kubectl("get", "node", SLOW)["status"]["conditions"]
    (found,) = (each for each in conditions if each["type"] == "GpuUnhealthy")
    assert (found["status"], found["reason"]) == ("True", "SlowInGangs")
    message = f"slow node {SLOW}: matmul"
    await_(lambda: message in failures(checkpoints, run), "the failure is recorded")


def cordoned(platform: Platform) -> bool:
    return bool(platform.kubectl("get", "node", SLOW)["spec"].get("unschedulable"))


def finished(platform: Platform, run: str) -> bool:
    job = platform.kubectl("get", "jobs.batch.volcano.sh", run, "-n", platform.namespace)
    phase = job["status"]["state"]["phase"]
    assert phase not in ("Failed", "Aborted", "Terminated"), json.dumps(job["status"])
    return bool(phase == "Completed")
