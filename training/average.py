"""Exponential moving average of the weights of a run."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from training.parallel import Parallel


class Average:
    """Average of the weights after each step, which is evaluated and exported in their place.

    The decay is `decay`, but at first (1 + step) / (10 + step), so that the average forgets the
    initial weights (as TensorFlow's ExponentialMovingAverage with `num_updates`).
    """

    def __init__(self, model: Parallel, decay: float) -> None:
        self._model, self._decay = model, decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in self._trained().items()
        }
        """By the name of the parameter, without frozen ones; with FSDP, the local shards."""

    @torch.no_grad()
    def restart(self) -> None:
        """Begin with the current weights."""
        for name, parameter in self._trained().items():
            self.tensors[name].copy_(parameter)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights after a step, numbered from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, parameter in self._trained().items():
            self.tensors[name].mul_(decay).add_(parameter, alpha=1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights inside by their average."""
        own = {name: each.detach().clone() for name, each in self._trained().items()}
        self._copy(self.tensors)
        try:
            yield
        finally:
            self._copy(own)

    def _trained(self) -> dict[str, nn.Parameter]:
        parameters = self._model.parameters()
        return {name: each for name, each in parameters.items() if each.requires_grad}

    @torch.no_grad()
    def _copy(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self._trained().items():
            parameter.copy_(tensors[name])
