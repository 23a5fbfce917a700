"""Memory of the cluster's processes."""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from tests.cluster.load import Background

_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_MODULE: Final = re.compile(r"-m (devcluster[.\w]+)")
PROC: Final = Path("/proc")

SHORT_LIVED: Final = frozenset({"containerd-shim-runc-v2", "runc", "pause", "unshare", "nsenter"})
"""Programs that start and end with pods. The inventory counts them to find leaks."""


def role(command: str, cgroup: str, pods: Mapping[str, str]) -> str | None:
    """Return a process's role: a name from `pods` by UID, or a program of the cluster.

    Return None for other pods and for short-lived programs.
    """
    if found := _POD.search(cgroup):
        return pods.get(found[1].replace("_", "-"))
    if module := _MODULE.search(command):
        return module[1]
    program = Path(command.split(" ", 1)[0]).name
    return None if not program or program in SHORT_LIVED else program


def anonymous_mib(rollup: str) -> float:
    """Return a process's memory in MiB from /proc/<pid>/smaps_rollup: PSS without mapped files.

    The kernel can reclaim pages of files, such as those of etcd's database.
    """
    sizes = dict(re.findall(r"^(Pss_Anon|Pss_Shmem): +(\d+) kB$", rollup, re.MULTILINE))
    return sum(map(int, sizes.values())) / 1024


def cluster_processes(state: Path) -> list[int]:
    """Return all processes of the real cluster with this state directory.

    Raise psutil.NoSuchProcess if the cluster is down.
    """
    first = json.loads((state / "real" / "cluster.json").read_text())["pid"]
    return [child.pid for child in psutil.Process(first).children(recursive=True)]


def pod_processes(state: Path, uid: str) -> list[int]:
    """Return the processes of a pod's containers, without the pause process."""
    found = []
    for pid in cluster_processes(state):
        try:
            command = (PROC / str(pid) / "cmdline").read_bytes()
            inside = _POD.search((PROC / str(pid) / "cgroup").read_text())
        except OSError:
            continue  # the process has exited
        if inside and inside[1].replace("_", "-") == uid and not command.startswith(b"/pause"):
            found.append(pid)
    return found


def memory_by_role(pids: Iterable[int], pods: Mapping[str, str]) -> dict[str, float]:
    """Return the current MiB by role."""
    total: dict[str, float] = {}
    for pid in pids:
        folder = PROC / str(pid)
        try:
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            whose = role(command, (folder / "cgroup").read_text(), pods)
            if whose is not None:
                mib = anonymous_mib((folder / "smaps_rollup").read_text())
                total[whose] = total.get(whose, 0.0) + mib
        except OSError:
            continue  # the process has exited
    return {name: round(mib, 2) for name, mib in sorted(total.items())}


class Sampler(Background):
    """Periodic memory sampler. `pods` returns names by UID."""

    def __init__(
        self,
        processes: Callable[[], list[int]],
        pods: Callable[[], Mapping[str, str]],
        every: float,
    ) -> None:
        super().__init__()
        self.samples: list[dict[str, Any]] = []
        self._processes, self._pods, self._every = processes, pods, every

    def _work(self) -> None:
        began = time.monotonic()
        while not self._ending.is_set():
            pids = self._processes()
            self.samples.append(
                {
                    "minute": round((time.monotonic() - began) / 60, 3),
                    "mib": memory_by_role(pids, self._pods()),
                    "processes": len(pids),
                }
            )
            self._ending.wait(self._every)
