"""Throughput and overhead of the training program: `make bench-training`.

Two processes on the CPU train the same model on the same data from the same seed, alternately with
our program, a minimal hand-written loop, Lightning Fabric and Hugging Face Accelerate, so that
other load on the host affects all of them equally. All loops use our data loader and clip the
gradients.

The benchmark also measures the bytes on the wire with and without gradient compression, and the
time from killing a worker to the next step. Checkpoints are compared with dcp.async_save: how long
saving a checkpoint blocks training, and the step rate while the checkpoint is written. All samples
are written to .bench/training.json.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tools.bench.outcome import Goal, conclude, print_line, ratios, spread
from tools.bench.processes import free_port
from workload.progress import Started, Step, parse


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--turns", type=int, default=80, help="repetitions of each comparison; default: 80"
    )
    parser.add_argument("--kills", type=int, default=5, help="number of killed workers; default: 5")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rates = _run_gang("throughput", directory, options.turns)
        sent = _run_gang("traffic", directory, 20, isolated=True)
        pauses = _run_gang("pause", directory, max(3, options.turns // 8))
        recovery = [_recovery(directory / f"kill-{number}") for number in range(options.kills)]
    relative = {name: ratios(rates["ours"], rates[name]) for name in rates if name != "ours"}
    waits = ratios(pauses["ours pause"], pauses["dcp.async_save pause"])
    _show(rates, relative, sent, pauses, recovery)
    goals = [
        Goal(
            "throughput relative to a hand-written loop",
            spread(relative["by hand"])["median"],
            0.98,
        ),
        Goal(
            "throughput relative to Lightning Fabric",
            spread(relative["Lightning Fabric"])["median"],
            1,
        ),
        Goal("throughput relative to Accelerate", spread(relative["Accelerate"])["median"], 1),
        Goal("pause relative to dcp.async_save", spread(waits)["median"], 0.5, at_most=True),
    ]
    if recovery:
        seconds = spread(recovery)["median"]
        goals.append(Goal("seconds from a kill to the next step", seconds, 10, at_most=True))
    samples: dict[str, Any] = {
        "samplesPerSecond": rates,
        "throughputRatios": {name: spread(values) for name, values in relative.items()},
        "bytesPerStep": sent,
        "pauseSeconds": pauses,
        "pauseRatio": spread(waits),
        "secondsFromKillToNextStep": recovery,
    }
    conclude("training", samples, goals)


def _run_gang(
    measurement: str, directory: Path, turns: int, isolated: bool = False
) -> dict[str, Any]:
    """Run a measurement in two processes.

    If `isolated` is true and the user is root, the processes share a private network namespace.
    """
    print_line(f"{measurement} …")
    port = free_port()
    arguments = [sys.executable, "-m", "tools.bench.training_gang", measurement, str(directory)]
    arguments += [f"--turns={turns}"]
    unshare = ["unshare", "--net"] if isolated and os.geteuid() == 0 else []
    # Both processes must be in the same namespace, so one shell starts them.
    script = 'RANK=1 LOCAL_RANK=1 "$@" & RANK=0 LOCAL_RANK=0 "$@" && wait $!'
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(
        [*unshare, "bash", "-c", script, "gang", *arguments], env=environment, check=True
    )
    samples: dict[str, Any] = json.loads((directory / "samples.json").read_text())
    return samples


def _recovery(directory: Path) -> float:
    """Return the seconds from killing a worker to the next step of the restarted gang."""
    command = [sys.executable, "-m", "training.launch", "--nproc-per-node=2", "--max-restarts=1"]
    command += [f"--master-port={free_port()}", "-m", "training", "--model=simple-cnn"]
    command += ["--epochs=1000", "--checkpoint-steps=5", "--log-every=1", "--step-delay=0.02"]
    command += [f"--run-dir={directory}", "--device=cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as launcher:
        lines = iter(launcher.stdout or ())
        _await_steps(lines, 20)
        killed = time.monotonic()
        psutil.Process(launcher.pid).children()[-1].send_signal(signal.SIGKILL)
        for line in lines:
            event = parse(line)
            if isinstance(event, Started) and event.event == "resume":
                break
        _await_steps(lines, 1)
        seconds = time.monotonic() - killed
        launcher.send_signal(signal.SIGTERM)
        for _ in lines:
            pass
    shutil.rmtree(directory)
    print_line(f"recovery … {seconds:.1f} s")
    return seconds


def _await_steps(lines: Any, count: int) -> None:
    while count:
        line = next(lines, None)
        if line is None:
            sys.exit("the training program exited before it reported enough steps")
        count -= isinstance(parse(line), Step)


def _show(
    rates: dict[str, list[float]],
    relative: dict[str, list[float]],
    sent: dict[str, float],
    pauses: dict[str, Any],
    recovery: Sequence[float],
) -> None:
    for name, values in rates.items():
        print_line(f"{name:18} {_range(values, '.0f')} samples/s")
    for name, values in relative.items():
        print_line(f"ours relative to {name}: {_range(values, '.3f')}")
    for name, value in sent.items():
        print_line(
            f"compression {name:9} {value / 1e6:7.3f} MB per step, "
            f"{value / sent['none']:.2f} of the uncompressed size"
        )
    print_line(f"training state: {pauses['stateMiB']:.0f} MiB")
    for name in ("ours", "dcp.async_save"):
        pause, write = (_range(pauses[f"{name} {what}"], ".3f") for what in ("pause", "write"))
        print_line(f"  {name:14} pause {pause} s, on disk after {write} s")
    for name in ("ours", "dcp.async_save", "no save"):
        rate = _range(pauses[f"{name} steps per second"], ".2f")
        print_line(f"  {name:14} {rate} steps/s during the write")
    if recovery:
        print_line(f"from a killed worker to the next step: {_range(recovery, '.1f')} s")


def _range(values: Sequence[float], spec: str) -> str:
    found = spread(values)
    return f"{found['median']:{spec}} ({found['minimum']:{spec}} to {found['maximum']:{spec}})"


if __name__ == "__main__":
    main()
