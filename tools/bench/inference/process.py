"""Server processes, which run on one core and are paused between measurements."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import psutil

from devcluster.paths import CHECKOUT
from tools.bench.inference.contestants import Contestant, Start, Task
from tools.bench.inference.formats import Request
from tools.bench.inference.load import Target
from tools.bench.inference.workloads import Array

READY_SECONDS: Final = 180
END_SECONDS: Final = 15

THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ServerError(Exception):
    """Error for a server that did not start or responded incorrectly.

    If the server did not start, the message ends with its log.
    """


@dataclass(frozen=True)
class RunningServer:
    """A server that accepts requests."""

    contestant: Contestant
    task: Task
    process: psutil.Process
    log: Path

    @property
    def target(self) -> Target:
        """Target for the load generator."""
        encode = self.contestant.encode[self.task.data_format]
        workload = self.task.workload
        requests = tuple(encode(workload, sample) for sample in workload.samples())
        return Target(self.url, requests)

    @property
    def url(self) -> str:
        """URL of the requests."""
        return f"http://127.0.0.1:{self.task.port}{self.contestant.path}"

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Resume the server during a block, then pause it: an idle server may use CPU time."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.pause()

    def pause(self) -> None:
        """Pause every process of the server."""
        self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the server."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def processes(self) -> list[psutil.Process]:
        """Return the process and its descendants."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self.process, *self.process.children(recursive=True)]
        return []

    def memory(self) -> int:
        """Return the memory of all processes in bytes, counting shared pages once (PSS)."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total

    def check(self, expected: Array) -> float:
        """Request every sample four times concurrently; return the largest output difference.

        Raise ServerError if a request fails, or if a response differs from `expected` by more than
        the tolerance, for example because it belongs to another request.
        """
        target = self.target
        decode = self.contestant.decode[self.task.data_format]

        def ask(number: int) -> float:
            request = target.requests[number % len(expected)]
            # A long timeout, because all requests must succeed on a server that has just started.
            headers = {**request.headers, "X-Request-Timeout": "30"}
            response = client.post(target.url, content=request.body, headers=headers)
            if response.status_code != 200:
                raise ServerError(f"{self._name}: {response.status_code} {response.text[:500]}")
            found = decode(response.content, dict(response.headers))
            return float(np.abs(found - expected[number % len(expected)].ravel()).max())

        limits = httpx.Limits(max_connections=64)
        with httpx.Client(timeout=30, limits=limits) as client, ThreadPoolExecutor(64) as pool:
            difference = max(pool.map(ask, range(4 * len(expected))))
        if difference > self.contestant.tolerance:
            raise ServerError(
                f"{self._name}: a response differs from the result of PyTorch by {difference:.3g}"
            )
        return difference

    @property
    def _name(self) -> str:
        return f"{self.contestant.name}, {self.task.workload.title}, {self.task.data_format}"


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time (s) that the processes have used, excluding exited processes."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


@contextlib.contextmanager
def serving(contestant: Contestant, task: Task, core: int) -> Iterator[RunningServer]:
    """Start a server on a core, wait for its first response, and terminate it afterwards.

    Raise ServerError if the server does not start.
    """
    start = contestant.start(task)
    log = task.scratch / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *start.command],
            cwd=task.scratch,
            env=_environment(task, start),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = RunningServer(contestant, task, psutil.Process(process.pid), log)
    try:
        wait_for(running.url, running.target.requests[0], process, log, contestant.name)
        yield running
    finally:
        stop(running, process)


def _environment(task: Task, start: Start) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        **dict.fromkeys(THREADS, "1"),
        "PATH": f"{task.python.parent}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONUNBUFFERED": "1",
        "BENCH_WORKLOAD": task.workload.name,
        "BENCH_PORT": str(task.port),
        "BENCH_FORMAT": task.data_format,
        "BENCH_EXPORT": str(task.export),
        **start.environment,
    }


def wait_for(
    url: str, request: Request, process: "subprocess.Popen[bytes]", log: Path, name: str
) -> None:
    """Send requests until one succeeds. Raise ServerError on a timeout or if the server exits."""
    deadline = time.monotonic() + READY_SECONDS
    last = "no response"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"{name} exited: {_tail(log)}")
        with contextlib.suppress(httpx.HTTPError):
            response = httpx.post(url, content=request.body, headers=request.headers, timeout=10)
            if response.status_code == 200:
                return
            last = f"{response.status_code} {response.text[:300]}"
        time.sleep(0.2)
    raise ServerError(f"{name} is not ready after {READY_SECONDS} s: {last}; {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def stop(running: RunningServer, process: subprocess.Popen[bytes]) -> None:
    """Terminate a server, and kill any of its processes that do not exit in time."""
    tree = running.processes()
    running.signal(signal.SIGCONT)
    process.terminate()
    _, left = psutil.wait_procs(tree, timeout=END_SECONDS)
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def free_port() -> int:
    """Return a free port; the next higher port is also free."""
    while True:
        with socket.socket() as probe, socket.socket() as second:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            with contextlib.suppress(OSError):
                second.bind(("127.0.0.1", port + 1))
                return port
