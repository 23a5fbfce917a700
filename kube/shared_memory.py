"""Default and maximum size of /dev/shm, which counts against the container's memory limit."""

from decimal import Decimal
from typing import Final

from kube.quantities import MEBIBYTE, parse_quantity, spell_bytes

MEMORY_VOLUME_SHARE: Final = 0.8
"""Share of a container's memory limit that its memory volumes may use."""

_MEBIBYTES_PER_GPU: Final = 4096


def default_shm(gpus: int, memory: str) -> str:
    """Return the default size: 4Gi per GPU, but at most half of the container's memory limit."""
    half = int(parse_quantity(memory) / 2 / MEBIBYTE)
    size = min(gpus * _MEBIBYTES_PER_GPU, half)
    return f"{size // 1024}Gi" if size and size % 1024 == 0 else f"{max(size, 1)}Mi"


def max_memory_volume_bytes(memory: Decimal, share: float = MEMORY_VOLUME_SHARE) -> Decimal:
    """Return the maximum total size (bytes) of memory volumes for a limit of `memory` bytes."""
    return memory * Decimal(str(share))


def shm_problem(shm: str, memory: str) -> str | None:
    """Return an error message if a /dev/shm of size `shm` does not fit into the memory limit."""
    largest = max_memory_volume_bytes(parse_quantity(memory))
    if parse_quantity(shm) <= largest:
        return None
    return (
        f"has shm {shm}, but memory {memory}: /dev/shm counts against the memory limit and may "
        f"use {MEMORY_VOLUME_SHARE:.0%} of it; set shm to at most {spell_bytes(largest)}, or "
        "increase memory"
    )
