"""Where one process stands among its peers: the only place that reads ranks and addresses.

A run that is started alone is a gang of one, so that nothing else distinguishes the two.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from training.config import ConfigurationError, DeviceName


@dataclass(frozen=True)
class World:
    """Where this process stands: `rank` of `size`, and `local_rank` on its own machine."""

    rank: int
    size: int
    local_rank: int
    master: str

    @property
    def leads(self) -> bool:
        """Rank 0 writes checkpoints and the export, and reports progress."""
        return self.rank == 0


def read_world(environment: Mapping[str, str]) -> World:
    """Read what torchrun, or a scheduler that starts one process a pod, has put there.

    Raises ConfigurationError when the variables are incomplete or contradict one another.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return World(rank=0, size=1, local_rank=0, master="")
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    local_rank = _number(environment, "LOCAL_RANK", default=0)
    if size < 1 or rank >= size:
        raise ConfigurationError(
            f"RANK is {rank} and WORLD_SIZE is {size}: ranks go from 0 to WORLD_SIZE - 1"
        )
    if size == 1:
        return World(rank, size, local_rank, master="")
    port = _number(environment, "MASTER_PORT")
    host = environment.get("MASTER_ADDR", "")
    if not host or not 0 < port < 65536:
        raise ConfigurationError(
            f"MASTER_ADDR is {host!r} and MASTER_PORT is {port}: "
            "both are needed, the host name and port (1-65535) of rank 0"
        )
    return World(rank, size, local_rank, master=f"{host}:{port}")


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise ConfigurationError(
            f"{name} is missing, though RANK or WORLD_SIZE is set: start the processes by torchrun"
        )
    if not text.isdecimal():
        raise ConfigurationError(f"{name} is {text!r}: it must be a whole number")
    return int(text)


def use_threads(environment: Mapping[str, str]) -> None:
    """Compute with OMP_NUM_THREADS threads, or else with one for each core that is ours."""
    if "OMP_NUM_THREADS" in environment:
        threads = _number(environment, "OMP_NUM_THREADS")
    else:
        threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(max(1, threads))


def choose_device(name: DeviceName, local_rank: int) -> torch.device:
    """The device of this process. Raises ConfigurationError when it is asked for but not there."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if local_rank >= visible:
        raise ConfigurationError(
            f"process {local_rank} of this machine needs a GPU of its own, but {visible} can be "
            "seen: start as many processes a node as it has GPUs, or write --device=cpu"
        )
    return torch.device("cuda", local_rank)
