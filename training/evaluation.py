"""Evaluation of a model on held-out samples."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from training.data.loader import Loader, deal
from training.data.samples import Samples, spread
from training.gang.world import World
from training.objective import Objective, accuracies
from training.parallel import Parallel
from workload.run.watchdog import Watchdog

BATCH: Final = 512
"""Images per batch."""

TOKENS: Final = 16_384
"""Tokens per batch."""


@dataclass(frozen=True)
class Evaluation:
    """Mean loss, accuracy from 0 to 1 and mean custom metrics over `samples` samples."""

    loss: float
    accuracy: float
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@torch.no_grad()
def evaluate(
    model: Parallel,
    objective: Objective,
    samples: Samples,
    count: int,
    world: World,
    device: torch.device,
    watchdog: Watchdog,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Evaluate the model on `count` evenly spaced samples, divided among the processes.

    All processes must call this, and all get the same result. Returns None if `should_stop`, which
    is called after every batch, returns True.
    """
    model.train(False)
    tokens = math.prod(samples.batch(np.zeros(1, np.int64))[1].shape)
    batch_size = BATCH if tokens == 1 else max(1, TOKENS // tokens)
    batches = deal(spread(len(samples), count), batch_size, world.rank, world.size)
    functions = (objective.loss, accuracies, *objective.metrics.values())
    sums = torch.zeros(len(functions) + 1, dtype=torch.float64, device=device)
    for loaded in Loader(samples, batches, device, workers=0):
        real = loaded.batch.real
        # With FSDP all processes compute the same number of batches, including padding.
        logits, targets = model(loaded.inputs)[:real], loaded.targets[:real]
        if real:
            values = [function(logits, targets).double().sum() for function in functions]
            sums += torch.stack([*values, sums.new_tensor(real)])
        watchdog.beat()
        if should_stop():
            return None
    dist.all_reduce(sums)
    *totals, total = sums.tolist()
    loss, accuracy, *others = (each / total for each in totals)
    metrics = dict(zip(objective.metrics, others, strict=True))
    return Evaluation(loss, accuracy, int(total), metrics)
