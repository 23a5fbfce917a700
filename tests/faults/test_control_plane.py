"""Killed processes of the cluster, while a gang trains and another one is submitted."""

from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.cluster.platform import await_
from tests.faults.arena import Arena
from tests.faults.gangs import Gang, slow_steps
from tests.faults.losses import lost_by_one_server, no_losses

Find = Callable[[Arena], list[psutil.Process]]


def service(name: str) -> Find:
    """Return a service's processes on both nodes."""
    return lambda arena: [arena.units.service(node, name) for node in ("gpu-node-0", "gpu-node-1")]


def component(name: str) -> Find:
    return lambda arena: [arena.units.component(name)]


def pods(namespace: str, label: str) -> Find:
    """Return PID 1 of each pod's only container."""

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


@pytest.fixture(scope="module")
def gang(arena: Arena, request: pytest.FixtureRequest) -> Iterator[Gang]:
    """Yield a gang that trains while all components are killed in turn."""
    faults = sum(item.path == request.path for item in request.session.items)
    with arena.gang("control-plane", slow_steps(0.1 * faults), epochs=0.5) as made:
        yield made


@pytest.mark.parametrize("fault", FAULTS)
def test_a_killed_cluster_component_does_not_disturb_training(
    arena: Arena, gang: Gang, fault: str
) -> None:
    def kill() -> None:
        found = FAULTS[fault](arena)
        assert found
        for process in found:
            process.kill()

    name, _, nodes = fault.partition(" on ")
    what = f"{name} killed on {nodes}" if nodes else f"{name} killed"
    # A restarted kubelet may reject a server's pod: kubernetes/kubernetes#133382.
    arena.unaffected(what, gang, kill, lost_by_one_server if name == "kubelet" else no_losses)


def test_losses_of_the_disturbed_gang_equal_those_of_an_undisturbed_run(
    arena: Arena, gang: Gang
) -> None:
    gang.await_end()
    assert not gang.timeline.events("resume")
    arena.losses.check(gang.timeline.events())
    await_(lambda: arena.phase(gang.name) == "Completed", "the job is Completed")
