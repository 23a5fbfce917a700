"""Comparison, evaluation and timing of models on the CPU."""

import functools
import math
import statistics
import time
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.data.samples import Samples, spread
from workload.manifest import ExportError

TIMING_RUNS: Final = (3, 30)
"""Minimum and maximum number of runs."""

TIMING_SECONDS: Final = 3.0
"""Seconds after which no further run starts."""


def time_both(one: nn.Module, other: nn.Module, inputs: Tensor) -> tuple[float, float]:
    """Return the median time in seconds of each model for these inputs.

    The runs alternate, so that other load on the machine affects both equally.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    with torch.no_grad():
        for model in (one, other):
            model(inputs)
        while len(seconds[0]) < TIMING_RUNS[0] or (
            len(seconds[0]) < TIMING_RUNS[1] and time.perf_counter() - begin < TIMING_SECONDS
        ):
            for model, durations in zip((one, other), seconds, strict=True):
                started = time.perf_counter()
                model(inputs)
                durations.append(time.perf_counter() - started)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


MAX_EVALUATED: Final = 2048
"""Maximum number of held-out samples per evaluation, evenly spaced over the set."""

EVALUATION_BATCH: Final = 32


def spread_samples(samples: Samples, count: int) -> tuple[Tensor, Tensor]:
    """Return up to `count` evenly spaced samples: inputs as models expect them, and targets."""
    inputs, targets = map(torch.from_numpy, samples.batch(spread(len(samples), count)))
    return (inputs.float() / samples.white if samples.white else inputs), targets


@torch.no_grad()
def evaluate_on_cpu(model: nn.Module, samples: Samples) -> dict[str, float]:
    """Return accuracy (from 0 to 1) and mean cross entropy, per class or per token."""
    inputs, targets = spread_samples(samples, MAX_EVALUATED)
    loss = correct = 0.0
    pairs = zip(
        torch.split(inputs, EVALUATION_BATCH), torch.split(targets, EVALUATION_BATCH), strict=True
    )
    for part, expected in pairs:
        logits = model(part).flatten(0, -2)
        loss += float(cross_entropy(logits, expected.flatten(), reduction="sum"))
        correct += float((logits.argmax(1) == expected.flatten()).sum())
    return {"accuracy": correct / targets.numel(), "loss": loss / targets.numel()}


def evaluate_on(samples: Samples) -> functools.partial[dict[str, float]]:
    """Return a function that evaluates any model on these samples."""
    return functools.partial(evaluate_on_cpu, samples=samples)


TOLERANCE: Final = 1e-3
"""Maximum difference between outputs that should be equal, relative to the largest output."""


@torch.no_grad()
def largest_difference(model: nn.Module, form: nn.Module, inputs: Tensor, exact: bool) -> float:
    """Return the largest output difference, for the batch and for its first sample alone.

    Raises ExportError if outputs are not finite, or differ although they should be equal.
    """
    largest = 0.0
    for part in (inputs, inputs[:1]):
        expected, outputs = model(part), form(part)
        difference = float((outputs - expected).abs().max())
        if not math.isfinite(difference):
            raise ExportError("its outputs are not finite")
        limit = TOLERANCE * max(1.0, float(expected.abs().max()))
        if exact and difference > limit:
            raise ExportError(
                f"its outputs differ by {difference:.2g} from the model's, which is more than "
                f"{limit:.2g}: is the model deterministic in evaluation mode?"
            )
        largest = max(largest, difference)
    return largest
