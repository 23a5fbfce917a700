"""Evaluation of a model on held-out samples."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from training.data.loader import Loader, deal
from training.data.samples import Samples
from training.gang.world import World
from training.parallel import Parallel
from workload.run.watchdog import Watchdog

BATCH: Final = 512
"""Images per batch."""

TOKENS: Final = 16_384
"""Tokens per batch."""


@dataclass(frozen=True)
class Evaluation:
    """Mean cross entropy, and accuracy from 0 to 1."""

    loss: float
    accuracy: float


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each sample, N; of a text, the mean over its tokens.

    Logits are N x outputs with N targets, or N x T x outputs with N x T targets.
    """
    each = cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


@torch.no_grad()
def evaluate(
    model: Parallel,
    samples: Samples,
    world: World,
    device: torch.device,
    watchdog: Watchdog,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Evaluate the model on all samples, which the processes share. All of them must call it.

    Returns None if `should_stop`, which is called after every batch, returns True.
    """
    model.train(False)
    tokens = math.prod(samples.batch(np.zeros(1, np.int64))[1].shape)
    batch_size = BATCH if tokens == 1 else max(1, TOKENS // tokens)
    batches = deal(np.arange(len(samples)), batch_size, world.rank, world.size)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for loaded in Loader(samples, batches, device, workers=0):
        real = loaded.batch.real
        # With FSDP all processes compute the same number of batches, including padding.
        logits, targets = model(loaded.inputs)[:real], loaded.targets[:real]
        if real:
            right = (logits.argmax(-1) == targets).double().view(real, -1).mean(1)
            sums += torch.stack(
                [losses(logits, targets).double().sum(), right.sum(), right.new_tensor(real)]
            )
        watchdog.beat()
        if should_stop():
            return None
    dist.all_reduce(sums)
    loss, right, count = sums.tolist()
    return Evaluation(loss / count, right / count)
