"""State of the host that the embedded cluster with real nodes must not change."""

import contextlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from devcluster.spec import Kind

# Counters and clocks of the kernel that change constantly.
VOLATILE = (
    "kernel.random",
    "fs.dentry",
    "fs.inode",
    "fs.file-nr",
    "fs.quota",
    "kernel.ns_last_pid",
    "kernel.pty.nr",
    "net.netfilter.nf_conntrack_count",
    "fs.aio-nr",
    "kernel.perf",
)


@dataclass(frozen=True)
class HostState:
    """A snapshot of the host. If two snapshots are equal, nothing was left behind."""

    processes: frozenset[str]
    mounts: frozenset[str]
    interfaces: frozenset[str]
    routes: frozenset[str]
    firewall: tuple[str, ...]
    cgroups: frozenset[str]
    sysctls: frozenset[str]

    @classmethod
    def now(cls) -> "HostState":
        return cls(
            processes=frozenset(_processes()),
            mounts=frozenset(_mounts()),
            interfaces=frozenset(entry["ifname"] for entry in _json("ip", "-json", "link")),
            routes=frozenset(json.dumps(entry) for entry in _json("ip", "-json", "route")),
            firewall=tuple(_firewall()),
            cgroups=frozenset(str(path) for path in Path("/sys/fs/cgroup").rglob("gpu-platform*")),
            sysctls=frozenset(_sysctls()),
        )

    def added_since(self, before: "HostState") -> dict[str, list[str]]:
        """Return what was added or changed; empty if nothing is left behind."""
        added = {
            name: sorted(set(getattr(self, name)) - set(getattr(before, name)))
            for name in self.__dataclass_fields__
        }
        return {name: values for name, values in added.items() if values}


def _processes() -> list[str]:
    """Return the processes of real clusters, each with its own PID namespace, and their launchers.

    Clusters with simulated nodes are ignored, because their tests run at the same time.
    """
    here = Path("/proc/self/ns/pid").readlink()
    found: dict[Path, list[str]] = {}
    simulated = set()
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        with contextlib.suppress(OSError):
            space = Path(f"/proc/{process.info['pid']}/ns/pid").readlink()
            if f"devcluster.cluster_init {Kind.SIMULATED}" in command:
                simulated.add(space)
                continue
            # A process without a command line is exiting: the kernel has released its memory.
            alive = command and process.info["status"] != psutil.STATUS_ZOMBIE
            if alive and (space != here or "devcluster.cluster_init" in command):
                line = f"{process.info['pid']} {command[:200]}"
                found.setdefault(space, []).append(line)
    return [line for space in found.keys() - (simulated - {here}) for line in found[space]]


def _mounts() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [" ".join(line.split()[3:5]) for line in lines]


def _firewall() -> list[str]:
    saved = subprocess.run(["iptables-save"], capture_output=True, text=True, check=False)
    return sorted(line for line in saved.stdout.splitlines() if line.startswith("-"))


def _sysctls() -> list[str]:
    done = subprocess.run(["/sbin/sysctl", "-a"], capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if not line.startswith(VOLATILE)]


def _json(*command: str) -> list[dict[str, Any]]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout or "[]"))
