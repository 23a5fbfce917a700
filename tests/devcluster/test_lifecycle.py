"""The start of a cluster as observed from outside, with a placeholder process."""

import errno
import io
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from devcluster import DevclusterError, host, launcher, lifecycle
from devcluster.launcher import Record
from devcluster.lifecycle import Cluster
from devcluster.operators import Requirements
from devcluster.paths import Layout
from devcluster.progress import Reporter, Step
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import Toolchain
from simulation import nodes as simulated_nodes
from simulation.configuration import PORTS
from simulation.supervisor import API_READY, EventLog


@pytest.fixture
def alive(layout: Layout) -> Iterator[subprocess.Popen[bytes]]:
    """A running process that is recorded as the cluster's process."""
    with subprocess.Popen(["sleep", "60"]) as process:
        started = launcher.start_ticks(process.pid)
        layout.record.write_text(
            json.dumps(asdict(Record(process.pid, started, launcher.boot_id(), "real", [], "/")))
        )
        yield process
        process.kill()


@pytest.fixture
def cluster(layout: Layout, tmp_path: Path) -> Cluster:
    folders: Any = (tmp_path / name for name in ("bin", "pulumi", "charts", "crds"))
    return Cluster(cluster_spec(Kind.REAL), layout, Toolchain(*folders, installed=()))  # type: ignore[misc]


@pytest.fixture
def step() -> Step:
    return Step(Reporter(Console(file=io.StringIO())), "cluster")


def test_kubectl_only_accesses_this_cluster(cluster: Cluster, layout: Layout) -> None:
    program, kubeconfig = cluster.kubectl
    assert program == str(cluster.toolchain.bin / "kubectl")
    assert kubeconfig == f"--kubeconfig={layout.kubeconfig}"


@pytest.mark.usefixtures("alive")
def test_start_is_complete_when_every_node_is_ready(cluster: Cluster, step: Step) -> None:
    events = EventLog(cluster.layout.events)
    events.add("gpu-node-0", API_READY)
    events.add("gpu-node-1", "node is Ready", ready=True)
    events.add("gpu-node-0", "node is Ready", ready=True)
    lifecycle._follow(cluster, events, step)
    assert step.detail == "gpu-node-0: node is Ready"


@pytest.mark.usefixtures("alive")
def test_ready_api_server_is_reported_exactly_once(cluster: Cluster, step: Step) -> None:
    events, seen = EventLog(cluster.layout.events), list[Cluster]()

    class Early:
        def prepare(self, cluster: Cluster) -> None:
            pytest.fail("too late")

        def begin(self, cluster: Cluster) -> None:
            seen.append(cluster)
            for node in ("gpu-node-0", "gpu-node-1"):
                events.add(node, "node is Ready", ready=True)

    events.add("gpu-node-0", API_READY)
    lifecycle._follow(cluster, events, step, Early())
    assert seen == [cluster]


@pytest.mark.usefixtures("alive")
def test_start_times_out_if_only_one_of_two_nodes_is_ready(
    cluster: Cluster, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "START_TIMEOUT", 0.1)
    events = EventLog(cluster.layout.events)
    events.add("gpu-node-1", "node is Ready", ready=True)
    with pytest.raises(
        DevclusterError, match=f"did not start within 0 s; see {cluster.layout.logs}"
    ):
        lifecycle._follow(cluster, events, step)


@pytest.mark.usefixtures("alive")
def test_failed_node_is_reported_with_the_reason(cluster: Cluster, step: Step) -> None:
    events = EventLog(cluster.layout.events)
    events.add("gpu-node-1", "failed", error="TimeoutError: no API server")
    with pytest.raises(DevclusterError, match="gpu-node-1 did not start: TimeoutError: no API"):
        lifecycle._follow(cluster, events, step)


def test_cluster_that_exits_during_startup_is_reported(
    cluster: Cluster, step: Step, alive: subprocess.Popen[bytes]
) -> None:
    alive.kill()
    alive.wait()
    with pytest.raises(DevclusterError, match="the cluster's process exited; see"):
        lifecycle._follow(cluster, EventLog(cluster.layout.events), step)


@pytest.mark.usefixtures("alive")
def test_start_of_a_killed_command_is_awaited(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, waits = EventLog(cluster.layout.events), list[str]()

    def create_nodes(*_: object, **__: object) -> None:
        waits.append("nodes")

    def follow(*_: object) -> None:
        waits.append("start")
        for node in cluster.spec.real_nodes:
            events.add(node.name, "node is Ready", ready=True)

    monkeypatch.setattr(host, "missing_packages", list)
    monkeypatch.setattr(lifecycle, "BaseImages", MagicMock())
    monkeypatch.setattr(lifecycle, "_uv", Path)
    monkeypatch.setattr(lifecycle, "ensure", lambda *_, **__: cluster.toolchain)
    monkeypatch.setattr(lifecycle, "_publish", lambda *_: None)
    monkeypatch.setattr(lifecycle, "_await_service_account", lambda _: None)
    monkeypatch.setattr(simulated_nodes, "ensure", create_nodes)
    monkeypatch.setattr(lifecycle, "_follow", follow)
    reporter = Reporter(Console(file=io.StringIO()))
    for _ in range(2):
        lifecycle.up(cluster.spec, reporter)
    assert waits == ["start", "nodes", "nodes"]


def test_port_of_the_api_server_does_not_change(simulated: Layout) -> None:
    port = lifecycle._free_port(simulated)
    assert 1024 <= port < 65536
    assert lifecycle._free_port(simulated) == port


def test_port_is_chosen_again_if_a_full_disk_prevented_its_storage(
    simulated: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_nothing(self: Path, _: str) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", write_nothing)
        with pytest.raises(OSError, match="No space left"):
            lifecycle._free_port(simulated)
    assert lifecycle._free_port(simulated) == lifecycle._free_port(simulated)


@pytest.mark.parametrize("which", [0, PORTS - 1])
def test_error_names_the_occupied_port_and_suggests_a_fix(simulated: Layout, which: int) -> None:
    first = lifecycle._free_port(simulated)
    port = first + which
    taken = pytest.raises(DevclusterError, match=f"port {port} .*`make down PURGE=1`")
    with socket.create_server(("127.0.0.1", port)), taken:
        lifecycle._free_port(simulated)
    assert lifecycle._free_port(simulated) == first


@pytest.mark.usefixtures("alive")
def test_build_of_new_tools_for_a_running_cluster_is_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ensure(*_: object, announce: Callable[[str], None]) -> None:
        announce("building etcd")

    monkeypatch.setattr(lifecycle, "ensure", ensure)
    lifecycle.attach(Kind.REAL, cluster_spec(Kind.REAL))
    # A shell evaluates the standard output of `make env`.
    assert capsys.readouterr() == ("", "building etcd\n")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("kind", Kind)
def test_attaching_to_a_stopped_cluster_fails(kind: Kind) -> None:
    with pytest.raises(DevclusterError, match="not running: start it with `make up`"):
        lifecycle.attach(kind, cluster_spec(kind))


def test_pods_can_write_to_volumes_that_other_pods_mounted_first(layout: Layout) -> None:
    lifecycle._create_volumes(layout)
    (layout.volumes / "checkpoints" / "kept").touch()
    lifecycle._create_volumes(layout)
    modes = {path.name: path.stat().st_mode & 0o777 for path in layout.volumes.iterdir()}
    assert modes == {"checkpoints": 0o777, "datasets": 0o777}
    assert (layout.volumes / "checkpoints" / "kept").exists()


@pytest.mark.usefixtures("home")
def test_volcanos_version_of_a_running_cluster_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = Record(1, 1, "", Kind.SIMULATED, [], "/")
    monkeypatch.setattr(launcher, "running", lambda _: record)
    requirements = Requirements(volcano="1.10.0")
    with pytest.raises(DevclusterError, match="already running, and --volcano"):
        lifecycle.up(cluster_spec(Kind.SIMULATED), Reporter(), requirements)
