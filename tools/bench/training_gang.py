"""Worker process that tools.bench.training and tools.bench.gpu start.

Rank 0 writes its samples to DIRECTORY/samples.json.
"""

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from fcntl import ioctl
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from training.accelerator import configure, precision_of
from training.checkpoints.state import save
from training.config import TrainingConfig
from training.data.loader import GangSampler, Loader
from training.gang.distributed import joined
from training.gang.world import World, read_world
from training.preparation import prepare
from training.run import Run
from training.telemetry.metrics import Metrics
from training.telemetry.progress import ProgressOutputs
from training.train import step, steps
from workload.devices import PRECISIONS, choose_device
from workload.models import build
from workload.run import Watchdog

Loop = Iterator[None]

BATCH = 64
STEPS = 10
"""Number of steps after which the next loop takes its turn."""
MAX_NORM = 1.0
"""Norm to which all loops clip the gradients. The program always computes the norm."""
MIN_STEPS = 3
PAUSE_OPTIONS = {"context": 128, "layers": 6, "heads": 8, "width": 512}
LARGE_OPTIONS = {"context": 1024, "layers": 24, "heads": 16, "width": 1024}
"""Options of a language model with 302 million parameters, for runs on a GPU."""
LARGE_BATCH = 16
"""Samples per step of this language model."""


def throughput(directory: Path, world: World, turns: int, device: str) -> dict[str, Any]:
    """Return the samples per second of every loop. The loops alternate every `STEPS` steps.

    On the CPU, they train SimpleCNN. On a GPU, they train a large language model.
    """
    settings: dict[str, Any] = {"batch_size": BATCH}
    if device == "cuda":
        settings = text_settings(directory, world, LARGE_OPTIONS, LARGE_BATCH)
    batch = settings["batch_size"]
    settings["clip_norm"] = MAX_NORM
    run = prepared(config(directory / "run", device=device, **settings), world)
    loops = {name: LOOPS[name](run) for name in installed()}
    samples: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(-1, turns):
        names = list(loops)
        # The order is rotated so that each loop goes first equally often.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            _synchronize()
            started = time.perf_counter()
            for _ in range(STEPS):
                next(loops[name])
            _synchronize()
            seconds = time.perf_counter() - started
            if turn >= 0:
                samples[name].append(STEPS * batch * world.size / seconds)
    return samples


def text_settings(
    directory: Path, world: World, options: dict[str, Any], batch: int
) -> dict[str, Any]:
    """Write random text, and return the settings for training a language model on it."""
    text = directory / "data/text"
    if world.is_rank0:
        text.mkdir(parents=True, exist_ok=True)
        (text / "text.txt").write_bytes(os.urandom(200_000))
    dist.barrier()
    return {
        "model": "gpt",
        "model_options": options,
        "dataset": "text",
        "data_dir": str(directory / "data"),
        "batch_size": batch,
    }


def pause(directory: Path, world: World, turns: int, device: str) -> dict[str, Any]:
    """Return the time that training waits for a checkpoint, and the step rate during the write.

    The baseline is dcp.async_save. `no save` is the step rate without a checkpoint.
    """
    large = device == "cuda"
    options, batch = (LARGE_OPTIONS, LARGE_BATCH) if large else (PAUSE_OPTIONS, 1)
    settings = text_settings(directory, world, options, batch)
    run = prepared(config(directory / "run", device=device, **settings), world)
    loop, bare = ours(run), run.model.model
    group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))

    def save_ours() -> Future[Any]:
        save(run)
        return run.saver._pending[-1]

    def save_dcp(turn: int) -> Future[Any]:
        state = {"model": bare.state_dict(), "optimizer": run.optimizer.state_dict()}
        path = str(directory / f"dcp-{turn}")
        written = async_save(state, checkpoint_id=path, process_group=group)
        return cast(Future[Any], written)

    for _ in range(3):
        next(loop)
    samples: dict[str, list[float]] = {
        f"{name} {what}": []
        for name in ("ours", "dcp.async_save", "no save")
        for what in ("pause", "write", "steps per second")
    }
    for turn in range(-1, turns):
        found = {
            "ours": _measure_save(loop, save_ours),
            "dcp.async_save": _measure_save(loop, lambda: save_dcp(turn)),  # noqa: B023
        }
        shutil.rmtree(directory / f"dcp-{turn}", ignore_errors=True)
        found["no save"] = _measure_save(loop, lambda: None)
        if turn >= 0:
            for name, values in found.items():
                for what, value in values.items():
                    samples[f"{name} {what}"].append(value)
    parameters = sum(p.numel() for p in bare.parameters())
    return samples | {"parameters": parameters, "stateMiB": parameters * 12 / 2**20}


def _measure_save(loop: Loop, start: Callable[[], Future[Any] | None]) -> dict[str, float]:
    """Start saving, and train for at least three steps and until the checkpoint is on disk.

    Return the seconds that training waited, the seconds until everything was on disk, and the step
    rate after the wait.
    """
    _synchronize()
    started, ends = time.perf_counter(), list[float]()
    saving = start()
    paused = time.perf_counter() - started
    if saving is not None:
        saving.add_done_callback(lambda _: ends.append(time.perf_counter() - started))
    count, unfinished = 0, torch.ones(1)
    while unfinished.item() or count < MIN_STEPS:
        next(loop)
        count += 1
        # All processes must run the same number of steps.
        unfinished.fill_(float(saving is not None and not ends))
        dist.all_reduce(unfinished, dist.ReduceOp.MAX)
    _synchronize()
    rate = count / (time.perf_counter() - started - paused)
    return {"pause": paused, "write": max(ends, default=paused), "steps per second": rate}


def _synchronize() -> None:
    """Wait until the GPU and the other processes have finished all pending work."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    dist.barrier()


def traffic(directory: Path, world: World, turns: int, device: str) -> dict[str, Any]:
    """Return the bytes that each step sends over this network namespace's loopback interface."""
    samples = {}
    for compression in ("none", "bf16", "fp16"):
        settings: dict[str, Any] = {"gradient_compression": compression, "batch_size": BATCH}
        run = prepared(config(directory / compression, device=device, **settings), world)
        loop = ours(run)
        for _ in range(5):
            next(loop)
        dist.barrier()
        before = _bytes_sent()
        for _ in range(turns):
            next(loop)
        dist.barrier()
        samples[compression] = (_bytes_sent() - before) / turns
    return samples


MEASUREMENTS: dict[str, Callable[[Path, World, int, str], dict[str, Any]]] = {
    "throughput": throughput,
    "pause": pause,
    "traffic": traffic,
}


def main() -> None:
    """Join the gang and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurement", choices=MEASUREMENTS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    _loopback_up()
    torch.set_num_threads(1)
    world = read_world(os.environ)
    device = choose_device(options.device, world.local_rank)
    configure(device)
    with joined(world, device, timeout=600):
        measure = MEASUREMENTS[options.measurement]
        samples = measure(options.directory, world, options.turns, options.device)
        if world.is_rank0:
            (options.directory / "samples.json").write_text(json.dumps(samples))
        dist.barrier()
    os._exit(0)


def _bytes_sent() -> int:
    """Return the bytes sent over the loopback interface of this network namespace."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    fields = next(line.split() for line in lines if line.strip().startswith("lo:"))
    return int(fields[9])


def _loopback_up() -> None:
    """Bring up the loopback interface, which is down in a new network namespace."""
    set_flags, up_and_running = 0x8914, 0x1 | 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", up_and_running)
        try:
            ioctl(probe.fileno(), set_flags, request)
        except PermissionError:
            # Without a separate namespace, the interface is already up.
            return


def ours(run: Run) -> Loop:
    """Train as training.train does within an epoch, including watchdog, metrics and stop checks."""
    sampler, loader = _loader(run)
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
    watchdog, device = Watchdog(config.hang_limit), choose_device(config.device, world.local_rank)
    return prepare(config, world, device, watchdog, Metrics(device))


def by_hand(run: Run) -> Loop:
    """Train with a minimal loop: DistributedDataParallel, gradient clipping and AdamW."""
    model, optimizer = _new_model(run)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    dtype = PRECISIONS[precision_of(run.config, run.device)]

    def compute(inputs: Tensor) -> Tensor:
        with torch.autocast(run.device.type, dtype, dtype != torch.float32):
            logits: Tensor = ddp(inputs)
        return logits.float()

    def backward(loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(ddp.parameters(), MAX_NORM)

    return _epochs(run, compute, optimizer, backward)


def lightning_fabric(run: Run) -> Loop:
    """Train with Lightning Fabric, as its guide recommends."""
    from lightning_fabric import Fabric

    names: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
    fabric = Fabric(
        accelerator=run.device.type,
        devices=run.world.size,
        strategy="ddp",
        precision=names[precision_of(run.config, run.device)],
    )
    fabric.launch()
    model, optimizer = fabric.setup(*_new_model(run))

    def backward(loss: Tensor) -> None:
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=MAX_NORM)

    return _epochs(run, model, optimizer, backward)


def accelerate(run: Run) -> Loop:
    """Train with Hugging Face Accelerate, as its guide recommends."""
    from accelerate import Accelerator

    precision = precision_of(run.config, run.device)
    accelerator = Accelerator(
        cpu=run.device.type == "cpu", mixed_precision="no" if precision == "fp32" else precision
    )
    model, optimizer = accelerator.prepare(*_new_model(run))

    def backward(loss: Tensor) -> None:
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)

    return _epochs(run, model, optimizer, backward)


LOOPS: dict[str, Callable[[Run], Loop]] = {
    "ours": ours,
    "by hand": by_hand,
    "Lightning Fabric": lightning_fabric,
    "Accelerate": accelerate,
}


def installed() -> list[str]:
    """Return the loops whose packages are installed."""
    packages = {"Lightning Fabric": "lightning_fabric", "Accelerate": "accelerate"}
    return [
        name for name in LOOPS if name not in packages or importlib.util.find_spec(packages[name])
    ]


def _epochs(run: Run, model: Any, optimizer: Any, backward: Callable[[Any], object]) -> Loop:
    sampler, loader = _loader(run)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for loaded in loader:
            logits = model(loaded.inputs)
            loss = cross_entropy(logits.flatten(0, -2), loaded.targets.flatten())
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            yield


def _loader(run: Run) -> tuple[GangSampler, Loader]:
    """Return the program's loader, which all loops use."""
    config, world = run.config, run.world
    sampler = GangSampler(
        run.data.train, config.batch_size, config.accumulate, world.rank, world.size, config.seed
    )
    return sampler, Loader(run.data.train, sampler, run.device, config.loader_workers)


def _new_model(run: Run) -> tuple[nn.Module, torch.optim.Optimizer]:
    config = run.config
    torch.manual_seed(config.seed)
    model = build(config.model, config.model_options, run.data.outputs, run.data.shape)
    model, decay = model.to(run.device), config.weight_decay
    parameters, rate = model.parameters(), config.learning_rate
    return model, torch.optim.AdamW(parameters, rate, weight_decay=decay, fused=True)


def config(run_dir: Path, **settings: Any) -> TrainingConfig:
    """Return a configuration. The default is SimpleCNN on digits enlarged to 32 x 32 pixels."""
    defaults = {"model": "simple-cnn", "dataset": "digits", "epochs": 1_000_000}
    return TrainingConfig.model_validate({**defaults, "run_dir": str(run_dir), **settings})


if __name__ == "__main__":
    main()
