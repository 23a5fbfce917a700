"""Loss and metrics of a run: cross entropy, accuracy and custom functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from training.config import TrainingConfig, metric_name
from training.settings import CROSS_ENTROPY
from workload.configuration import ConfigurationError
from workload.custom import find

PerSample = Callable[[Tensor, Tensor], Tensor]
"""Function that maps logits (N x outputs or N x T x outputs) and targets (N or N x T) to N
values."""


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each sample (N values); for text, the mean over its tokens."""
    each = cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


def accuracies(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the fraction of correct predictions in each sample (N values)."""
    return (logits.argmax(-1) == targets).double().view(len(targets), -1).mean(1)


@dataclass(frozen=True)
class Objective:
    """The loss, and the custom metrics by name."""

    loss: PerSample = cross_entropies
    metrics: Mapping[str, PerSample] = field(default_factory=dict)

    @classmethod
    def of(cls, config: TrainingConfig) -> Self:
        """Import the configured functions. Raise ConfigurationError if that fails."""
        loss: PerSample = cross_entropies
        if config.loss != CROSS_ENTROPY:
            loss = find(f"loss {config.loss}", config.loss)
        metrics = {metric_name(each): find(f"metric {each}", each) for each in config.metrics}
        return cls(loss, metrics)

    def check(self, logits: Tensor, targets: Tensor) -> None:
        """Call the loss and all metrics once.

        Raise ConfigurationError for errors that would recur after every restart: an exception, a
        result of the wrong shape or on a different device, a change to the logits or targets, or a
        loss that does not depend on the logits.
        """
        with torch.enable_grad():
            logits = logits.detach().float().requires_grad_()
            loss = _values("loss", self.loss, logits, targets)
        if not loss.is_floating_point() or not loss.requires_grad:
            raise ConfigurationError(
                f"loss returned values of {loss.dtype} without a gradient: compute them from the "
                "logits with differentiable operations"
            )
        for name, metric in self.metrics.items():
            _values(f"metric {name}", metric, logits.detach(), targets)


def _values(name: str, function: PerSample, logits: Tensor, targets: Tensor) -> Tensor:
    arguments = {"logits": logits, "targets": targets}
    # Autograd's version counter of a tensor increases with every in-place change.
    versions = {argument: tensor._version for argument, tensor in arguments.items()}
    try:
        found = function(logits, targets)
    except Exception as error:
        raise ConfigurationError(
            f"{name} failed for logits of shape {list(logits.shape)} and targets of shape "
            f"{list(targets.shape)}: {type(error).__name__}: {error}"
        ) from error
    for argument, tensor in arguments.items():
        if tensor._version != versions[argument]:
            raise ConfigurationError(
                f"{name} changes the {argument} in place, but the accuracy and other metrics also "
                f"use them: use {argument}.clone()"
            )
    shape = (len(targets),)
    values = check_output(
        name, found, shape, f"one value per sample, a tensor of shape {list(shape)}"
    )
    if values.device != logits.device:
        raise ConfigurationError(
            f"{name} returned a tensor on {values.device}, but the logits are on {logits.device}: "
            "return it on the same device, with .to(logits.device)"
        )
    return values


def check_output(name: str, found: object, shape: tuple[int, ...], wanted: str) -> Tensor:
    """Check the output of custom code, and return it.

    Raise ConfigurationError unless the output is a tensor of this shape.
    """
    if isinstance(found, Tensor) and found.shape == shape:
        return found
    returned = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
    raise ConfigurationError(
        f"{name} returned {returned} for {shape[0]} samples: it must return {wanted}"
    )


@dataclass(frozen=True)
class Evaluation:
    """Mean loss, accuracy from 0 to 1 and mean custom metrics over `samples` samples."""

    loss: float
    accuracy: float
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
