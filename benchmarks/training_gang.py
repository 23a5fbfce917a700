"""One of the two processes that benchmarks.training measures: `… MEASUREMENT FOLDER OPTIONS`.

The first of them writes its samples to FOLDER/samples.json.
"""

import argparse
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.training_loops import CPU, LOOPS, config, ours, prepared
from training.distributed import joined
from training.state import save
from training.world import World, read_world

BATCH = 64
PAUSE_OPTIONS = {"context": 128, "layers": 6, "heads": 8, "width": 512}


def throughput(folder: Path, world: World, turns: int) -> dict[str, Any]:
    """Samples a second of every loop, in turns of `STEPS` steps."""
    run = prepared(config(folder / "run", batch_size=BATCH), world)
    loops = {name: begin(run) for name, begin in LOOPS.items()}
    samples: dict[str, list[float]] = {name: [] for name in loops}
    steps = 40
    for turn in range(-1, turns):
        names = list(loops)
        # Each begins as often as any other.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(steps):
                next(loops[name])
            dist.barrier()
            seconds = time.perf_counter() - begun
            if turn >= 0:
                samples[name].append(steps * BATCH * world.size / seconds)
    return samples


def pause(folder: Path, world: World, turns: int) -> dict[str, Any]:
    """Seconds that a step waits: for our checkpoint, and for torch.save and the disk."""
    text = folder / "data/text"
    if world.leads:
        text.mkdir(parents=True, exist_ok=True)
        (text / "text.txt").write_bytes(os.urandom(200_000))
    dist.barrier()
    settings: dict[str, Any] = {
        "model": "gpt",
        "model_options": PAUSE_OPTIONS,
        "dataset": "text",
        "data_dir": str(folder / "data"),
        "batch_size": 1,
    }
    run = prepared(config(folder / "run", **settings), world)
    loop, bare = ours(run), run.model.model
    samples: dict[str, list[float]] = {"asynchronous": [], "written": [], "torch.save": []}
    for turn in range(-1, turns):
        next(loop)
        dist.barrier()
        begun = time.perf_counter()
        save(run)
        paused = time.perf_counter() - begun
        run.saver.wait()
        written = time.perf_counter() - begun
        next(loop)
        dist.barrier()
        begun = time.perf_counter()
        if world.leads:
            state = {"model": bare.state_dict(), "optimizer": run.optimizer.state_dict()}
            with (folder / "state.pt").open("wb") as stream:
                torch.save(state, stream)
                stream.flush()
                os.fsync(stream.fileno())
        dist.barrier()
        whole = time.perf_counter() - begun
        if turn >= 0:
            for name, value in zip(samples, (paused, written, whole), strict=True):
                samples[name].append(value)
    parameters = sum(p.numel() for p in bare.parameters())
    return samples | {"parameters": parameters, "stateMiB": parameters * 12 / 2**20}


def traffic(folder: Path, world: World, turns: int) -> dict[str, Any]:
    """Bytes a step on the wire, which is the loopback of a network namespace of our own."""
    samples = {}
    for compression in ("none", "bf16", "fp16"):
        settings: dict[str, Any] = {"gradient_compression": compression, "batch_size": BATCH}
        run = prepared(config(folder / compression, **settings), world)
        loop = ours(run)
        for _ in range(5):
            next(loop)
        dist.barrier()
        before = _sent()
        for _ in range(turns):
            next(loop)
        dist.barrier()
        samples[compression] = (_sent() - before) / turns
    return samples


MEASUREMENTS: dict[str, Callable[[Path, World, int], dict[str, Any]]] = {
    "throughput": throughput,
    "pause": pause,
    "traffic": traffic,
}


def main() -> None:
    """Joins the other process and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurement", choices=MEASUREMENTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, required=True)
    options = parser.parse_args()
    _loopback_up()
    torch.set_num_threads(1)
    world = read_world(os.environ)
    with joined(world, CPU, peer_timeout=600):
        samples = MEASUREMENTS[options.measurement](options.folder, world, options.turns)
        if world.leads:
            (options.folder / "samples.json").write_text(json.dumps(samples))
        dist.barrier()
    os._exit(0)


def _sent() -> int:
    """Bytes that went over the loopback of this network namespace."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    fields = next(line.split() for line in lines if line.strip().startswith("lo:"))
    return int(fields[9])


def _loopback_up() -> None:
    """In a new network namespace the loopback is down."""
    set_flags, up_and_running = 0x8914, 0x1 | 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", up_and_running)
        try:
            ioctl(probe.fileno(), set_flags, request)
        except PermissionError:
            # Not a namespace of our own: it is up there.
            return


if __name__ == "__main__":
    main()
