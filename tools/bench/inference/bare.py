"""Upper bound of throughput: PyTorch in a loop from raw bytes to responses, without a server.

As a program, it reads one JSON object per line, {"seconds": s}, and prints the number of samples
per second.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from devcluster.paths import CHECKOUT
from tools.bench.inference.networks import compute_of
from tools.bench.inference.process import THREADS
from tools.bench.inference.workloads import MAX_BATCH, WORKLOADS, Array, Compute, Workload

PLAIN: Final = "plain"
"""Plain PyTorch, which the peers use. Other values are names of our server's backends."""


@dataclass(frozen=True)
class Loop:
    """A process that runs the loop on request."""

    process: "subprocess.Popen[str]"

    def rate(self, seconds: float) -> float:
        """Return the number of samples per second. Raise RuntimeError if the process has exited."""
        assert self.process.stdin  # noqa: S101  both are pipes
        assert self.process.stdout  # noqa: S101
        self.process.stdin.write(f"{json.dumps({'seconds': seconds})}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the bare loop exited")
        return float(answer)


@contextlib.contextmanager
def looping(workload: Workload, export: Path, backend: str, core: int) -> Iterator[Loop]:
    """Run a loop on a core. It waits between requests."""
    command = ["taskset", "--cpu-list", str(core), sys.executable, "-m", __name__]
    command += [workload.name, str(export), backend]
    environment = os.environ | dict.fromkeys(THREADS, "1")
    with subprocess.Popen(
        command,
        cwd=CHECKOUT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Loop(process)
        finally:
            process.kill()


def computation(workload: Workload, directory: Path, backend: str, scratch: Path) -> Compute:
    """Return the function that computes a batch with a backend of our server or plain PyTorch."""
    if backend == PLAIN or not workload.computes:
        return compute_of(workload, directory)
    from inference.allocator import keep_freed_memory
    from inference.engine.backends import Choice, load_backend
    from workload.manifest import read_manifest

    keep_freed_memory()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    manifest = read_manifest(directory)
    network = load_backend(Choice(backend, directory, manifest, device, "", scratch))  # type: ignore[arg-type]

    def compute(batch: Array) -> Array:
        with torch.inference_mode():
            probabilities: Array = network(torch.from_numpy(batch)).softmax(1).numpy()
        return probabilities

    return compute


def _serve(workload: Workload, directory: Path, backend: str, scratch: Path) -> None:
    compute = computation(workload, directory, backend, scratch)
    bodies = [sample.tobytes() for sample in workload.samples()]

    def batch() -> None:
        rows = [
            np.frombuffer(bodies[number % len(bodies)], "<f4").reshape(workload.shape)
            for number in range(MAX_BATCH)
        ]
        for row in compute(np.stack(rows)):
            row.tobytes()

    for _ in range(3):
        batch()
    for line in sys.stdin:
        seconds = json.loads(line)["seconds"]
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            batch()
            count += MAX_BATCH
        sys.stdout.write(f"{json.dumps(count / (time.perf_counter() - started))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        _serve(WORKLOADS[sys.argv[1]], Path(sys.argv[2]), sys.argv[3], Path(name))
