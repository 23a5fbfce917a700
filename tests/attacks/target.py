"""The server under attack, well-behaved callers, health probes and memory measurements."""

import contextlib
import http.client
import json
import multiprocessing
import os
import re
import resource
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil

from devcluster.paths import CHECKOUT
from tests.attacks.listeners import HEALTH, command
from tests.training.programs import free_port

CALLERS: Final = 4
PAUSE: Final = 0.02
"""Seconds between a response and the caller's next request."""
PROBE_SECONDS: Final = 1.0
INFER: Final = "/v2/models/attacked/infer"

_spawn: Final = multiprocessing.get_context("spawn")


def connect(port: int, seconds: float, tls: bool) -> http.client.HTTPConnection:
    """Return a connection that opens at its first request."""
    if not tls:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=seconds, context=context)


@dataclass
class Attacked:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    admin_port: int
    tls: bool = False

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes, which are children of the fork server."""
        children = psutil.Process(self.process.pid).children()
        return [worker for child in children for worker in child.children()]

    def memory(self) -> int:
        """Return the memory (bytes) of the server and its workers, without shared files."""
        server = psutil.Process(self.process.pid)
        total = 0
        for process in (server, *server.children(recursive=True)):
            with contextlib.suppress(OSError, psutil.Error):
                text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                sizes = re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", text, re.MULTILINE)
                total += sum(map(int, sizes)) * 1024
        return total

    def busy(self) -> float:
        """Return the CPU time (s) used by the process that runs the event loop."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def probe(self, path: str = HEALTH) -> tuple[int, float]:
        """Send a probe over a new connection, like the kubelet; return its status and duration."""
        started = time.monotonic()
        connection = connect(self.admin_port, PROBE_SECONDS, self.tls)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            status = 0
        finally:
            connection.close()
        return status, time.monotonic() - started


@contextlib.contextmanager
def attacked(
    folder: Path, files: int = 0, listener: str = "", **settings: object
) -> Iterator[Attacked]:
    """Start our server with the model `Amplifier`, or the `listener` of tests.attacks.listeners.

    `files` is the maximum number of open files; 0 means no limit.
    """
    from tests.inference.engine.exports import write_probe

    write_probe(folder / "export")
    port, admin_port = free_port(), free_port()
    values = {
        "MODEL_NAME": "attacked",
        "MODEL_PATH": folder / "export",
        "HANDLER": "tests.attacks.model:Amplifier",
        "HOST": "127.0.0.1",
        "PORT": port,
        "ADMIN_PORT": admin_port,
        "THREADS": 1,
        "NOTICE_SECONDS": 0,
    } | {name.upper(): value for name, value in settings.items()}
    environment = os.environ | {f"INFERENCE_{name}": str(value) for name, value in values.items()}
    started = [sys.executable, "-m", "inference"]
    if listener:
        # Other listeners have no admin port.
        started, admin_port = command(listener, port), port
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(started, env=environment, cwd=CHECKOUT, stdout=log)
    if files:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
    server = Attacked(process, port, admin_port, "tls_key" in settings)
    try:
        deadline = time.monotonic() + 120
        while server.probe()[0] != 200:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class Callers:
    """Results of well-behaved callers: number of requests answered in time, and status codes."""

    answered: int = 0
    codes: dict[int, int] = field(default_factory=dict)


def infer_body(action: int = 0, samples: int = 1, output: str = "value") -> bytes:
    """Return a request with `samples` samples for one output."""
    data = [action, 0, 7] * samples
    tensor = {"name": "inputs", "shape": [samples, 3], "datatype": "FP32", "data": data}
    wanted: dict[str, Any] = {"name": output}
    if output == "large":
        wanted["parameters"] = {"binary_data": True}
    return json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()


def call(port: int, seconds: float, tls: bool, results: Connection) -> None:
    """Send requests over a few connections for some time, then send the result to `results`."""
    from concurrent.futures import ThreadPoolExecutor

    until = time.monotonic() + seconds
    outcome = Callers()

    def loop(_: int) -> None:
        connection: http.client.HTTPConnection | None = None
        while time.monotonic() < until:
            try:
                if connection is None:
                    connection = connect(port, 2, tls)
                connection.request("POST", INFER, infer_body())
                answer = connection.getresponse()
                answer.read()
                code = answer.status
                if answer.will_close:
                    connection = None
            except (OSError, http.client.HTTPException):
                code, connection = 0, None
            outcome.codes[code] = outcome.codes.get(code, 0) + 1
            outcome.answered += code == 200
            time.sleep(PAUSE)

    with ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(loop, range(CALLERS)))
    results.send(outcome)


def start_callers(server: Attacked, seconds: float) -> Callable[[], Callers]:
    """Start callers in a process; the returned function waits for their results."""
    receiver, sender = _spawn.Pipe(duplex=False)
    process = _spawn.Process(
        target=call, args=(server.port, seconds, server.tls, sender), daemon=True
    )
    process.start()

    def wait() -> Callers:
        if not receiver.poll(seconds + 60):
            raise RuntimeError("the callers did not finish")
        outcome: Callers = receiver.recv()
        process.join()
        return outcome

    return wait
