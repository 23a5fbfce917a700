"""Every process of the cluster itself is killed while a gang trains and another is submitted."""

from collections.abc import Callable

import psutil
import pytest

from tests.faults.arena import Arena, Gang

Find = Callable[[Arena], list[psutil.Process]]


def service(name: str) -> Find:
    """On both nodes."""
    return lambda arena: [arena.units.service(node, name) for node in ("gpu-node-0", "gpu-node-1")]


def component(name: str) -> Find:
    return lambda arena: [arena.units.component(name)]


def pods(namespace: str, label: str) -> Find:
    """Process 1 of the one container of each pod."""

    def found(arena: Arena) -> list[psutil.Process]:
        listed = arena.get("pods", "-n", namespace, "-l", label)["items"]
        statuses = [status for pod in listed for status in pod["status"]["containerStatuses"]]
        ids = [status["containerID"].rpartition("/")[2] for status in statuses]
        return [arena.units.container(container)[0] for container in ids]

    return found


FAULTS = {
    "kubelet on both nodes": service("kubelet"),
    "containerd on both nodes": service("containerd"),
    "kube-proxy on both nodes": service("kube-proxy"),
    "API server": component("kube-apiserver"),
    "etcd": component("etcd"),
    "controller manager": component("kube-controller-manager"),
    "Volcano's scheduler": pods("volcano-system", "app=volcano-scheduler"),
    "Volcano's controllers": pods("volcano-system", "app=volcano-controller"),
    "device plugin on both nodes": pods("gpu-system", "app.kubernetes.io/name"),
}
SHORT = {"etcd"}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=[pytest.mark.short] if name in SHORT else []) for name in FAULTS],
)
def test_a_killed_part_of_the_cluster_disturbs_nobody(arena: Arena, fault: str) -> None:
    def kill(gang: Gang) -> None:
        found = FAULTS[fault](arena)
        assert found
        for process in found:
            process.kill()

    arena.survive(fault, kill, new_gang=True)
