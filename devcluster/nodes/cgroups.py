"""The cluster's control groups, for hosts with cgroup v1 (alone or with v2) or only v2.

In each mounted hierarchy, `gpu-platform-<kind>/` contains `supervisor` and a group per node. With
v2, a group that contains processes cannot delegate controllers to its children. A node therefore
moves its first process into a leaf group before it enables the controllers.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Hierarchies:
    """Control group hierarchies of a host, as listed in /proc/self/cgroup (cgroups(7))."""

    controllers: tuple[str, ...]
    """Mounted v1 hierarchies, such as `memory`, `cpu,cpuacct` and `name=systemd`."""

    @property
    def unified(self) -> bool:
        """True if the host has only cgroup v2."""
        return not self.controllers

    def directories(self, root: Path = ROOT) -> list[Path]:
        """Return the mount point of each hierarchy."""
        if self.unified:
            return [root]
        return [root / name.removeprefix("name=") for name in self.controllers]


def parse_hierarchies(text: str) -> Hierarchies:
    """Parse the text of /proc/self/cgroup: `ID:CONTROLLERS:PATH` lines."""
    names = [line.split(":", 2)[1] for line in text.splitlines() if line.count(":") >= 2]
    return Hierarchies(tuple(sorted(name for name in names if name)))


def hierarchies() -> Hierarchies:
    """Return the hierarchies of this host."""
    return parse_hierarchies(Path("/proc/self/cgroup").read_text())


def create(group: str, hierarchies: Hierarchies, root: Path = ROOT) -> list[Path]:
    """Create a group in every hierarchy and return its directories."""
    directories = [directory / group for directory in hierarchies.directories(root)]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
        _inherit_cpuset(directory)
    return directories


def _inherit_cpuset(directory: Path) -> None:
    # A new cgroup v1 cpuset is empty, and processes cannot enter an empty cpuset.
    for part in reversed([directory, *directory.parents]):
        for name in ("cpuset.cpus", "cpuset.mems"):
            file = part / name
            with contextlib.suppress(OSError):
                if not file.read_text().strip():
                    file.write_text((part.parent / name).read_text())


def enter(directories: list[Path], pid: int | None = None) -> None:
    """Move a process (default: this one) into the groups."""
    for directory in directories:
        (directory / "cgroup.procs").write_text(str(pid if pid is not None else os.getpid()))


def delegate(directory: Path) -> None:
    """Delegate every controller of a v2 group to its children."""
    available = (directory / "cgroup.controllers").read_text().split()
    (directory / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in available))


def processes(directories: list[Path]) -> set[int]:
    """Return the IDs of the processes in the groups and in their children."""
    pids: set[int] = set()
    for directory in directories:
        for file in directory.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                pids.update(int(line) for line in file.read_text().split())
    return pids


def remove(directories: list[Path], timeout: float = 5.0) -> list[Path]:
    """Remove the groups and their children as soon as their processes have exited.

    Return the groups that could not be removed.
    """
    deadline = time.monotonic() + timeout
    while remaining := [directory for directory in directories if directory.exists()]:
        for directory in remaining:
            for child in sorted(directory.rglob("*/"), key=lambda path: -len(path.parts)):
                with contextlib.suppress(OSError):
                    child.rmdir()
            with contextlib.suppress(OSError):
                directory.rmdir()
        if time.monotonic() > deadline:
            return [directory for directory in remaining if directory.exists()]
        time.sleep(0.02)
    return []
