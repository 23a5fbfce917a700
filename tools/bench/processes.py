"""Helpers that measure the resource usage of commands and find free TCP ports."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_INTERVAL = 0.1


@dataclass(frozen=True)
class ResourceUsage:
    """Resource usage of commands: wall-clock and CPU seconds, and peak memory in MiB.

    Memory is the proportional set size of all processes, sampled ten times per second.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float


def measured(
    command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> ResourceUsage:
    """Run a command and return its resource usage. Exit with its output if it fails."""
    return measured_together([command], directory, environment, concurrent=1)


def measured_together(
    commands: Sequence[Sequence[str]],
    directory: Path,
    environment: Mapping[str, str],
    concurrent: int,
) -> ResourceUsage:
    """Run commands, at most `concurrent` at a time, and return their resource usage.

    All commands are run. If any command fails, exit with the output of the first failed command in
    `commands`.
    """
    before, began = child_cpu_seconds(), time.perf_counter()
    running: dict[int, subprocess.Popen[str]] = {}

    def run(command: Sequence[str]) -> str | None:
        with subprocess.Popen(
            list(command),
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            running[process.pid] = process
            output, _ = process.communicate()
            del running[process.pid]
        failed = f"{' '.join(command)} failed:\n{output[-4000:]}"
        return failed if process.returncode else None

    peak, finished = [0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(running, peak, finished), daemon=True)
    watcher.start()
    with ThreadPoolExecutor(concurrent) as pool:
        failures = list(pool.map(run, commands))
    seconds = time.perf_counter() - began
    finished.set()
    watcher.join()
    if failed := next(filter(None, failures), None):
        sys.exit(failed)
    return ResourceUsage(
        round(seconds, 3), round(child_cpu_seconds() - before, 3), round(peak[0] / 2**20, 1)
    )


def _watch(
    running: Mapping[int, subprocess.Popen[str]], peak: list[int], finished: threading.Event
) -> None:
    while not finished.wait(_INTERVAL):
        peak[0] = max(peak[0], sum(_memory(pid) for pid in list(running)))


def _memory(pid: int) -> int:
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for each in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_full_info().pss
    return total


def child_cpu_seconds() -> float:
    """Return the CPU time (s) of all child processes that have exited."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(run: Callable[[], Any]) -> float:
    """Run a function and return the elapsed time in seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def free_port() -> int:
    """Return a TCP port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
