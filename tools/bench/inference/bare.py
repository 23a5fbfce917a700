"""Upper bound on throughput: a PyTorch loop that turns raw bytes into responses, without a server.

When run as a program, this module reads lines of the form {"seconds": s}. For each line, it runs
the loop for `s` seconds and prints the number of samples per second.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from devcluster.paths import CHECKOUT
from tools.bench.inference.networks import compute_of
from tools.bench.inference.process import THREADS
from tools.bench.inference.workloads import MAX_BATCH, WORKLOADS, Workload


@dataclass(frozen=True)
class Loop:
    """A process that runs the loop on request."""

    process: "subprocess.Popen[str]"

    def rate(self, seconds: float) -> float:
        """Run the loop and return the number of samples per second.

        Raise RuntimeError if the process has exited.
        """
        assert self.process.stdin  # noqa: S101  both are pipes
        assert self.process.stdout  # noqa: S101
        self.process.stdin.write(f"{json.dumps({'seconds': seconds})}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the bare loop exited")
        return float(answer)


@contextlib.contextmanager
def start_loop(workload: Workload, export: Path, core: int) -> Iterator[Loop]:
    """Start the loop's process on a core. It computes only while a rate is requested."""
    command = ["taskset", "--cpu-list", str(core), sys.executable, "-m", __name__]
    command += [workload.name, str(export)]
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


def _run_loop(workload: Workload, directory: Path) -> None:
    compute = compute_of(workload, directory)
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
    _run_loop(WORKLOADS[sys.argv[1]], Path(sys.argv[2]))
