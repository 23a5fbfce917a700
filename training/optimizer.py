"""The optimizer of a run, its learning rate, and the moving average of the weights."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from training.config import TrainingConfig
from training.parallel import Parallel

INITIAL_SHARE: Final = 0.1
"""Learning rate at the start of the warm-up, as a fraction of the peak."""

FINAL_SHARE: Final = 0.001
"""Learning rate at the end of the run, as a fraction of the peak, unless the rate is constant."""


def learning_rate(config: TrainingConfig, progress: float) -> float:
    """Return the learning rate at `progress`, the completed fraction of the run (0 to 1).

    The rate rises linearly to the peak. Then it falls along a cosine (one-cycle, after Smith and
    Topin, arXiv:1708.07120), falls linearly, or stays constant. The schedule has no state, so it is
    the same for any number of processes.
    """
    left = (1 - progress) / (1 - config.warm_up)
    if progress < config.warm_up:
        share = INITIAL_SHARE + (1 - INITIAL_SHARE) * progress / config.warm_up
    elif config.schedule == "one-cycle":
        share = FINAL_SHARE + (1 - FINAL_SHARE) * (1 - math.cos(math.pi * left)) / 2
    elif config.schedule == "linear":
        share = FINAL_SHARE + (1 - FINAL_SHARE) * left
    else:
        share = 1.0
    return config.learning_rate * share


def state_bytes(network: nn.Module, config: TrainingConfig) -> int:
    """Return the size of a checkpoint in bytes: weights, average, buffers and optimizer state."""
    copies = {"adamw": 2, "sgd": 1}[config.optimizer] + (config.ema_decay > 0)
    trained = [each for each in network.parameters() if each.requires_grad]
    stored = sum(each.nbytes for each in (*network.parameters(), *network.buffers()))
    return stored + copies * sum(each.nbytes for each in trained)


def optimizer(config: TrainingConfig, model: Parallel) -> torch.optim.Optimizer:
    """Build the optimizer. Its learning rate must be set before each step."""
    parameters = [each for each in model.model.parameters() if each.requires_grad]
    groups = _weight_decay_groups(config, parameters)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, config.learning_rate, momentum=0.9, nesterov=True)
    # The fused implementation does not support complex weights.
    fused = not any(each.is_complex() for each in parameters)
    first, second = config.betas
    return torch.optim.AdamW(groups, config.learning_rate, (first, second), fused=fused)


def _weight_decay_groups(
    config: TrainingConfig, parameters: list[nn.Parameter]
) -> list[dict[str, Any]]:
    """Return the parameter groups with and without weight decay."""
    dimensions = 2 if config.weight_decay_on == "matrices" else 0
    decayed = [each for each in parameters if each.ndim >= dimensions]
    undecayed = [each for each in parameters if each.ndim < dimensions]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class Average:
    """Moving average of the weights, which is evaluated and exported in their place.

    The decay is the smaller of `decay` and (1 + step) / (10 + step), so that the average forgets
    the initial weights (as in TensorFlow's ExponentialMovingAverage with `num_updates`).
    """

    def __init__(self, model: Parallel, decay: float) -> None:
        self._model, self._decay = model, decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in self._trainable().items()
        }
        """Averages by parameter name, without frozen parameters; with FSDP, sharded DTensors."""

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after a step; steps are numbered from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, parameter in self._trainable().items():
            self.tensors[name].mul_(decay).add_(parameter, alpha=1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within the context, replace the weights with their average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _trainable(self) -> dict[str, nn.Parameter]:
        parameters = self._model.parameters()
        return {name: each for name, each in parameters.items() if each.requires_grad}

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._trainable().items():
            weights = parameter.clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(weights)
