"""Device-dependent defaults, chosen and reported at the start of a run.

On the CPU, PyTorch's defaults apply. `make bench-gpu` exercises the GPU branches.
"""

import os
import re
from typing import Final

import torch
from torch import nn

from training.config import TrainingConfig
from workload.configuration import Precision

PEAK_FLOPS: Final = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "T4": 65e12,
}
"""Dense half-precision FLOP/s, keyed by words in the device name. The first match is used."""

NCCL_DEFAULTS: Final = {
    # When a collective times out, each rank writes its last collectives to a file.
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}


def precision_of(config: TrainingConfig, device: torch.device) -> Precision:
    """Return the precision; `auto` is bf16 on a GPU that supports it, and fp32 otherwise."""
    if config.precision != "auto":
        return config.precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def configure(device: torch.device) -> None:
    """Configure a device. Call this function before creating a tensor or the process group."""
    if device.type != "cuda":
        return
    for name, value in NCCL_DEFAULTS.items():
        os.environ.setdefault(name, value)
    # Avoid out-of-memory errors due to fragmentation. PyTorch reads this variable at the first
    # allocation.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # Use TF32 (10-bit mantissa) for fp32 matrix products, as PyTorch already does in convolutions.
    torch.set_float32_matmul_precision("high")


def is_channels_last(network: nn.Module, config: TrainingConfig, device: torch.device) -> bool:
    """Return whether 2D convolutions use the channels-last memory format.

    On an H100, this format speeds up bf16 training of ResNet-50 by a factor of 1.7. FSDP needs
    contiguous weights, so it cannot use this format.
    """
    convolutions = any(isinstance(module, nn.Conv2d) for module in network.modules())
    return convolutions and device.type == "cuda" and config.parallel == "ddp"


def peak_flops(device: torch.device) -> float | None:
    """Return the peak half-precision FLOP/s of a GPU; None if unknown, such as for a MIG device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if " MIG " in name:
        return None
    known = (flops for words, flops in PEAK_FLOPS.items() if re.search(rf"\b{words}\b", name))
    return next(known, None)


def chosen_defaults(
    config: TrainingConfig, device: torch.device, network: nn.Module
) -> dict[str, str | bool]:
    """Return the defaults chosen for the device, for the first progress line of the run."""
    chosen: dict[str, str | bool] = {"precision": precision_of(config, device)}
    if device.type == "cuda":
        chosen |= {
            "gpu": torch.cuda.get_device_name(device),
            "tf32": torch.get_float32_matmul_precision() == "high",
            "fused_optimizer": config.optimizer == "adamw",
            "channels_last": is_channels_last(network, config, device),
        }
    return chosen
