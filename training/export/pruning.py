"""A model that does without its smallest weights."""

import copy

from torch import Tensor, nn
from torch.nn.utils import prune


def pruned(model: nn.Module, share: float) -> nn.Module:
    """A copy in which the smallest of all weights of matrices and convolutions are 0 for good.

    `share` of them, compared with one another over the whole model (magnitude pruning, Han et al.
    2015, arXiv:1506.02626); biases and norms stay. Raises ValueError when there are none.
    """
    smaller = copy.deepcopy(model)
    weights = _weights(smaller)
    if not weights:
        raise ValueError("the model has no linear layer and no convolution")
    prune.global_unstructured(weights, pruning_method=prune.L1Unstructured, amount=share)
    for module, name in weights:
        prune.remove(module, name)  # type: ignore[no-untyped-call]
    return smaller


def share_of_zeros(model: nn.Module) -> float:
    """Of the weights that could be pruned."""
    tensors = [getattr(module, name) for module, name in _weights(model)]
    zeros = sum(int((tensor == 0).sum()) for tensor in tensors)
    return zeros / sum(int(tensor.numel()) for tensor in tensors)


def _weights(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """A tensor that several layers share is there once, or it could not be made permanent."""
    found: dict[int, tuple[nn.Module, str]] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            weight: Tensor = module.weight
            found.setdefault(id(weight), (module, "weight"))
    return list(found.values())
