"""Processes of the embedded cluster by what they are, never by a name that others may have.

Everything is looked for below the one process that the cluster's record names. Services and
components have noted their process ids, which are those of their node's namespace; the kernel
tells both that one and the host's (`NSpid`, proc_pid_status(5)).
"""

import contextlib
import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster.platform import await_


@dataclass(frozen=True)
class Units:
    """The processes of the cluster whose state lies in `state`."""

    state: Path

    def cluster(self) -> psutil.Process:
        return psutil.Process(json.loads((self.state / "cluster.json").read_text())["pid"])

    def node(self, name: str) -> psutil.Process:
        """Process 1 of a node."""
        for process in self.cluster().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                ours = "devcluster.nodes.init" in command and name in command
                if ours and command[0] != "unshare":
                    return process
        raise LookupError(f"{name} has no process")

    def service(self, node: str, name: str) -> psutil.Process:
        """What a node's supervisor runs, such as `kubelet`."""
        return self._noted(node, self.state / "logs" / node / f"{name}.pid")

    def component(self, name: str) -> psutil.Process:
        """A part of the control plane, such as `etcd`."""
        folder = self.state / "control-plane" / ".kwok" / "clusters" / "cluster" / "pids"
        return self._noted("gpu-node-0", folder / f"{name}.pid")

    def _noted(self, node: str, file: Path) -> psutil.Process:
        text, init = file.read_text(), self.node(node)
        if not text:  # its supervisor is about to write it
            raise LookupError(f"{file.stem} of {node} is being started")
        number = int(text)
        namespace = Path(f"/proc/{init.pid}/ns/pid").readlink()
        for process in init.children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                same = Path(f"/proc/{process.pid}/ns/pid").readlink() == namespace
                if same and _inner(process) == number:
                    return process
        raise LookupError(f"{file.stem} of {node} does not run")

    def container(self, container: str) -> list[psutil.Process]:
        """The processes of a container, its process 1 first; `container` is its id."""
        found = []
        for process in self.cluster().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if container in Path(f"/proc/{process.pid}/cgroup").read_text():
                    found.append(process)
        if not found:
            raise LookupError(f"container {container} does not run")
        return sorted(found, key=_inner)

    def inside(self, node: str, *command: str) -> None:
        """Run a command with only a node's file system, network and process ids."""
        target = f"--target={self.node(node).pid}"
        # /proc is the node's, and umount looks itself up there: it must have a process id of it.
        subprocess.run(["nsenter", target, "--mount", "--net", "--pid", *command], check=True)

    def keep_down(self, node: str, name: str, seconds: float) -> None:
        """Kills a service whenever it is started again, for so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(LookupError, psutil.NoSuchProcess):
                self.service(node, name).kill()
            time.sleep(0.1)

    def await_successor(self, node: str, name: str, killed: psutil.Process) -> None:
        """Waits until a service runs again."""

        def runs() -> bool:
            with contextlib.suppress(LookupError):
                return self.service(node, name).pid != killed.pid
            return False

        await_(runs, 180, f"{name} runs again")


def worker_of(server: list[psutil.Process]) -> psutil.Process:
    """The process that computes, of an inference container: a child of process 1's fork server."""
    init, *others = server
    servers = {process.pid for process in others if process.ppid() == init.pid}
    (worker,) = (process for process in others if process.ppid() in servers)
    return worker


def pause(process: psutil.Process) -> None:
    """A process that does not answer, but has not ended either."""
    process.send_signal(signal.SIGSTOP)


def _inner(process: psutil.Process) -> int:
    """A process's id in the innermost namespace that it is in."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise LookupError(f"process {process.pid} has no id")
