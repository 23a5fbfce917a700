"""Exponential moving average of the weights of a run."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from training.parallel import Parallel


class Average:
    """Moving average of the weights, which is evaluated and exported in their place.

    The decay is the smaller of `decay` and (1 + step) / (10 + step), so that the average forgets
    the initial weights (like TensorFlow's ExponentialMovingAverage with `num_updates`).
    """

    def __init__(self, model: Parallel, decay: float) -> None:
        self._model, self._decay = model, decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in self._trained().items()
        }
        """Averages by parameter name, without frozen parameters; with FSDP, the local shards."""

    @torch.no_grad()
    def restart(self) -> None:
        """Restart the average from the current weights."""
        for name, parameter in self._trained().items():
            self.tensors[name].copy_(parameter)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after a step to the average; steps are numbered from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, parameter in self._trained().items():
            self.tensors[name].mul_(decay).add_(parameter, alpha=1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights with their average within the context."""
        saved = {name: each.detach().clone() for name, each in self._trained().items()}
        self._copy(self.tensors)
        try:
            yield
        finally:
            self._copy(saved)

    def _trained(self) -> dict[str, nn.Parameter]:
        parameters = self._model.parameters()
        return {name: each for name, each in parameters.items() if each.requires_grad}

    @torch.no_grad()
    def _copy(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self._trained().items():
            parameter.copy_(tensors[name])
