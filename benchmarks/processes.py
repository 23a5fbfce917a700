"""Runs a command and tells what it used, with everything that it started."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_EVERY = 0.1


@dataclass(frozen=True)
class Used:
    """Of a command: seconds of the clock and of the processors, and its peak memory in MiB.

    Memory is the proportional set size of all processes together, looked at ten times a second.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float


def measured(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Used:
    """Runs a command to its end. Exits with what it said where it fails."""
    before, began = _cpu(), time.perf_counter()
    process = subprocess.Popen(
        list(command),
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
    watcher.start()
    said, _ = process.communicate()
    seconds = time.perf_counter() - began
    watcher.join()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{said[-4000:]}")
    return Used(round(seconds, 3), round(_cpu() - before, 3), round(peak[0] / 2**20, 1))


def _watch(process: subprocess.Popen[str], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], _memory(process.pid))
        time.sleep(_EVERY)


def _memory(pid: int) -> int:
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for each in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_full_info().pss
    return total


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
