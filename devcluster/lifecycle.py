"""Startup and shutdown of the embedded cluster."""

import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from devcluster import DevclusterError, host, launcher, operators
from devcluster.images.base_image import PYTORCH
from devcluster.images.catalog import OPERATOR_IMAGES, BaseImages, ToolImage, push_tools
from devcluster.nodes import image_stores
from devcluster.operators import Requirements
from devcluster.paths import Layout
from devcluster.progress import Reporter, Step
from devcluster.spec import ClusterSpec, Kind
from devcluster.toolchain import Toolchain, ensure, files
from devcluster.toolchain.pins import Group, volcano_release
from simulation import nodes as simulated_nodes
from simulation.configuration import PORTS
from simulation.supervisor import API_READY, Event, EventLog

START_TIMEOUT = 300.0
"""Timeout (s) for a start, which takes 15 s on an idle machine, and more than 120 s on two cores
with a load of 15."""

PORT_RANGE = (20_000, 32_768)
"""Port range for control planes, below Linux's ephemeral ports (ip(7))."""

NO_REQUIREMENTS = Requirements()


@dataclass(frozen=True)
class Cluster:
    """A running cluster and its tools."""

    spec: ClusterSpec
    layout: Layout
    toolchain: Toolchain

    @property
    def kubectl(self) -> list[str]:
        """The kubectl command for this cluster, independent of the user's kubeconfig."""
        return [str(self.toolchain.bin / "kubectl"), f"--kubeconfig={self.layout.kubeconfig}"]


class EarlyWork(Protocol):
    """Work that can be done while the cluster is starting."""

    def prepare(self, cluster: Cluster) -> object:
        """Start, in the background, the work that does not need the API server."""

    def begin(self, cluster: Cluster) -> object:
        """Start the work that needs the API server. Nodes and images may not exist yet."""


def up(
    spec: ClusterSpec,
    reporter: Reporter,
    requirements: Requirements = NO_REQUIREMENTS,
    early: EarlyWork | None = None,
) -> Cluster:
    """Start the cluster unless it is running, and add the operators and images that a stack needs.

    `early` is used only if the cluster has to be started.

    Raises:
        DevclusterError: If a step fails. The message states a fix.
    """
    layout = Layout.of(spec.kind)
    real = spec.kind is Kind.REAL
    if real and (packages := host.missing_packages()):
        reporter.say(f"installing Debian packages: {', '.join(packages)}")
        with reporter.step("Debian packages"):
            host.install_packages(packages, layout.logs / "packages.log")
    extras = requirements.operators if real else volcano_release(requirements.volcano)
    record = launcher.running(layout)
    if record is not None and requirements.volcano:
        raise DevclusterError(
            "the cluster is already running, and --volcano takes effect only at startup: stop the "
            "cluster first with `python -m devcluster down --nodes simulated`"
        )
    if record is None:
        launcher.stop(layout)
        if stopped := launcher.stop_orphans(spec.kind):
            reporter.say(f"stopped orphaned clusters, whose records are missing: {stopped}")
        if real and (message := image_stores.free_disk_space(layout)):
            reporter.say(message)
        host.check(spec, layout, extras)
    base = BaseImages(layout, _uv(), requirements.bases) if real else None
    if base is not None:
        base.start()
    with reporter.step("tools") as step:
        group: Group = "real" if real else "simulated"
        toolchain = ensure(group, layout.cache, step.update, extras, announce=reporter.say)
        step.detail = f"in {toolchain.bin}"
    cluster = Cluster(spec, layout, toolchain)
    if record is None or not _is_ready(spec, EventLog(layout.events).read()):
        with reporter.step("cluster") as step:
            _start(cluster, step, early, requirements.volcano)
    elif launcher.has_other_tools(record, toolchain.bin):
        reporter.say(
            "cluster: already running with another version of its tools; `make down` and `make up` "
            "restart it with the current tools"
        )
    else:
        reporter.say("cluster: already running")
    if base is not None:
        tools = [image for name in toolchain.manifests for image in OPERATOR_IMAGES[name]]
        _publish(cluster, base, [*tools, *requirements.tools], reporter)
    product, count = spec.gpu_product, spec.simulated_nodes
    simulated_nodes.ensure(count, product, cluster.kubectl, tainted=real)
    _await_service_account(cluster)
    if toolchain.manifests:
        with reporter.step(f"operators: {', '.join(extras)}") as step:
            operators.install(cluster.kubectl, toolchain.manifests, step.update)
    return cluster


def _uv() -> Path:
    program = shutil.which("uv")
    if program is None:
        raise DevclusterError("uv is not on PATH: use `make up`, which installs it")
    return Path(program)


def _start(cluster: Cluster, step: Step, early: EarlyWork | None, volcano: str) -> None:
    """Launch the cluster and wait until all nodes are ready. Stop it if the start fails.

    If an earlier, interrupted start already launched the cluster, only wait.
    """
    if launcher.running(cluster.layout) is None:
        _launch(cluster, volcano)
    try:
        if early is not None:
            early.prepare(cluster)
        _follow(cluster, EventLog(cluster.layout.events), step, early)
    except BaseException:
        launcher.stop(cluster.layout)
        raise


def _launch(cluster: Cluster, volcano: str) -> None:
    spec, layout, toolchain = cluster.spec, cluster.layout, cluster.toolchain
    layout.state.mkdir(parents=True, exist_ok=True)
    layout.state.chmod(0o700)
    layout.events.unlink(missing_ok=True)
    if spec.kind is Kind.REAL:
        _create_volumes(layout)
        launcher.launch(spec.kind, layout, toolchain.bin, toolchain.charts)
    else:
        port = _free_port(layout)
        launcher.launch(spec.kind, layout, toolchain.bin, toolchain.volcano.root, port, volcano)


def _create_volumes(layout: Layout) -> None:
    """Create world-writable directories for the volumes. Their parent directory is private."""
    for name in ("checkpoints", "datasets"):
        directory = layout.volumes / name
        directory.mkdir(parents=True, exist_ok=True)
        # fsGroup is not sufficient: the kubelet applies it to a local volume only for the first pod
        # on a node, which may be a model server without write access.
        directory.chmod(0o777)


def _free_port(layout: Layout) -> int:
    """Return the first of the control plane's ports, which are chosen once and then kept.

    Raises:
        DevclusterError: If another program listens on one of the ports.
    """
    port_file = layout.state / "api-port"
    if not port_file.exists():
        blocks = list(range(*PORT_RANGE, PORTS))
        random.shuffle(blocks)
        files.write(port_file, str(next(port for port in blocks if _port_in_use(port) is None)))
    first = int(port_file.read_text())
    if port := _port_in_use(first):
        raise DevclusterError(
            f"port {port} of the cluster's control plane is used by another program: stop that "
            "program, or create a new cluster after `make down PURGE=1`"
        )
    return first


def _port_in_use(first: int) -> int | None:
    """Return a port of the control plane on which another program listens, or None."""
    for port in range(first, first + PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return port
    return None


def _follow(cluster: Cluster, events: EventLog, step: Step, early: EarlyWork | None = None) -> None:
    """Report startup events until all nodes are ready. Raise DevclusterError if the start fails."""
    began = time.monotonic()
    while True:
        received = list(events.read())
        if failed := next((event for event in received if event.error), None):
            raise DevclusterError(
                f"{failed.node} did not start: {failed.error}; see {cluster.layout.logs}"
            )
        if received:
            step.update(f"{received[-1].node}: {received[-1].step}")
        if early is not None and any(event.step == API_READY for event in received):
            early.begin(cluster)
            early = None
        if _is_ready(cluster.spec, received):
            return
        if launcher.running(cluster.layout) is None:
            raise DevclusterError(f"the cluster's process exited; see {cluster.layout.logs}")
        if time.monotonic() - began > START_TIMEOUT:
            raise DevclusterError(
                f"the cluster did not start within {START_TIMEOUT:.0f} s; see {cluster.layout.logs}"
            )
        time.sleep(0.05)


def _is_ready(spec: ClusterSpec, events: Iterable[Event]) -> bool:
    """Return whether all nodes have become ready since the launch."""
    return sum(event.ready for event in events) >= max(1, len(spec.real_nodes))


def _publish(
    cluster: Cluster, bases: BaseImages, tools: Sequence[ToolImage], reporter: Reporter
) -> None:
    network, toolchain = cluster.spec.network, cluster.toolchain
    registry = f"{cluster.spec.control_plane.address}:{network.registry_port}"
    with reporter.step("images") as step:
        push_tools(cluster.layout, toolchain.bin, registry, step.update, tools)
        began = time.monotonic()
        while not bases.wait(1.0):
            step.update(f"building base images, {time.monotonic() - began:.0f} s")
        for reference, layout in bases.layouts.items():
            step.update(f"pushing {reference}")
            layout.push(registry, reference, cluster.layout.logs / "push.log")
            layout.link_blobs(cluster.layout.registry)
        step.update("linking the base image into the image stores")
        local = f"127.0.0.1:{network.registry_port}/{PYTORCH.reference}"
        image_stores.link_base(cluster.layout, cluster.spec, local)
        step.detail = f"in the registry 127.0.0.1:{network.registry_port}"


def _await_service_account(cluster: Cluster) -> None:
    # The API server rejects pods in a namespace that does not have its default ServiceAccount yet.
    wait = ["wait", "--for=create", "serviceaccount/default", "--timeout=60s"]
    subprocess.run([*cluster.kubectl, *wait], check=True, stdout=subprocess.DEVNULL)


def attach(kind: Kind, spec: ClusterSpec) -> Cluster:
    """Return the running cluster of a kind. Raise DevclusterError if it is not running."""
    layout = Layout.of(kind)
    if launcher.running(layout) is None:
        raise DevclusterError("the embedded cluster is not running: start it with `make up`")
    group: Group = "real" if kind is Kind.REAL else "simulated"
    announce = partial(print, file=sys.stderr)
    toolchain = ensure(group, layout.cache, lambda _line: None, announce=announce)
    return Cluster(spec, layout, toolchain)


def down(kind: Kind, *, purge: bool) -> tuple[list[str], int]:
    """Stop the cluster; with `purge`, delete its state.

    Return the control groups that remain, and the number of orphaned clusters that were stopped.
    """
    layout = Layout.of(kind)
    remaining = launcher.stop(layout)
    orphans = launcher.stop_orphans(kind)
    if purge and layout.state.exists():
        for path in layout.state.iterdir():
            if path != layout.lock:
                is_directory = path.is_dir() and not path.is_symlink()
                shutil.rmtree(path) if is_directory else path.unlink()
    return remaining, orphans
