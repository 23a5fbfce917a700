"""Control groups of the cluster, on hosts with cgroup v1 controllers or with cgroup v2 only.

In each controller's mount, `gpu-platform-<kind>/` contains `supervisor` and a group per node. On v2
a group with processes cannot delegate controllers to its children, so a node moves its first
process into a leaf before it enables them.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Hierarchies:
    """Hierarchies of a host, read from /proc/self/cgroup (format: cgroups(7))."""

    controllers: tuple[str, ...]
    """Mounted v1 hierarchies, such as `memory`, `cpu,cpuacct` and `name=systemd`."""

    @property
    def unified(self) -> bool:
        """True if there is only v2."""
        return not self.controllers

    def folders(self, root: Path = ROOT) -> list[Path]:
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


def create(group: str, machine: Hierarchies, root: Path = ROOT) -> list[Path]:
    """Create a group in every hierarchy and return its directories."""
    folders = [folder / group for folder in machine.folders(root)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        _inherit_cpuset(folder)
    return folders


def _inherit_cpuset(folder: Path) -> None:
    # A new cpuset of cgroup v1 is empty, and no process can enter an empty one.
    for part in reversed([folder, *folder.parents]):
        for name in ("cpuset.cpus", "cpuset.mems"):
            file = part / name
            with contextlib.suppress(OSError):
                if not file.read_text().strip():
                    file.write_text((part.parent / name).read_text())


def enter(folders: list[Path], pid: int | None = None) -> None:
    """Move a process (default: this one) into the groups."""
    for folder in folders:
        (folder / "cgroup.procs").write_text(str(pid if pid is not None else os.getpid()))


def delegate(folder: Path) -> None:
    """Delegate every controller of a v2 group to its children."""
    available = (folder / "cgroup.controllers").read_text().split()
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in available))


def processes(folders: list[Path]) -> set[int]:
    """Return the processes in the groups and in their children."""
    found: set[int] = set()
    for folder in folders:
        for file in folder.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found.update(int(line) for line in file.read_text().split())
    return found


def remove(folders: list[Path], timeout: float = 5.0) -> list[Path]:
    """Remove the groups and their children once their processes end; return the remaining ones."""
    deadline = time.monotonic() + timeout
    while left := [folder for folder in folders if folder.exists()]:
        for folder in left:
            for below in sorted(folder.rglob("*/"), key=lambda path: -len(path.parts)):
                with contextlib.suppress(OSError):
                    below.rmdir()
            with contextlib.suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            return [folder for folder in left if folder.exists()]
        time.sleep(0.02)
    return []
