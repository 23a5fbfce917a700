"""Device of a process, and the PyTorch data type of each precision."""

from collections.abc import Mapping
from typing import Final

import torch

from workload.configuration import ConfigurationError, DeviceName, Precision

PRECISIONS: Final[Mapping[Precision, torch.dtype]] = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16
}  # fmt: skip


def choose_device(name: DeviceName, local_rank: int) -> torch.device:
    """Return the device of this process. Raise ConfigurationError if there is no GPU for it."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if local_rank >= visible:
        raise ConfigurationError(
            f"process {local_rank} on this machine needs its own GPU, but the number of visible "
            f"GPUs is {visible}: start one process per GPU of the node, or set --device=cpu"
        )
    return torch.device("cuda", local_rank)
