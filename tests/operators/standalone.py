"""A node without a control plane: a kubelet with static pods, containerd 2 and a registry.

`python -m tests.operators.standalone DIRECTORY BINARIES` runs as PID 1 of separate namespaces
and ends with them. The node uses no address of the host, so it may run at the same time as a
cluster.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from devcluster import host
from devcluster.images.catalog import TOOL_IMAGES
from devcluster.images.oci import Layout as OciLayout
from devcluster.nodes import cgroups, init
from devcluster.nodes.services import NodeServices
from devcluster.paths import CHECKOUT, Layout, cache_root
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import ensure
from simulation.supervisor import Service, Supervisor
from tests.cluster.platform import await_
from tests.platforms import unavailable

NAME = "gpu-node-0"
GROUP = "gpu-platform-standalone"
PODS = "pods"
"""Directory with the manifests of the pods."""
REGISTRY = "127.0.0.1:5000"


def layout_of(folder: Path) -> Layout:
    return Layout(folder / "cache", folder / "state")


def kubelet_configuration(folder: Path) -> dict[str, Any]:
    """Return a configuration without an API server. 1.35 enables `ImageVolume` by default."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(folder / PODS),
        "featureGates": {"ImageVolume": True},
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "failCgroupV1": False,
        "localStorageCapacityIsolation": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {"memory.available": "1%", "nodefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "enableServer": False,
    }


def main(folder: Path, binaries: Path) -> None:
    """Start the services and supervise them."""
    spec = cluster_spec(Kind.REAL)
    layout = layout_of(folder)
    for made in (layout.registry, layout.logs):
        made.mkdir(parents=True, exist_ok=True)
    (folder / PODS).mkdir(exist_ok=True)
    machine = cgroups.hierarchies()
    init.mount_file_systems(layout, NAME, machine)
    if machine.unified:
        leaf = cgroups.ROOT / "init"
        leaf.mkdir(exist_ok=True)
        cgroups.enter([leaf])
        cgroups.delegate(cgroups.ROOT)
    address = spec.control_plane.address
    for command in (["link", "set", "lo", "up"], ["addr", "add", f"{address}/32", "dev", "lo"]):
        subprocess.run(["ip", *command], check=True)
    # Debian's containerd and its shim have the same names.
    programs = folder / "bin"
    programs.mkdir()
    for name, tool in (
        ("containerd", "containerd-2"),
        ("containerd-shim-runc-v2", "containerd-2-shim"),
    ):
        (programs / name).symlink_to(binaries / tool)
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin"
    supervisor = Supervisor(layout.logs)
    services = NodeServices(spec, spec.control_plane, layout, binaries)
    supervisor.start(services.containerd())
    supervisor.start(services.registry())
    config = folder / "kubelet.json"
    config.write_text(json.dumps(kubelet_configuration(folder)))
    kubelet = [str(binaries / "kubelet"), f"--config={config}", f"--hostname-override={NAME}"]
    supervisor.start(Service("kubelet", kubelet))
    supervisor.run_forever()


@dataclass(frozen=True)
class Node:
    """A running node."""

    folder: Path
    process: psutil.Process
    """PID 1 of the node, which gives access to its files and its network."""

    def run(self, *command: str) -> str:
        """Run a command of the host in the node's network and return its output."""
        enter = ["nsenter", f"--net=/proc/{self.process.pid}/ns/net", "--", *command]
        done = subprocess.run(enter, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def root(self) -> Path:
        """Root directory of the node, as seen from the host."""
        return Path(f"/proc/{self.process.pid}/root")

    def answers(self, port: int, path: str) -> bool:
        """Return whether a server on the node responds with a success status."""
        url = f"http://127.0.0.1:{port}{path}"
        with contextlib.suppress(AssertionError):
            self.run("curl", "--silent", "--fail", "--output", "/dev/null", url)
            return True
        return False

    def push(self, layout: OciLayout, name: str) -> str:
        """Push an image to the node's registry and return its digest."""
        options = ["--insecure-policy", "--dest-tls-verify=false"]
        source, target = f"oci:{layout.directory}", f"docker://{REGISTRY}/{name}"
        self.run("skopeo", "copy", *options, source, target)
        return str(layout.digest)

    def start(self, pod: dict[str, Any]) -> None:
        """Start a pod."""
        (self.folder / PODS / f"{pod['metadata']['name']}.json").write_text(json.dumps(pod))

    def containers(self, command: list[str]) -> Iterator[Path]:
        """Yield the root directories of containers that run a command."""
        for process in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.cmdline() == command:
                    yield Path(f"/proc/{process.pid}/root")


def static(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a rendered pod as a static pod."""
    needs_one = ("serviceAccountName", "priorityClassName", "schedulerName", "nodeSelector")
    kept = {key: value for key, value in spec.items() if key not in needs_one}
    metadata = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": kept | {"hostNetwork": True},
    }


@contextlib.contextmanager
def node(folder: Path) -> Iterator[Node]:
    """Run a node until the end of the block; its registry has the image of pods."""
    verdict = host.choose_kind("auto")
    if verdict.kind is not Kind.REAL:
        unavailable(verdict.reason)
    binaries = ensure("real", cache_root(), sys.stderr.write, ["containerd"]).bin
    folder.mkdir(exist_ok=True)
    machine = cgroups.hierarchies()
    groups = cgroups.create(GROUP, machine)
    namespaces = ["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"]
    flags = ["--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--"]
    program = [sys.executable, "-m", "tests.operators.standalone", str(folder), str(binaries)]
    with (folder / "node.log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", *namespaces, *flags, *program],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=partial(cgroups.enter, groups),
        )
    try:
        found: list[psutil.Process] = []
        while not found:
            assert process.poll() is None, (folder / "node.log").read_text()
            found = psutil.Process(process.pid).children()
        made = Node(folder, found[0])
        await_(lambda: made.answers(5000, "/v2/"), "the node's registry")
        (pause,) = (image for image in TOOL_IMAGES if image.tool == "pause")
        made.push(pause.layout(folder / "images", binaries), pause.reference)
        yield made
    finally:
        # The node's PID 1 forwards no other signal. When it exits, the kernel kills the remaining
        # processes in its namespaces.
        process.kill()
        process.wait()
        cgroups.remove(groups)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
