"""Processes of the embedded cluster, found by their role instead of their name.

All are descendants of the process in the cluster's record. Services and components record process
IDs in their node's namespace, which the kernel shows together with the host's (`NSpid`,
proc_pid_status(5)).
"""

import contextlib
import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Units:
    """Processes of the cluster with this state directory."""

    state: Path

    def cluster(self) -> psutil.Process:
        return psutil.Process(json.loads((self.state / "cluster.json").read_text())["pid"])

    def node(self, name: str) -> psutil.Process:
        """Return PID 1 of a node."""
        for process in self.cluster().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                ours = "devcluster.nodes.init" in command and name in command
                if ours and command[0] != "unshare":
                    return process
        raise LookupError(f"{name} has no process")

    def service(self, node: str, name: str) -> psutil.Process:
        """Return the process of a node's service, such as `kubelet`."""
        return self._recorded(node, self.state / "logs" / node / f"{name}.pid")

    def component(self, name: str) -> psutil.Process:
        """Return the process of a control plane component, such as `etcd`."""
        folder = self.state / "control-plane" / ".kwok" / "clusters" / "cluster" / "pids"
        return self._recorded("gpu-node-0", folder / f"{name}.pid")

    def _recorded(self, node: str, file: Path) -> psutil.Process:
        text, init = file.read_text(), self.node(node)
        if not text:  # the supervisor has not written the process ID yet
            raise LookupError(f"{file.stem} on {node} has started")
        number = int(text)
        namespace = Path(f"/proc/{init.pid}/ns/pid").readlink()
        for process in init.children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                same = Path(f"/proc/{process.pid}/ns/pid").readlink() == namespace
                if same and _inner(process) == number:
                    return process
        raise LookupError(f"{file.stem} on {node} is not running")

    def container(self, container: str) -> list[psutil.Process]:
        """Return the processes of a container ID, PID 1 first."""
        found = []
        for process in self.cluster().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if container in Path(f"/proc/{process.pid}/cgroup").read_text():
                    found.append(process)
        if not found:
            raise LookupError(f"container {container} is not running")
        return sorted(found, key=_inner)

    def inside(self, node: str, *command: str) -> None:
        """Run a command in a node's mount, network and PID namespaces."""
        target = f"--target={self.node(node).pid}"
        # umount looks up its own process in the node's /proc, so it must run in the node's PID
        # namespace.
        subprocess.run(["nsenter", target, "--mount", "--net", "--pid", *command], check=True)

    def keep_down(self, node: str, name: str, seconds: float) -> None:
        """Kill a service whenever it restarts, for that many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(LookupError, psutil.NoSuchProcess):
                self.service(node, name).kill()
            time.sleep(0.1)


def worker_of(server: list[psutil.Process]) -> psutil.Process:
    """Return the worker of an inference container, a child of PID 1's fork server."""
    init, *others = server
    servers = {process.pid for process in others if process.ppid() == init.pid}
    (worker,) = (process for process in others if process.ppid() in servers)
    return worker


def pause(process: psutil.Process) -> None:
    """Stop a process (SIGSTOP), so that it does not respond."""
    process.send_signal(signal.SIGSTOP)


def _inner(process: psutil.Process) -> int:
    """Return a process's ID in its innermost namespace."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise LookupError(f"process {process.pid} has no process ID in a namespace")
