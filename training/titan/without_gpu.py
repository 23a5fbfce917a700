"""torchtitan without a GPU, for tests and small trials.

torchtitan 0.3 assumes CUDA unless another accelerator is present. Its language models train with
FlexAttention, which has no backward pass on the CPU.
"""

import os
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torch.nn.functional import scaled_dot_product_attention


class _Device(SimpleNamespace):
    """torch.cpu with the functions of torch.cuda that torchtitan calls."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def use_cpu() -> None:
    """Make torchtitan train on the CPU.

    Call this function before other modules of torchtitan are imported.
    """
    from torchtitan.tools import utils

    capacity = SimpleNamespace(
        total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    utils.device_type = "cpu"
    utils.device_module = _Device(
        get_device_name=lambda _: "CPU",
        get_device_properties=lambda _: capacity,
        memory_stats=lambda _: {},
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
        current_device=lambda: 0,
    )
    from torchtitan.models.common.attention import FlexAttention

    FlexAttention._compiled_flex_attn = staticmethod(dense_attention)
    set_factor = FSDPModule.set_gradient_divide_factor

    def set_factor_for_gloo(module: FSDPModule, factor: float) -> None:
        # gloo cannot scale values while it adds them.
        module.set_force_sum_reduction_for_comms(True)
        set_factor(module, factor)

    FSDPModule.set_gradient_divide_factor = set_factor_for_gloo  # type: ignore[method-assign, assignment]


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_mask: BlockMask,
    scale: float | None,
    enable_gqa: bool,
    **_: object,
) -> tuple[Tensor, None]:
    """Return the result of flex_attention, computed with a dense mask.

    The shapes are (batch, heads, length, head size).
    """
    mask = create_mask(block_mask.mask_mod, q.shape[0], None, q.shape[2], k.shape[2], device="cpu")
    result = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
    )
    return result, None
