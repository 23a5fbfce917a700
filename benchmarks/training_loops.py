"""One step after another of the same training, by ours and by others: for benchmarks.training.

Every loop here yields once a step, for ever; each has its own model with the same first weights.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

from training.config import TrainingConfig
from training.data import Images
from training.distributed import Vote
from training.loader import Loader
from training.metrics import Metrics
from training.preparation import prepare
from training.sampler import GangSampler
from training.state import Run
from training.train import step, steps
from training.watchdog import Watchdog
from training.watching import Watching
from training.world import World
from workload.models import build

CPU = torch.device("cpu")
Loop = Iterator[None]


def ours(run: Run) -> Loop:
    """What training.train does inside an epoch, with its watchdog, metrics and votes."""
    config, world = run.config, run.world
    sampler = GangSampler(
        run.data.train, config.batch_size, config.accumulate, world.rank, world.size, config.seed
    )
    loader = Loader(run.data.train, sampler, run.device, config.loader_workers)
    vote = Vote()
    with Watching(run) as watching:
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            run.position.epoch, run.position.seen = 0, 0
            for batches in run.metrics.timed(steps(loader)):
                step(run, batches, watching)
                vote.cast(run.stop_asked or run.saver.failed)
                yield


def prepared(config: TrainingConfig, world: World) -> Run:
    """A run that is ready to be trained."""
    watchdog = Watchdog(config.hang_limit)
    return prepare(config, world, CPU, watchdog, Metrics(CPU))


def by_hand(run: Run) -> Loop:
    """The least that trains: DistributedDataParallel, AdamW and a loop, data in memory."""
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
    """Lightning Fabric as its guide uses it."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=run.world.size, strategy="ddp")
    fabric.launch()
    model, optimizer = fabric.setup(*_fresh(run))
    return _epochs(
        fabric.setup_dataloaders(_loader(run)), model, optimizer, lambda loss: fabric.backward(loss)
    )


def accelerate(run: Run) -> Loop:
    """Hugging Face Accelerate as its guide uses it."""
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
    """Of all measurements: SimpleCNN on digits enlarged to 32 x 32."""
    usual = {"model": "simple-cnn", "dataset": "digits", "epochs": 1_000_000, "device": "cpu"}
    return TrainingConfig.model_validate({**usual, "run_dir": str(run_dir), **settings})
