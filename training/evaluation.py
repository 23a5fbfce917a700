"""Evaluation of a model on held-out samples."""

import math
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from training.data.loader import Loader, process_batches
from training.data.samples import spread
from training.objective import Evaluation, accuracies
from training.run import Run, require_finite, require_finite_metrics

MAX_BATCH_SAMPLES: Final = 512
"""Maximum number of samples per batch."""

MAX_BATCH_TOKENS: Final = 16_384
"""Maximum number of tokens per batch, unless a single sample has more."""


def batch_size(tokens: int, maximum: int) -> int:
    """Return the number of samples per batch: fewer for long texts, whose logits are large."""
    return min(maximum, max(1, MAX_BATCH_TOKENS // tokens))


def evaluate_held_out(run: Run, maximum: int = 0) -> Evaluation | None:
    """Evaluate the current weights on up to `maximum` samples; 0 uses all held-out samples.

    If the weights have already been evaluated on these samples, return that result. Return None if
    a process voted to stop. Raise DivergedError if the held-out loss or a metric is not finite.
    """
    held_out = len(run.data.held_out)
    count = min(maximum or held_out, held_out)
    if run.evaluation is None or run.evaluation.samples != count:
        devices = [run.device] if run.device.type == "cuda" else []
        with (
            run.metrics.activities.doing("evaluation"),
            run.result_weights(),
            torch.random.fork_rng(devices),
        ):
            run.evaluation = evaluate(run, count)
    if run.evaluation is not None:
        require_finite(run.evaluation.loss, run, "held-out loss")
        require_finite_metrics(run.evaluation.metrics, run)
    return run.evaluation


@torch.no_grad()
def evaluate(run: Run, count: int) -> Evaluation | None:
    """Evaluate the model on `count` evenly spaced samples, divided among the processes.

    All processes must call this function, and all get the same result. After every batch, check
    whether a process voted to stop, and return None if so.
    """
    samples, objective, world = run.data.held_out, run.objective, run.world
    run.model.train(False)
    tokens = math.prod(samples.batch(np.zeros(1, np.int64))[1].shape)
    batches = process_batches(
        spread(len(samples), count), batch_size(tokens, MAX_BATCH_SAMPLES), world.rank, world.size
    )
    functions = (objective.loss, accuracies, *objective.metrics.values())
    sums = torch.zeros(len(functions) + 1, dtype=torch.float64, device=run.device)
    for loaded in Loader(samples, batches, run.device, workers=0):
        real = loaded.batch.real
        # With FSDP, all processes must compute the same number of batches, so some batches contain
        # only padding.
        logits, targets = run.model(loaded.inputs)[:real], loaded.targets[:real]
        if real:
            values = [function(logits, targets).double().sum() for function in functions]
            sums += torch.stack([*values, sums.new_tensor(real)])
        run.watchdog.beat()
        if run.should_stop():
            return None
    dist.all_reduce(sums)
    *totals, total = sums.tolist()
    loss, accuracy, *others = (each / total for each in totals)
    metrics = dict(zip(objective.metrics, others, strict=True))
    return Evaluation(loss, accuracy, int(total), metrics)
