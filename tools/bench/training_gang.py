"""One of the two processes of tools.bench.training: `… MEASUREMENT DIRECTORY OPTIONS`.

Rank 0 writes its samples to DIRECTORY/samples.json.
"""

import argparse
import itertools
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

from training.checkpoints.state import save
from training.config import TrainingConfig
from training.data import Images
from training.data.loader import GangSampler, Loader
from training.gang.distributed import joined
from training.gang.world import World, read_world
from training.preparation import prepare
from training.run import Run
from training.telemetry.metrics import Metrics
from training.telemetry.progress import ProgressOutputs
from training.train import step, steps
from workload.models import build
from workload.run.watchdog import Watchdog

BATCH = 64
PAUSE_OPTIONS = {"context": 128, "layers": 6, "heads": 8, "width": 512}


def throughput(folder: Path, world: World, turns: int) -> dict[str, Any]:
    """Return samples per second of every loop, in turns of `STEPS` steps."""
    run = prepared(config(folder / "run", batch_size=BATCH), world)
    loops = {name: begin(run) for name, begin in LOOPS.items()}
    samples: dict[str, list[float]] = {name: [] for name in loops}
    steps = 40
    for turn in range(-1, turns):
        names = list(loops)
        # Each loop is first equally often.
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
    """Return the seconds that a step waits for our checkpoint, and for torch.save and the disk."""
    text = folder / "data/text"
    if world.is_rank0:
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
        if world.is_rank0:
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
    """Return bytes per step on the wire: the loopback of our network namespace."""
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
    """Join the other process and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurement", choices=MEASUREMENTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, required=True)
    options = parser.parse_args()
    _loopback_up()
    torch.set_num_threads(1)
    world = read_world(os.environ)
    with joined(world, CPU, timeout=600):
        samples = MEASUREMENTS[options.measurement](options.folder, world, options.turns)
        if world.is_rank0:
            (options.folder / "samples.json").write_text(json.dumps(samples))
        dist.barrier()
    os._exit(0)


def _sent() -> int:
    """Return the bytes sent over the loopback of this network namespace."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    fields = next(line.split() for line in lines if line.strip().startswith("lo:"))
    return int(fields[9])


def _loopback_up() -> None:
    """Set up the loopback, which is down in a new network namespace."""
    set_flags, up_and_running = 0x8914, 0x1 | 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", up_and_running)
        try:
            ioctl(probe.fileno(), set_flags, request)
        except PermissionError:
            # Not in a separate namespace: the loopback is up.
            return


CPU = torch.device("cpu")
Loop = Iterator[None]


def ours(run: Run) -> Loop:
    """Train as training.train does in an epoch, with its watchdog, metrics and votes."""
    config, world = run.config, run.world
    sampler = GangSampler(
        run.data.train, config.batch_size, config.accumulate, world.rank, world.size, config.seed
    )
    loader = Loader(run.data.train, sampler, run.device, config.loader_workers)
    with ProgressOutputs(run) as outputs:
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            run.position.epoch, run.position.seen = 0, 0
            for batches in run.metrics.timed(steps(loader)):
                step(run, batches, outputs)
                run.should_stop()
                yield


def prepared(config: TrainingConfig, world: World) -> Run:
    """Return a run that is ready to train."""
    watchdog = Watchdog(config.hang_limit)
    return prepare(config, world, CPU, watchdog, Metrics(CPU))


def by_hand(run: Run) -> Loop:
    """Train with a minimal loop: DistributedDataParallel and AdamW, data in memory."""
    model, optimizer = _fresh(run)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    images, world, batch_size = _images(run), run.world, run.config.batch_size
    for epoch in itertools.count():
        order = np.random.default_rng(epoch).permutation(len(images))
        for start in range(0, len(order) - batch_size * world.size + 1, batch_size * world.size):
            mine = order[start + world.rank : start + batch_size * world.size : world.size]
            pixels = torch.from_numpy(images.pixels[mine]).float() / images.white
            loss = cross_entropy(ddp(pixels), torch.from_numpy(images.labels[mine]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield


def lightning_fabric(run: Run) -> Loop:
    """Train with Lightning Fabric as in its guide."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=run.world.size, strategy="ddp")
    fabric.launch()
    model, optimizer = fabric.setup(*_fresh(run))
    return _epochs(
        fabric.setup_dataloaders(_loader(run)), model, optimizer, lambda loss: fabric.backward(loss)
    )


def accelerate(run: Run) -> Loop:
    """Train with Hugging Face Accelerate as in its guide."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(*_fresh(run), _loader(run))
    return _epochs(loader, model, optimizer, lambda loss: accelerator.backward(loss))


LOOPS: dict[str, Callable[[Run], Loop]] = {
    "ours": ours,
    "by hand": by_hand,
    "Lightning Fabric": lightning_fabric,
    "Accelerate": accelerate,
}


def _epochs(loader: Any, model: Any, optimizer: Any, backward: Callable[[Any], object]) -> Loop:
    for _ in itertools.count():
        for pixels, labels in loader:
            loss = cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            yield


def _fresh(run: Run) -> tuple[nn.Module, torch.optim.Optimizer]:
    config = run.config
    torch.manual_seed(config.seed)
    model = build(config.model, config.model_options, run.data.outputs, run.data.shape)
    decay = config.weight_decay
    return model, torch.optim.AdamW(model.parameters(), config.learning_rate, weight_decay=decay)


def _loader(run: Run) -> data.DataLoader[Any]:
    images = _images(run)
    pixels = torch.from_numpy(images.scaled())
    tensors = data.TensorDataset(pixels, torch.from_numpy(images.labels))
    return data.DataLoader(tensors, run.config.batch_size, shuffle=True, drop_last=True)


def _images(run: Run) -> Images:
    images = run.data.train
    if not isinstance(images, Images):
        raise TypeError(f"the loops compare images in memory, not {type(images).__name__}")
    return images


def config(run_dir: Path, **settings: Any) -> TrainingConfig:
    """Return the configuration of all measurements: SimpleCNN on digits enlarged to 32 x 32."""
    usual = {"model": "simple-cnn", "dataset": "digits", "epochs": 1_000_000, "device": "cpu"}
    return TrainingConfig.model_validate({**usual, "run_dir": str(run_dir), **settings})


if __name__ == "__main__":
    main()
