"""Load generator: vegeta, controlled by the small Go program in load/."""

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from devcluster.paths import CHECKOUT, cache_root
from devcluster.toolchain.go import Go
from tools.bench.inference.figures import Records
from tools.bench.inference.formats import Request
from tools.bench.outcome import print_line

SOURCES = CHECKOUT / "tools" / "bench" / "inference" / "load"


def cache() -> Path:
    """Return the cache directory of the benchmark."""
    return cache_root() / "bench-inference"


def generator() -> Path:
    """Return the path of the load generator, which is built once per version of its sources.

    Raise DevclusterError if the build fails.
    """
    digest = hashlib.sha256()
    for file in sorted(SOURCES.iterdir()):
        digest.update(file.read_bytes())
    directory = cache() / f"load-{digest.hexdigest()[:12]}"
    program = directory / "load"
    if not program.exists():
        print_line("building the load generator …")
        go = Go(cache() / "go")
        go.check(SOURCES)
        flags = ["-ldflags=-s -w"]
        go.build(["."], flags, SOURCES, directory, cache() / "load.log", lambda events: None)
        go.remove_caches()
    return program


@dataclass(frozen=True)
class Target:
    """Target of the load: a URL, and the requests to send in rotation."""

    url: str
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Load:
    """Load to generate: a closed loop of `clients`, or an open loop of `rate` requests/s."""

    seconds: float
    clients: int = 0
    rate: float = 0

    def options(self) -> list[str]:
        """Return the load as options of the generator."""
        loop = f"-clients={self.clients}" if self.clients else f"-rate={self.rate:.3f}"
        return [loop, f"-seconds={self.seconds:.3f}"]


class Generator:
    """Load generator on one core."""

    def __init__(self, program: Path, core: int, scratch: Path) -> None:
        self._program, self._core, self._scratch = program, core, scratch

    def run(self, target: Target, load: Load) -> Records:
        """Generate the load, wait for the last response and return the records of all requests.

        Raise subprocess.CalledProcessError if the generator fails.
        """
        files = []
        for number, request in enumerate(target.requests):
            file = self._scratch / f"body-{number}"
            file.write_bytes(request.body)
            files.append(str(file))
        headers = [f"-header={key}: {value}" for key, value in target.requests[0].headers.items()]
        command = ["taskset", "--cpu-list", str(self._core), str(self._program)]
        command += [f"-url={target.url}", *headers, *load.options(), *files]
        done = subprocess.run(
            command, env=os.environ | {"GOMAXPROCS": "1"}, stdout=subprocess.PIPE, check=True
        )
        return Records(np.frombuffer(done.stdout, "<f8").reshape(-1, 3))
