"""Structure of a model: its repeated blocks, and the FLOPs per sample."""

from collections.abc import Iterator
from typing import Final

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

RESIDUAL_BLOCKS: Final = ("BasicBlock", "Bottleneck")
"""Class names of ResNet blocks, in torchvision and elsewhere."""


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that FSDP shards and activation checkpointing wraps, in model order.

    These are the outermost children of ModuleLists and the blocks of a ResNet. An empty list means
    that the model has no such blocks. The model must call each block itself, because sharding and
    checkpointing have no effect if it calls only the submodules of a block.
    """
    return list(_blocks(model))


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(module, nn.ModuleList) or type(child).__name__ in RESIDUAL_BLOCKS:
            if isinstance(child, nn.ModuleList | nn.ModuleDict):
                yield from _blocks(child)
            elif any(True for _ in child.parameters()):
                yield child
        else:
            yield from _blocks(child)


def flops_per_sample(
    model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> int:
    """Return the number of floating-point operations to train on one sample.

    The number includes matrix products, convolutions and attention in the forward pass, and twice
    as many operations for the backward pass, as in the definition of model FLOPs utilization (PaLM,
    arXiv:2204.02311, appendix B). Causal attention counts as full attention. Recomputation by
    activation checkpointing is not counted.

    The forward pass runs on the meta device, so nothing is computed and the model does not change.
    The model must not be sharded or wrapped. `shape` is the shape of one input.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shadow = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    # Use two samples, because batch norm in training mode may reject a single sample.
    inputs = torch.zeros((2, *shape), dtype=dtype, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        functional_call(model, shadow, (inputs,))
    return int(counter.get_total_flops()) // 2 * 3
