"""Preparation of a run: checks, data, model and optimizer."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Final, cast

import numpy as np
import torch
from torch import nn

from training.accelerator import is_channels_last, peak_flops
from training.checkpoints.mirror import Mirror
from training.checkpoints.saver import Saver
from training.config import TrainingConfig
from training.data import Dataset, load
from training.data.loader import largest_batch
from training.data.manifest import Verification, download
from training.data.progress import report_event
from training.export.compression import check_quantization
from training.gang.distributed import await_peers
from training.gang.preflight import check_free_space, check_run_dir, check_shared_memory
from training.gang.world import World
from training.lora import Lora, adapt
from training.objective import Objective
from training.optimizer import Average, optimizer, state_bytes
from training.parallel import Parallel, check_model, check_tensors
from training.run import Run
from training.telemetry.metrics import Metrics
from workload.catalog import input_shape
from workload.models import build
from workload.models.gpt import Gpt
from workload.models.structure import flops_per_sample
from workload.run import Watchdog, all_or_none, long_timeout_group, on_rank0


def prepare(
    config: TrainingConfig, world: World, device: torch.device, watchdog: Watchdog, metrics: Metrics
) -> Run:
    """Check everything that could fail later, load the data, and build the model."""
    group = long_timeout_group()
    if config.data_url:
        directory = Path(config.data_dir) / config.dataset
        fetch = partial(download, config.data_url, directory, partial(_report, watchdog))
        # One process per node downloads the data set.
        mine = (lambda: None) if world.local_rank else fetch
        all_or_none(lambda: await_peers(mine, group, watchdog.beat), group)
    read = partial(load_data, config, world, watchdog)
    data = all_or_none(lambda: await_peers(read, group, watchdog.beat), group)
    all_or_none(lambda: metrics.serve(config, world, device))
    watchdog.beat()
    torch.manual_seed(config.seed)
    network = all_or_none(
        lambda: build(config.model, config.model_options, data.outputs, data.shape)
    )
    if (lora := Lora.of(config)) is not None:
        adapt(cast(Gpt, network), lora)
    objective = all_or_none(lambda: Objective.of(config))
    network = network.to(device)
    if is_channels_last(network, config, device):
        network = network.to(memory_format=torch.channels_last)
    check_tensors(network, config, device)
    all_or_none(lambda: check_model(network, config, objective, data, device))
    needed = state_bytes(network, config)
    flops = count_flops(network, data, device)
    mirror = open_mirror(config)
    # One more checkpoint may stay on disk while it is copied to the object store.
    keep = config.keep_checkpoints + (mirror is not None)
    on_rank0(lambda: check_free_space(Path(config.run_dir), needed, keep, config.keep_best))
    model = Parallel(network, config, device)
    # From here on, dropout must differ between processes. The seed and the rank are hashed to 32
    # bits, because PyTorch uses only 32 bits of a seed on the CPU.
    seeds = np.random.SeedSequence((config.seed, world.rank)).generate_state(1)
    torch.manual_seed(int(seeds[0]))
    return Run(
        config=config,
        world=world,
        device=device,
        data=data,
        model=model,
        objective=objective,
        optimizer=optimizer(config, model),
        average=Average(model, config.ema_decay) if config.ema_decay else None,
        saver=Saver(config, world, group, mirror),
        watchdog=watchdog,
        metrics=metrics,
        loss_sum=torch.zeros((), dtype=torch.float64, device=device),
        diverged=torch.zeros((), dtype=torch.bool, device=device),
        flops_per_sample=flops,
    )


def count_flops(network: nn.Module, data: Dataset, device: torch.device) -> int | None:
    """Return the FLOPs per sample, used to compute the model FLOPs utilization; None if unknown."""
    # flops_per_sample counts the gradients of all weights, but frozen weights have none.
    if peak_flops(device) is None or not all(each.requires_grad for each in network.parameters()):
        return None
    dtype = torch.float32 if data.train.divisor else torch.int64
    with contextlib.suppress(Exception):
        return flops_per_sample(network, data.shape, dtype)
    return None


def open_mirror(config: TrainingConfig) -> Mirror | None:
    """Return the run's mirror, which rank 0 has checked, or None if `run_url` is not set."""
    url, run_dir = config.run_url, Path(config.run_dir)
    if url is None:
        return None
    mirror = Mirror(run_dir, url, config.keep_checkpoints, config.keep_best)
    on_rank0(mirror.check)
    return mirror


VERIFIED_FILE: Final = "verified.json"
"""File in the run's directory that records which data files have been verified."""


def load_data(config: TrainingConfig, world: World, watchdog: Watchdog) -> Dataset:
    """Load the data. Rank 0 first checks `run_dir` and, if needed, the quantization package."""
    if world.is_rank0:
        check_run_dir(Path(config.run_dir))
        check_quantization(config.quantize)

    data = load(
        config.dataset,
        Path(config.data_dir),
        input_shape(config.model, config.model_options),
        config.seed,
        download=config.download,
        # Files from an object store are verified during the download.
        verification=None
        if world.local_rank or config.data_url
        else Verification(Path(config.run_dir) / VERIFIED_FILE, writes=world.is_rank0),
        report=partial(_report, watchdog),
    )
    if not world.local_rank and config.loader_workers:
        inputs, targets = data.train.batch(np.zeros(1, np.int64))
        count = largest_batch(data.train, config.batch_size, world.size)
        batch = count * (inputs.nbytes + targets.nbytes)
        check_shared_memory(batch, config.loader_workers, world.local_size)
    return data


def _report(watchdog: Watchdog, line: str) -> None:
    """Report progress while data is read, so that reading does not count as a hang."""
    watchdog.beat()
    report_event(line)
