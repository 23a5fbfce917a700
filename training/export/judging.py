"""How good a form of a model is, found out by one process on the CPU."""

import functools
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.data.samples import Samples

LARGEST: Final = 2048
"""Held-out samples that judge each form; a larger set is represented by so many, evenly spread."""

BATCH: Final = 32


def spread(samples: Samples, count: int) -> tuple[Tensor, Tensor]:
    """Up to `count` samples from all over the set: inputs as a model takes them, and targets."""
    last = len(samples) - 1
    chosen = np.linspace(0, last, min(count, last + 1)).astype(np.int64)
    inputs, targets = map(torch.from_numpy, samples.batch(chosen))
    return (inputs.float() / samples.white if samples.white else inputs), targets


@torch.no_grad()
def judge(model: nn.Module, samples: Samples) -> dict[str, float]:
    """Share of right answers, from 0 to 1, and mean cross entropy, of classes or of tokens."""
    inputs, targets = spread(samples, LARGEST)
    loss = right = 0.0
    pairs = zip(torch.split(inputs, BATCH), torch.split(targets, BATCH), strict=True)
    for some, wanted in pairs:
        logits = model(some).flatten(0, -2)
        loss += float(cross_entropy(logits, wanted.flatten(), reduction="sum"))
        right += float((logits.argmax(1) == wanted.flatten()).sum())
    return {"accuracy": right / targets.numel(), "loss": loss / targets.numel()}


def judge_on(samples: Samples) -> functools.partial[dict[str, float]]:
    """The judgement on these samples, of any model."""
    return functools.partial(judge, samples=samples)
