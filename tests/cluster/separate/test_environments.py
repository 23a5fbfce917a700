"""Staging and prod at their real sizes, on simulated nodes under real Volcano."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.distributed.run import parse_args

from tests.cluster.environments import adapt_stack_file, add_nodes, configure_scheduler
from tests.cluster.platform import Platform, await_
from training.gang.world import World, read_world

TRAINING = "NVIDIA-A800-SXM4-80GB"
SERVING = "NVIDIA-L4"
RDMA = {"rdma/hca": "63"}


class Environment:
    """A named stack on a separate cluster, initially without nodes."""

    def __init__(self, platform: Platform, name: str) -> None:
        self.platform, self._name = platform, name
        configure_scheduler(platform, name)
        adapt_stack_file(platform.checkout, name)
        self._devcluster("up --simulated-nodes=0")

    def up(self) -> None:
        pack = f"--policy-pack policies --policy-pack-config policies/config/{self._name}.json"
        self.platform.shell(
            f"pulumi stack init {self._name} && "
            f"pulumi up --stack {self._name} --yes --skip-preview {pack}"
        )

    def down(self) -> None:
        self._devcluster("down --purge")

    def outputs(self) -> dict[str, Any]:
        shown = self.platform.shell(f"pulumi stack output --json --stack {self._name}")
        return dict(json.loads(shown))

    def all(self, kind: str, *options: str) -> list[dict[str, Any]]:
        found = self.platform.kubectl("get", kind, "-n", f"ml-{self._name}", *options)
        return list(found["items"])

    def pods(self, label: str) -> list[dict[str, Any]]:
        return self.all("pods", "-l", label)

    def _devcluster(self, command: str) -> None:
        self.platform.run(f".venv/bin/python -m devcluster {command} --nodes simulated")


@contextmanager
def _environment(factory: pytest.TempPathFactory, name: str) -> Iterator[Environment]:
    folder = factory.mktemp(name)
    platform = Platform.copied(folder, "simulated")
    environment = Environment(platform, name)
    try:
        yield environment
    finally:
        environment.down()


@pytest.fixture(scope="module")
def prod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """The prod stack on a cluster without the fourth node of the training pool."""
    with _environment(tmp_path_factory, "prod") as environment:
        add_nodes(environment.platform, range(3), TRAINING, **RDMA)
        add_nodes(environment.platform, range(10, 12), SERVING)
        environment.up()
        yield environment


def _node(pod: dict[str, Any]) -> str | None:
    name: str | None = pod["spec"].get("nodeName")
    return name


def _gang(prod: Environment) -> list[dict[str, Any]]:
    return prod.pods("gpu-platform.dev/workload=training")


def _is_unschedulable(pod: dict[str, Any]) -> bool:
    """Return whether the scheduler has found no node for the pod."""
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return conditions.get("PodScheduled") == "False"


def test_no_pod_of_a_four_node_gang_starts_on_three_free_nodes(prod: Environment) -> None:
    await_(
        lambda: [_is_unschedulable(pod) for pod in _gang(prod)] == [True] * 4,
        "four unschedulable pods",
    )
    observed_until = time.monotonic() + 3
    while time.monotonic() < observed_until:
        assert [_node(pod) for pod in _gang(prod)] == [None] * 4


def test_replicas_wait_for_a_model_on_serving_nodes(prod: Environment) -> None:
    def pods() -> list[dict[str, Any]]:
        return prod.pods("gpu-platform.dev/workload=inference")

    await_(lambda: len(pods()) == 3 and all(map(_node, pods())), "three bound pods")
    assert {_node(pod) for pod in pods()} == {"simulated-10", "simulated-11"}
    (quota,) = prod.all("resourcequota")
    assert quota["status"]["used"]["requests.nvidia.com/gpu"] == "35"
    assert {claim["status"]["phase"] for claim in prod.all("pvc")} == {"Bound"}


def test_whole_gang_starts_once_a_fourth_node_is_added(prod: Environment) -> None:
    add_nodes(prod.platform, range(3, 4), TRAINING, **RDMA)
    await_(lambda: all(_node(pod) for pod in _gang(prod)), "four bound pods")
    assert sorted(str(_node(pod)) for pod in _gang(prod)) == [f"simulated-{n}" for n in range(4)]


def test_all_32_ranks_have_the_same_master_address(prod: Environment) -> None:
    worlds = [world for pod in _gang(prod) for world in _worlds(pod)]
    run = prod.outputs()["runs"]["cifar"]["name"]
    assert sorted(world.rank for world in worlds) == list(range(32))
    assert {world.size for world in worlds} == {32}
    assert {world.master for world in worlds} == {f"{run}-master-0.{run}:23456"}


def _worlds(pod: dict[str, Any]) -> list[World]:
    """Return the distributed variables of each process that torchrun starts in the pod."""
    (container,) = pod["spec"]["containers"]
    env = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    command = [re.sub(r"\$\((\w+)\)", lambda m: env[m[1]], part) for part in container["command"]]
    asked = parse_args(command[command.index("training.launch") + 1 :])
    each, nodes = int(asked.nproc_per_node), int(asked.nnodes)
    return [
        read_world(
            {
                "RANK": str(asked.node_rank * each + local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(nodes * each),
                "MASTER_ADDR": asked.master_addr,
                "MASTER_PORT": str(asked.master_port),
            }
        )
        for local in range(each)
    ]


def test_jobs_and_model_in_staging_share_one_node(tmp_path_factory: pytest.TempPathFactory) -> None:
    with _environment(tmp_path_factory, "staging") as staging:
        add_nodes(staging.platform, range(1), TRAINING)
        staging.up()
        selector = "gpu-platform.dev/workload"
        await_(lambda: len(staging.pods(selector)) == 3, "three pods")
        await_(lambda: all(_node(pod) for pod in staging.pods(selector)), "bound pods")
        pods = staging.pods(selector)
        gpus = [p["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for p in pods]
        assert sorted(gpus) == ["1", "2", "4"]
        queues = {
            value
            for pod in pods
            for name, value in pod["metadata"].get("annotations", {}).items()
            if name.endswith("volcano.sh/queue-name")
        }
        assert queues == {"staging-vision", "staging-language"}
        (scaler,) = staging.all("hpa")
        assert scaler["spec"]["scaleTargetRef"]["name"] == "cifar"
