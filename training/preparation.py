"""What a run needs before its first step; what would go wrong later is found now."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from training.config import TrainingConfig
from training.data import Dataset, load
from training.data.progress import tell_run
from training.distributed import all_or_none, by_leader
from training.export import check_export
from training.metrics import Metrics
from training.parallel import Parallel
from training.preflight import check_room, check_run_dir, check_shared_memory
from training.saver import Saver
from training.state import Run
from training.watchdog import Watchdog
from training.world import World
from workload.catalog import input_shape
from workload.models import build


def prepare(
    config: TrainingConfig,
    world: World,
    device: torch.device,
    watchdog: Watchdog,
    metrics: Metrics,
) -> Run:
    """Find out all that would go wrong later, load the data, build the model."""
    data = all_or_none(lambda: load_data(config, world, watchdog))
    all_or_none(lambda: metrics.serve(config, world, device))
    watchdog.beat()
    torch.manual_seed(config.seed)
    network = all_or_none(
        lambda: build(config.model, config.model_options, data.outputs, data.shape)
    )
    needed = state_bytes(network, config)
    by_leader(
        world,
        lambda: check_room(Path(config.run_dir), needed, config.keep_checkpoints, config.keep_best),
    )
    model = Parallel(network.to(device), config, device)
    # From here on dropout differs from process to process.
    torch.manual_seed(config.seed + 2**31 * (world.rank + 1))
    return Run(
        config=config,
        world=world,
        device=device,
        data=data,
        model=model,
        optimizer=optimizer(config, model),
        saver=Saver(
            Path(config.run_dir) / "checkpoints", world, config.keep_checkpoints, config.keep_best
        ),
        watchdog=watchdog,
        metrics=metrics,
        loss_sum=torch.zeros((), dtype=torch.float64, device=device),
    )


def load_data(config: TrainingConfig, world: World, watchdog: Watchdog) -> Dataset:
    """Load the data, after the leader has seen that results can be written."""
    if world.leads:
        check_run_dir(Path(config.run_dir))
        check_export(config)

    def tell(line: str) -> None:
        watchdog.beat()
        tell_run(line)

    data = load(
        config.dataset,
        Path(config.data_dir),
        input_shape(config.model, config.model_options),
        config.seed,
        download=config.download,
        verify=not world.local_rank,
        tell=tell,
    )
    if not world.local_rank and config.loader_workers:
        inputs, targets = data.train.batch(np.zeros(1, np.int64))
        batch = config.batch_size * (inputs.nbytes + targets.nbytes)
        check_shared_memory(batch, config.loader_workers, world.local_size)
    return data


def state_bytes(network: nn.Module, config: TrainingConfig) -> int:
    """Of one checkpoint: weights, and what the optimizer keeps for each of them."""
    kept = {"adamw": 2, "sgd": 1}[config.optimizer]
    tensors = [*network.parameters(), *network.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) * (1 + kept)


def optimizer(config: TrainingConfig, model: Parallel) -> torch.optim.Optimizer:
    """What makes steps of gradients; its learning rate is set before each of them."""
    parameters, decay = model.model.parameters(), config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, config.learning_rate, momentum=0.9, nesterov=True, weight_decay=decay
        )
    return torch.optim.AdamW(parameters, config.learning_rate, weight_decay=decay)
