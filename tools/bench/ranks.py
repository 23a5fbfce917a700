"""Resource usage per rank in gangs of 4 and 16 processes: `make bench-ranks` (Linux, strace).

A gang trains a small sharded model (FSDP2) on tokens, is interrupted, and resumes. The benchmark
traces which checkpoint files the processes open and how much data they read. It reads their
connections and peak memory from /proc. All processes run on one host, which acts as one node.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final, Literal

import numpy as np
import psutil

from tools.bench.outcome import Goal, conclude, print_line
from training.data.manifest import TokensManifest, write_manifest
from training.data.prepare.output import TokenWriter

FEW, MANY = 4, 16
"""Numbers of processes to compare."""

SMALL, LARGE = 4, 16
"""Data set sizes to compare (MiB). Each file contains 1 MiB."""

BOUNDED_FIGURES: Final = ("median peak MiB per rank", "files opened per rank")
"""Figures that may grow at most half as fast as the number of ranks. The number of connections may
grow faster, because gloo connects all ranks pairwise."""

_OPENED: Final = re.compile(r'openat\(.*?"([^"]+)".*\) = (\d+)')
_READ: Final = re.compile(r"p?read(?:64)?\(\d+<([^>]+)>.*\) = (\d+)$")

Start = Literal["first start", "resume"]


def main() -> None:
    """Measure, print and write the result."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not shutil.which("strace"):
        sys.exit("make bench-ranks requires strace: apt-get install strace")
    found = {}
    for processes, size in ((FEW, SMALL), (FEW, LARGE), (MANY, SMALL)):
        with tempfile.TemporaryDirectory() as directory:
            write_tokens(Path(directory) / "data/tokens", size)
            found[processes, size] = measure(Path(directory), processes)
        for start, figures in found[processes, size].items():
            print_line(f"{processes} processes, {size} MiB of data, {start}: {figures}")
    growth = MANY / FEW
    goals = [
        Goal(
            f"{figure}, {start}: ratio of {MANY} to {FEW} processes",
            found[MANY, SMALL][start][figure] / max(found[FEW, SMALL][start][figure], 1),
            growth / 2,
            at_most=True,
        )
        for start in found[MANY, SMALL]
        for figure in BOUNDED_FIGURES
    ]
    read = found[FEW, LARGE]["resume"]["MiB of data read"]
    goals.append(
        Goal("share of the data that a resumed run reads", read / LARGE, 0.05, at_most=True)
    )
    named = {f"{p} processes, {size} MiB of data": figures for (p, size), figures in found.items()}
    conclude("ranks", {"samples": named}, goals)


def write_tokens(directory: Path, mebibytes: int) -> None:
    """Write random tokens in files of 1 MiB."""
    directory.mkdir(parents=True)
    splits = []
    for prefix, size in (("train", mebibytes * 2**19), ("held-out", 2**10)):
        with TokenWriter(directory, prefix, np.dtype(np.uint16), 2**20) as writer:
            writer.add(np.random.default_rng(0).integers(0, 256, size))
            splits.append(writer.close())
    manifest = TokensManifest(dtype="uint16", vocabulary=256, train=splits[0], held_out=splits[1])
    write_manifest(directory, manifest)


def measure(directory: Path, processes: int) -> dict[Start, dict[str, float]]:
    """Return the figures for a first start, which is interrupted, and for the resumption."""
    results: dict[Start, dict[str, float]] = {}
    starts: tuple[Start, ...] = ("first start", "resume")
    for start in starts:
        traces = directory / start.replace(" ", "-")
        traces.mkdir()
        command = [
            *("strace", "-ff", "-y", "-qq", "--seccomp-bpf", "-e", "trace=openat,read,pread64"),
            *("-o", str(traces / "calls"), sys.executable, "-m", "training.launch"),
            *("--standalone", f"--nproc-per-node={processes}", "-m", "training", "--model=gpt"),
            '--model-options={"context": 64, "layers": 4, "heads": 4, "width": 256}',
            *(
                "--dataset=tokens",
                f"--data-dir={directory / 'data'}",
                f"--run-dir={directory / 'run'}",
            ),
            *("--parallel=fsdp", "--batch-size=1", "--train-steps=12", "--checkpoint-steps=4"),
            *("--log-every=1", "--preflight=off", "--evaluate-samples=16"),
            f"--step-delay={0.5 if start == 'first start' else 0}",
        ]
        output = directory / f"{start}.txt"
        with output.open("wb") as stream:
            launcher = subprocess.Popen(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        maxima = watch(launcher, output, stop=start == "first start")
        results[start] = {**maxima, **traced(traces, directory)}
    return results


def watch(launcher: subprocess.Popen[bytes], output: Path, *, stop: bool) -> dict[str, float]:
    """Sample the ranks until they exit, and return the median and the maximum of each figure.

    With `stop`, interrupt the gang after the first checkpoint.
    """
    connections: dict[int, int] = {}
    peaks: dict[int, float] = {}
    stopped = False
    while launcher.poll() is None:
        steps = [json.loads(line) for line in lines(output)]
        training = [line["step"] for line in steps if line.get("event") == "step"]
        for process in ranks(launcher.pid):
            try:
                peaks[process.pid] = max(peak_mib(process.pid), peaks.get(process.pid, 0))
                if training:
                    tcp = process.net_connections("tcp")
                    used = sum(one.status == psutil.CONN_ESTABLISHED for one in tcp)
                    connections[process.pid] = max(used, connections.get(process.pid, 0))
            except (psutil.Error, OSError):
                continue
        if stop and not stopped and training and training[-1] >= 5:
            launcher_of(launcher.pid).send_signal(signal.SIGTERM)
            stopped = True
        time.sleep(0.1)
    if launcher.returncode != (75 if stop else 0):
        sys.exit(f"the gang exited with code {launcher.returncode}:\n{output.read_text()[-4000:]}")
    ordered, memory = sorted(connections.values()), sorted(peaks.values())
    return {
        "median connections per rank": ordered[len(ordered) // 2],
        "maximum connections": ordered[-1],
        "median peak MiB per rank": round(memory[len(memory) // 2]),
        "maximum peak MiB": round(memory[-1]),
    }


def lines(output: Path) -> list[str]:
    """Return the progress lines in an output file."""
    return [line for line in output.read_text().splitlines() if line.startswith('{"event"')]


def launcher_of(strace: int) -> psutil.Process:
    """Return the launcher process that strace started."""
    (child,) = psutil.Process(strace).children()
    return child


def ranks(strace: int) -> list[psutil.Process]:
    """Return the running processes of the ranks."""
    try:
        return launcher_of(strace).children()
    except (psutil.Error, ValueError):
        return []


def peak_mib(pid: int) -> float:
    """Return the peak resident memory of a process. Raise OSError if it has exited."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0


def traced(traces: Path, directory: Path) -> dict[str, float]:
    """Return figures about the checkpoint files that ranks open and the data that they read."""
    opened, read = Counter[str](), 0
    ranks = 0
    for path in traces.iterdir():
        text = path.read_text(errors="replace")
        names = [found[1] for found in _OPENED.finditer(text)]
        files = [name for name in names if name.startswith(f"{directory}/run/checkpoints/step")]
        opened.update(files)
        read += sum(
            int(found[2])
            for found in map(_READ.match, text.splitlines())
            if found and found[1].startswith(f"{directory}/data/")
        )
        ranks += f"{directory}/data" in text
    return {
        "files opened per rank": round(sum(opened.values()) / max(1, ranks), 2),
        "maximum opens of one file": max(opened.values(), default=0),
        "MiB of data read": round(read / 2**20, 2),
    }


if __name__ == "__main__":
    main()
