"""Clusters that no record leads to: their state folder was removed, or their start was cut off
between the process and its record. Nobody could end them but by hand, so they are ended here.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from devcluster import cgroups, launcher
from devcluster.cluster_init import group_name
from devcluster.lock import is_held
from devcluster.paths import Layout, state_root
from devcluster.spec import Kind


def end_orphans(kind: Kind) -> int:
    """Ends every cluster of a kind that has no record; returns how many there were."""
    ended = 0
    for process in _processes(kind):
        with contextlib.suppress(psutil.Error):
            layout = Layout(Path(), _state(process) / kind)
            # Of somebody else's start, the process is there a moment before its record is.
            if layout.state != Layout.of(kind).state and is_held(layout.lock):
                continue
            record = launcher.read_record(layout)
            if record is None or record.pid != process.pid:
                launcher.kill(process)
                ended += 1
    if kind is Kind.REAL and not any(_processes(kind)):
        _remove_groups(kind)
    return ended


def running_elsewhere(kind: Kind) -> list[Path]:
    """State folders of the clusters of a kind that run on this machine for somebody."""
    found = []
    for process in _processes(kind):
        with contextlib.suppress(psutil.Error):
            found.append(_state(process))
    return found


def _processes(kind: Kind) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            program = ["-m", "devcluster.cluster_init", kind]
            ours = any(command[at : at + 3] == program for at in range(len(command)))
            if ours and command[0] == "unshare":
                yield process


def _state(process: psutil.Process) -> Path:
    return state_root(process.environ())


def _remove_groups(kind: Kind) -> None:
    folders = [folder / group_name(kind) for folder in cgroups.hierarchies().folders()]
    present = [folder for folder in folders if folder.exists()]
    if not cgroups.processes(present):
        cgroups.remove(present)
