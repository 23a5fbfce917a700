"""How large /dev/shm is."""

from typing import Final

from infra.settings.types import MEBIBYTE, parse_quantity

MOST_OF_MEMORY: Final = 0.8
"""The part of a container's memory limit that /dev/shm may take; the policy pack says the same."""

_MEBIBYTES_PER_GPU: Final = 4096


def default_shm(gpus: int, memory: str) -> str:
    """4Gi for each GPU, for loaders and NCCL of its process, but at most half of the memory."""
    half = int(parse_quantity(memory) / 2 / MEBIBYTE)
    size = min(gpus * _MEBIBYTES_PER_GPU, half)
    return f"{size // 1024}Gi" if size and size % 1024 == 0 else f"{max(size, 1)}Mi"
