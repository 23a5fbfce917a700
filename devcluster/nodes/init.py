"""PID 1 of a real node, which sets up mounts and the network, and supervises all services.

`cluster_init` starts this process in separate namespaces. Killing it has the same effect on
the node as a power failure.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from devcluster.nodes import cgroups, links
from devcluster.nodes.services import NodeServices
from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, Kind, RealNode, cluster_spec
from kube.kinds.record import State
from kube.kinds.volcano import JOB
from simulation.control_plane import ControlPlane
from simulation.supervisor import API_READY, EventLog, Supervisor

OVERLAID = ("var", "etc", "opt")
# The kubelet sets these sysctls, which are not namespaced. Files are mounted over them, so that the
# host's values do not change.
SYSCTLS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
_IMMEDIATELY = ("--force", "--grace-period=0", "--wait=false")
_LABEL = "volcano.sh/job-name"
_STOPPED = (State.SUCCEEDED, State.FAILED, State.SUSPENDED)
READY_TIMEOUT = 180.0


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def mount_file_systems(layout: Layout, node: str, hierarchies: cgroups.Hierarchies) -> None:
    """Set up all mounts of a node. Call this once, as PID 1 of the node's namespaces.

    A node reads the host's files. Its writes to /var, /etc and /opt go to overlay directories in
    the cluster's state. The mounts are not visible outside the namespace and disappear with it.
    """
    home, store = layout.node(node), layout.node_store(node)
    _mount("--make-rshared", "/")
    _mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
    for name in ("netns", "lock"):
        Path("/run", name).mkdir()
    for name in OVERLAID:
        _overlay(name, home)
    _bind(home / "kubelet", Path("/var/lib/kubelet"))
    _bind(home / "cni", Path("/var/lib/cni"))
    _bind(store / "containerd", Path("/var/lib/containerd"))
    _bind(store / "docker", Path("/var/lib/docker"))
    _bind(layout.volumes, Path("/var/lib/shared-volumes"))
    for directory in ("/etc/cni/net.d", "/etc/containerd/certs.d", "/var/log/pods"):
        Path(directory).mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", "size=1g", "shm", "/dev/shm")  # noqa: S108
    _mount_sysctls()
    _mount_sys(hierarchies)


def _overlay(name: str, home: Path) -> None:
    upper, work = home / name / "upper", home / name / "work"
    for directory in (upper, work):
        directory.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
    _mount("-t", "overlay", "-o", options, f"overlay-{name}", f"/{name}")


def _bind(source: Path, target: Path) -> None:
    source.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    _mount("--bind", str(source), str(target))
    # Leave the peer group of /; otherwise, volumes that the kubelet mounts here would appear twice.
    _mount("--make-private", str(target))
    _mount("--make-shared", str(target))


def _mount_sysctls() -> None:
    for key, value in SYSCTLS.items():
        file = Path("/run", "sysctl." + key.replace("/", "."))
        file.write_text(value + "\n")
        _mount("--bind", str(file), f"/proc/sys/{key}")


def _mount_sys(hierarchies: cgroups.Hierarchies) -> None:
    # sysfs and cgroup mounts show the namespaces of the process that mounted them.
    _mount("-t", "sysfs", "-o", "nosuid,nodev,noexec", "sysfs", "/sys")
    if hierarchies.unified:
        _mount("-t", "cgroup2", "cgroup2", str(cgroups.ROOT))
        return
    _mount("-t", "tmpfs", "-o", "mode=755", "cgroup", str(cgroups.ROOT))
    for controllers, directory in zip(
        hierarchies.controllers, hierarchies.directories(), strict=True
    ):
        directory.mkdir()
        _mount("-t", "cgroup", "-o", controllers, "cgroup", str(directory))
        for alias in directory.name.split(",") if "," in directory.name else []:
            (cgroups.ROOT / alias).symlink_to(directory.name)


def delete_lost_pods(kubectl: Callable[..., str], nodes: Iterable[str]) -> None:
    """Delete the unfinished pods on the given nodes and all failed pods of active Volcano Jobs.

    Volcano evaluates a job's policies only for pod changes that its controllers observe. If a pod
    fails while the controllers are not running, the job is not restarted. It either fails or waits
    forever for the pod, because the scheduler does not start the remaining pods of a gang with a
    failed pod.

    Args:
        kubectl: Runs kubectl with the given arguments and returns its output.
        nodes: Names of the nodes.
    """
    for name in nodes:
        active = f"spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed"
        selected = ("--all-namespaces", f"--field-selector={active}")
        kubectl("delete", "pods", *selected, *_IMMEDIATELY)
    if not kubectl("get", "crd", JOB.name, "--ignore-not-found", "--output=name"):
        return
    jobs = _items(kubectl, JOB.name)
    active_jobs = {_key(job) for job in jobs if JOB.state(job.get("status", {})) not in _STOPPED}
    failed = _items(kubectl, "pods", f"--selector={_LABEL}", "--field-selector=status.phase=Failed")
    for pod in failed:
        namespace, name = _key(pod)
        if (namespace, pod["metadata"]["labels"][_LABEL]) in active_jobs:
            kubectl("delete", "pod", name, f"--namespace={namespace}", *_IMMEDIATELY)


def _items(kubectl: Callable[..., str], *selection: str) -> list[dict[str, Any]]:
    output = kubectl("get", *selection, "--all-namespaces", "--output=json")
    return list(json.loads(output)["items"])


def _key(item: dict[str, Any]) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


class Node:
    """Startup of a real node, from empty namespaces until the node is Ready."""

    def __init__(self, spec: ClusterSpec, node: RealNode, layout: Layout, binaries: Path) -> None:
        self.spec = spec
        self.node = node
        self.layout = layout
        self.events = EventLog(layout.events)
        logs = layout.logs / node.name
        logs.mkdir(parents=True, exist_ok=True)
        self.supervisor = Supervisor(logs)
        self.services = NodeServices(spec, node, layout, binaries)
        self.control_plane = ControlPlane(
            layout.control_plane_settings(spec, binaries, spec.network.api_port)
        )
        self.kubectl = str(binaries / "kubectl")

    def boot(self, switch_namespace: int, charts: Path) -> None:
        """Start all services and wait until the node is Ready."""
        hierarchies = cgroups.hierarchies()
        socket.sethostname(self.node.name)
        mount_file_systems(self.layout, self.node.name, hierarchies)
        if hierarchies.unified:
            leaf = cgroups.ROOT / "init"
            leaf.mkdir(exist_ok=True)
            cgroups.enter([leaf])
            cgroups.delegate(cgroups.ROOT)
        links.link_node(self.spec, self.node, switch_namespace)
        os.close(switch_namespace)
        self.supervisor.start(self.services.containerd())
        if self.node.control_plane:
            self._start_control_plane(charts)
        self._await_control_plane()
        self._start_node_services()

    def _start_control_plane(self, charts: Path) -> None:
        self.supervisor.start(self.services.registry())
        self.supervisor.start(self.services.chart_repository(charts))
        self.supervisor.start(self.services.docker())
        is_restart = self.control_plane.exists
        self.layout.node_kubeconfig.unlink(missing_ok=True)
        self.control_plane.start()
        self.supervisor.on_orphan = self.control_plane.on_exit
        server = f"https://{self.node.address}:{self.spec.network.api_port}"
        self.control_plane.write_kubeconfig(self.layout.kubeconfig, server)
        if is_restart:
            self._clear_devices()
            delete_lost_pods(self._kubectl_output, self._node_names)
        # The kubelets start once this file exists. It is written only after the lost pods are
        # deleted, because the kubelets would otherwise reject these pods.
        self.control_plane.write_kubeconfig(self.layout.node_kubeconfig, server)
        self.supervisor.start(self.services.coredns())
        objects = json.dumps(self.services.dns_objects())
        self._kubectl("apply", "--server-side", "-f", "-", text=objects)
        self.events.add(self.node.name, API_READY)

    @property
    def _node_names(self) -> list[str]:
        return [node.name for node in self.spec.real_nodes]

    def _clear_devices(self) -> None:
        """Clear the devices that the nodes' status listed before the restart.

        Otherwise, pods that request GPUs would be scheduled to a node on which the device plugin
        has not started yet, and the kubelet would reject them.
        """
        output = self._kubectl_output(
            "get", "nodes", *self._node_names, "--ignore-not-found", "-o=json"
        )
        for node in json.loads(output or "{}").get("items", ()):
            name, resources = node["metadata"]["name"], node["status"].get("capacity", {})
            devices = dict.fromkeys(resource for resource in resources if "/" in resource)
            status = json.dumps({"status": {"capacity": devices, "allocatable": devices}})
            patch = ("--subresource=status", "--type=merge", f"--patch={status}")
            self._kubectl("patch", "node", name, *patch)

    def _await_control_plane(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            config = self.layout.node_kubeconfig
            ready = config.exists() and self._kubectl("get", "--raw", "/readyz", check=False)
            # Check again: a file from an earlier start may have been deleted in the meantime.
            if ready and config.exists():
                self.services.kubeconfig.write_text(config.read_text())
                self.services.kubeconfig.chmod(0o600)
                return
            time.sleep(0.1)
        raise TimeoutError(f"the API server did not respond within {READY_TIMEOUT:.0f} s")

    def _start_node_services(self) -> None:
        self.supervisor.start(self.services.gpus())
        self.supervisor.start(self.services.kubelet())
        self.supervisor.start(self.services.kube_proxy())
        self._await_node("create", "registered")
        self._await_node("condition=Ready", "Ready")
        self.events.add(self.node.name, "node is Ready", ready=True)

    def _await_node(self, condition: str, state: str) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        wait = ("wait", f"--for={condition}", f"node/{self.node.name}", "--timeout=5s")
        while not self._kubectl(*wait, check=False):
            # `run_forever`, which restarts services that exit, is called only after the boot.
            self.supervisor.restart_exited()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the node was not {state} within {READY_TIMEOUT:.0f} s")
            time.sleep(0.1)

    def _kubectl(self, *arguments: str, text: str = "", check: bool = True) -> bool:
        try:
            self._kubectl_output(*arguments, text=text, silent=not check)
        except subprocess.CalledProcessError:
            if check:
                raise
            return False
        return True

    def _kubectl_output(self, *arguments: str, text: str = "", silent: bool = False) -> str:
        done = subprocess.run(
            [self.kubectl, f"--kubeconfig={self.layout.kubeconfig}", *arguments],
            input=text,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if silent else None,
            check=True,
        )
        return done.stdout


def main(name: str, binaries: str, charts: str, switch_namespace: str) -> None:
    """Run a node. `switch_namespace` is a file descriptor of the switch's network namespace."""
    spec = cluster_spec(Kind.REAL)
    node = next(node for node in spec.real_nodes if node.name == name)
    layout = Layout.of(spec.kind)
    process = Node(spec, node, layout, Path(binaries))
    try:
        process.boot(int(switch_namespace), Path(charts))
    except Exception as error:
        process.events.add(name, "failed", error=f"{type(error).__name__}: {error}")
        raise
    process.supervisor.run_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
