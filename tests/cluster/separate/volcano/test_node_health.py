"""Nodes with unhealthy simulated GPUs, under the real controller with only its own rights."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.node_health import NodeHealthArgs, manifests
from infra.pods import GpuNodes
from infra.settings.node_health import NodeHealthSettings
from tests.cluster.gangs import VOLCANO, placed
from tests.cluster.platform import ROOT, await_
from tests.cluster.scheduling import GPU, NAMESPACE, Scheduling, stack

HEALTH = NodeHealthSettings(fault_seconds=2, settle_seconds=4, slow_reports=2)


def set_allocatable_gpus(volcano: Scheduling, node: str, gpus: int) -> None:
    """Set a node's allocatable GPUs, which the kubelet reduces if some are unhealthy."""
    patch = json.dumps({"status": {"allocatable": {GPU: str(gpus)}}})
    volcano.kubectl("patch", "node", node, "--subresource=status", f"--patch={patch}")


def node(volcano: Scheduling, name: str) -> dict[str, Any]:
    return dict(json.loads(volcano.kubectl("get", "node", name, "--output=json")))


def condition(volcano: Scheduling, name: str) -> dict[str, str]:
    found = node(volcano, name)["status"]["conditions"]
    return next((each for each in found if each["type"] == "GpuUnhealthy"), {})


def cordoned(volcano: Scheduling) -> set[str]:
    items = json.loads(volcano.kubectl("get", "nodes", "--output=json"))["items"]
    return {each["metadata"]["name"] for each in items if each["spec"].get("unschedulable")}


@pytest.fixture
def controller(volcano: Scheduling, tmp_path: Path) -> Iterator[Scheduling]:
    """The cluster with the controller, which has only the rights of its service account."""
    args = NodeHealthArgs(
        health=HEALTH, namespace=NAMESPACE, image="unused", gpu_nodes=GpuNodes(resource=GPU)
    )
    objects = manifests(args)
    pod = objects.pop("deployment")["spec"]["template"]["spec"]
    volcano.apply(*objects.values())
    token = volcano.kubectl("create", "token", "node-health", "--namespace=gpu-node-health")
    config = json.loads(volcano.kubectl("config", "view", "--raw", "--minify", "--output=json"))
    config["users"][0]["user"] = {"token": token.strip()}
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    command = [sys.executable, *pod["containers"][0]["command"][1:], "--interval=0.5"]
    output = tmp_path / "log"
    log = output.open("w")
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "KUBECONFIG": str(file)}, stdout=log, stderr=log
    )

    def watching() -> bool:
        assert process.poll() is None, output.read_text()
        # Pods that fail earlier are deleted before the controller can read their reports.
        return "collecting reports" in output.read_text()

    try:
        await_(watching, "the start of the controller")
        yield volcano
        assert process.poll() is None, output.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=500)
        log.close()
        sys.stdout.write(output.read_text())
        for number in range(3):
            set_allocatable_gpus(volcano, f"simulated-{number}", 8)
            volcano.kubectl("uncordon", f"simulated-{number}")
            volcano.kubectl(
                "annotate", "node", f"simulated-{number}", "gpu-platform.dev/gpu-unhealthy-"
            )


def test_gang_leaves_a_node_with_an_unhealthy_gpu_until_it_recovers(controller: Scheduling) -> None:
    controller.submit(stack({"run": {"queue": "vision", "nodes": 2}}, **VOLCANO), "run")
    placed(controller, run=2)
    faulty, healthy = controller.nodes("run")
    [free] = {f"simulated-{number}" for number in range(3)} - {faulty, healthy}
    set_allocatable_gpus(controller, faulty, 7)
    await_(lambda: cordoned(controller) == {faulty}, "the node is cordoned")
    await_(lambda: controller.nodes("run") == sorted([healthy, free]), "the gang has moved")
    found = condition(controller, faulty)
    assert (found["status"], found["reason"]) == ("True", "DevicesUnhealthy")
    assert found["message"] == "the device plugin offers 7 of 8 GPUs"
    events = json.loads(
        controller.kubectl(
            "get", "events", "--field-selector", f"involvedObject.name={faulty}", "--output=json"
        )
    )
    assert "GpuUnhealthy" in {each["reason"] for each in events["items"]}
    set_allocatable_gpus(controller, faulty, 8)
    await_(lambda: not cordoned(controller), "the node has returned")
    await_(lambda: condition(controller, faulty)["status"] == "False", "condition is over")
    assert controller.nodes("run") == sorted([healthy, free])


def test_controller_cordons_at_most_one_node_and_ignores_nodes_cordoned_by_others(
    controller: Scheduling,
) -> None:
    controller.kubectl("cordon", "simulated-0")
    for number in range(3):
        set_allocatable_gpus(controller, f"simulated-{number}", 0)
    await_(lambda: len(cordoned(controller)) == 2, "one more node is cordoned")
    for number in range(3):
        set_allocatable_gpus(controller, f"simulated-{number}", 8)
    await_(lambda: cordoned(controller) == {"simulated-0"}, "only that node remains")


def test_node_reported_as_slow_by_two_starts_is_cordoned(controller: Scheduling) -> None:
    controller.submit(stack({"run": {"queue": "vision", "nodes": 2}}, **VOLCANO), "run")
    placed(controller, run=2)
    slow = controller.nodes("run")[0]
    for start in range(2):
        await_(lambda: len(controller.nodes("run")) == 2, "the gang is placed")
        assert not cordoned(controller), start
        controller.fail(
            controller.pods("run")[0], 75, message=f"slow node {slow}: 2.1 GB/s of 11.8"
        )
        await_(lambda: len(controller.nodes("run")) == 2, "the gang is placed again")
    await_(lambda: cordoned(controller) == {slow}, "the node is cordoned")
    await_(lambda: bool(condition(controller, slow)), "the node has its condition")
    assert condition(controller, slow)["reason"] == "SlowInGangs"
    controller.kubectl("uncordon", slow)
    await_(lambda: condition(controller, slow)["status"] == "False", "it is checked")
