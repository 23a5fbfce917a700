"""A reference training loop in one process, which does not use the program's modules."""

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

GLOBAL_BATCH = 16
EPOCHS = 2
SMOOTHING = 0.1
"""Label smoothing of the custom loss, used if the settings name a loss."""


def train(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    settings: dict[str, Any],
    seed: int,
    skipped: Collection[int] = (),
) -> list[float]:
    """Train in place on batches of GLOBAL_BATCH samples; return the mean loss of each epoch.

    Steps in `skipped`, numbered from 1, leave the weights unchanged.
    """
    rate, decay = settings["learning_rate"], settings["weight_decay"]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.get("precision", ""))
    vectors = decay if settings.get("weight_decay_on", "all") == "all" else 0.0
    groups = [
        {"params": [parameter], "weight_decay": decay if parameter.ndim > 1 else vectors}
        for parameter in model.parameters()
    ]
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        groups, betas=settings.get("betas", (0.9, 0.999))
    )
    if settings.get("optimizer") == "sgd":
        optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    means, step = [], 0
    for epoch in range(EPOCHS):
        order = np.random.default_rng((seed, epoch)).permutation(len(labels))
        losses = []
        for start in range(0, len(labels), GLOBAL_BATCH):
            progress = (epoch + start / len(labels)) / EPOCHS - 0.2
            factor = 0.1 + 0.9 * (progress + 0.2) / 0.2
            if progress >= 0:
                factor = 0.001 + 0.999 * (1 + math.cos(math.pi * progress / 0.8)) / 2
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            batch = torch.from_numpy(order[start : start + GLOBAL_BATCH])
            with torch.autocast("cpu", dtype or torch.bfloat16, dtype is not None):
                logits = model(inputs[batch])
            smoothing = SMOOTHING if "loss" in settings else 0
            each = cross_entropy(
                logits.float(), labels[batch], reduction="none", label_smoothing=smoothing
            )
            optimizer.zero_grad()
            each.mean().backward()
            if limit := settings.get("clip_norm"):
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            step += 1
            if step not in skipped:
                optimizer.step()
            losses.extend(each.view(len(each), -1).mean(1).tolist())
        means.append(sum(losses) / len(losses))
    return means
