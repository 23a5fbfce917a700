"""A node is drained, stops reporting, or loses its power."""

import time

from tests.cluster.platform import await_
from tests.faults.arena import Arena
from tests.faults.gangs import Gang, slow_steps
from tests.faults.losses import lost_by_one_server
from tests.faults.units import pause

NODE = "gpu-node-1"


def test_run_and_service_survive_a_drained_node(arena: Arena) -> None:
    def drain(gang: Gang) -> None:
        options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=600s"]
        arena.kubectl("drain", NODE, *options)
        time.sleep(5)
        arena.kubectl("uncordon", NODE)

    try:
        arena.survive("node drained, then uncordoned", drain, intervals=1)
    finally:
        arena.kubectl("uncordon", NODE)


def test_run_and_service_survive_a_node_that_stops_reporting(arena: Arena) -> None:
    def stop_reporting(gang: Gang) -> None:
        kubelet = arena.units.service(NODE, "kubelet")
        pause(kubelet)
        try:
            await_(lambda: reports(arena) != "True", f"{NODE} is not Ready")
            time.sleep(15)  # The node's pods are evicted in the meantime.
        finally:
            kubelet.resume()

    arena.survive(
        "node NotReady until its pods are evicted",
        stop_reporting,
        intervals=1,
        change=slow_steps(0.3),
    )


def test_run_and_service_survive_a_power_loss_of_a_node(arena: Arena) -> None:
    def kill(gang: Gang) -> None:
        arena.units.node(NODE).kill()

    arena.survive("node killed, back after one second", kill, intervals=1, lost=lost_by_one_server)


def reports(arena: Arena) -> str:
    conditions = arena.get("node", NODE)["status"]["conditions"]
    return str({c["type"]: c["status"] for c in conditions}["Ready"])
