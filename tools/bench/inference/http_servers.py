"""HTTP servers that echo each request, without a model."""

import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil

from devcluster.paths import CHECKOUT
from tools.bench.inference.figures import Window, figures
from tools.bench.inference.formats import RAW, Request
from tools.bench.inference.load import Load, Target
from tools.bench.inference.measure import Bench
from tools.bench.inference.process import cpu_seconds, free_port, wait_for
from tools.bench.outcome import print_line
from tools.environments import environment

ECHO: Final = "tools.bench.inference.servers.echo"
SIZES: Final = {"64 B": 64, "12 KiB": 12_288}
"""Sizes in bytes of a request to the no-op model and of a request with an image."""


def _granian(interface: str, port: int) -> list[str]:
    options = ["--no-ws", "--no-access-log", "--log-level", "warning", "--http", "1"]
    return [
        "-m", "granian", "--interface", interface, "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--loop", "uvloop", *options, f"{ECHO}:{interface}_app",
    ]  # fmt: skip


def _commands(port: int) -> Mapping[str, list[str]]:
    return {
        "Granian, RSGI": _granian("rsgi", port),
        "Granian, ASGI": _granian("asgi", port),
        "uvicorn, httptools and uvloop": [
            "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port), "--no-access-log",
            "--log-level", "warning", "--loop", "uvloop", "--http", "httptools", f"{ECHO}:asgi_app",
        ],
        "aiohttp, uvloop": ["-m", ECHO, "aiohttp", str(port)],
        "ours, with its limits": ["-m", ECHO, "ours", str(port)],
    }  # fmt: skip


def http_servers(bench: Bench) -> dict[str, dict[str, list[float]]]:
    """Return requests/s with 64 clients and CPU time (µs) per request, by server and size.

    Each list contains one value per round.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(bench.turns):
        for name in _commands(0):
            print_line(f"HTTP server: {name} …")
            port = free_port()
            with _echo_server(_commands(port)[name], bench.server_core, port) as (url, process):
                for size, length in SIZES.items():
                    target = Target(url, (Request(bytes(length), RAW),))
                    bench.generator.run(target, Load(bench.seconds / 3, clients=64))
                    before = cpu_seconds([process, *process.children(recursive=True)])
                    records = bench.generator.run(target, Load(2 * bench.seconds, clients=64))
                    used = cpu_seconds([process, *process.children(recursive=True)]) - before
                    window = Window(bench.seconds / 5, 2 * bench.seconds)
                    rate = figures(records, deadline=1, window=window).throughput
                    samples = found.setdefault(name, {})
                    samples.setdefault(f"{size}, requests/s", []).append(rate)
                    cpu = 1e6 * used / len(records.rows)
                    samples.setdefault(f"{size}, CPU µs per request", []).append(cpu)
    return found


@contextlib.contextmanager
def _echo_server(
    arguments: list[str], core: int, port: int
) -> Iterator[tuple[str, psutil.Process]]:
    python = environment("bench-http", inherits=True)
    command = ["taskset", "--cpu-list", str(core), str(python), *arguments]
    url = f"http://127.0.0.1:{port}/"
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=CHECKOUT, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait_for(url, Request(b"ready?", RAW), process, log, arguments[1])
            yield url, psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
