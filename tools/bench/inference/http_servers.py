"""HTTP servers without an application, which echo the request."""

import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from devcluster.paths import CHECKOUT
from tools.bench.inference.environments import python_of
from tools.bench.inference.figures import Window, figures
from tools.bench.inference.forms import RAW, Request
from tools.bench.inference.load import Load, Target
from tools.bench.inference.measure import Bench
from tools.bench.inference.process import free_port, wait_for
from tools.bench.outcome import say

ECHO: Final = "tools.bench.inference.servers.echo"
SIZES: Final = {"64 B": 64, "12 KiB": 12_288}
"""Sizes of requests to the no-op model and of a request with an image."""


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
        "aiohttp, uvloop": ["-m", ECHO, str(port)],
    }  # fmt: skip


def http_servers(bench: Bench) -> dict[str, dict[str, list[float]]]:
    """Return requests per second of 64 clients, by server and request size, one sample per turn."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(bench.turns):
        for name in _commands(0):
            say(f"HTTP server: {name} …")
            port = free_port()
            with _echo(_commands(port)[name], bench.server_core, port) as url:
                for size, length in SIZES.items():
                    target = Target(url, (Request(bytes(length), RAW),))
                    bench.generator.run(target, Load(bench.seconds / 3, clients=64))
                    records = bench.generator.run(target, Load(2 * bench.seconds, clients=64))
                    window = Window(bench.seconds / 5, 2 * bench.seconds)
                    rate = figures(records, deadline=1, window=window).throughput
                    found.setdefault(name, {}).setdefault(size, []).append(rate)
    return found


@contextlib.contextmanager
def _echo(arguments: list[str], core: int, port: int) -> Iterator[str]:
    python = python_of("http")
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
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
