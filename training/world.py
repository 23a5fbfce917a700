"""Where one process stands among its peers: the only place that reads ranks and addresses.

A run that is started alone is a gang of one, so that nothing else distinguishes the two.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from training.launchers import ONE_POD_ONE_RANK, OPEN_MPI, Names, check_accelerate, names_for
from workload.configuration import ConfigurationError


@dataclass(frozen=True)
class World:
    """Where this process stands: `rank` of `size`, and `local_rank` of `local_size` on its node.

    `master` is host:port of rank 0, empty where there is nobody to meet.
    """

    rank: int
    size: int
    local_rank: int
    master: str
    local_size: int = 1

    @property
    def leads(self) -> bool:
        """Rank 0 writes checkpoints and the export, and reports progress."""
        return self.rank == 0


def read_world(environment: Mapping[str, str]) -> World:
    """Read what torchrun, accelerate, Open MPI or a scheduler of pods has put there.

    Raises ConfigurationError when the variables are incomplete or contradict one another.
    """
    check_accelerate(environment)
    names = names_for(environment)
    if names is None:
        return World(rank=0, size=1, local_rank=0, master="")
    rank, size = _rank_of(environment, names)
    local_rank, local_size = _local_rank_of(environment, names, size)
    if size == 1:
        return World(rank, size, local_rank, "", local_size)
    return World(rank, size, local_rank, _master(environment, names), local_size)


def port_taken(world: World, error: Exception) -> ConfigurationError | None:
    """What to say when rank 0 could not listen at the master port; None for any other error.

    PyTorch tells it by the name of the system's error in the text of a DistNetworkError only.
    """
    if not isinstance(error, torch.distributed.DistNetworkError) or "EADDRINUSE" not in str(error):
        return None
    return ConfigurationError(
        f"MASTER_PORT of {world.master} is taken by another program on this machine: write another"
    )


def _rank_of(environment: Mapping[str, str], names: Names) -> tuple[int, int]:
    rank, size = _number(environment, names.rank), _number(environment, names.size)
    if size < 1 or rank >= size:
        raise ConfigurationError(
            f"{names.rank} is {rank} and {names.size} is {size}: "
            f"ranks go from 0 to {names.size} - 1"
        )
    if names.checked:
        _check_open_mpi(environment, rank, size)
    return rank, size


def _check_open_mpi(environment: Mapping[str, str], rank: int, size: int) -> None:
    # One process of mpirun may be a script that starts several by itself.
    if environment.get(OPEN_MPI.size, "1") == "1":
        return
    for ours, value, theirs in (("RANK", rank, OPEN_MPI.rank), ("WORLD_SIZE", size, OPEN_MPI.size)):
        if _number(environment, theirs) != value:
            raise ConfigurationError(
                f"{ours} is {value} but {theirs} is {environment[theirs]}: they come from two "
                "launchers, so take away the variables of one of them"
            )


def _local_rank_of(environment: Mapping[str, str], names: Names, size: int) -> tuple[int, int]:
    if names in ONE_POD_ONE_RANK:
        return 0, 1
    rank = _number(environment, names.local_rank, default=0)
    # Without it there are at least as many as this process knows of.
    local_size = _number(environment, names.local_size, default=rank + 1)
    if rank >= local_size:
        raise ConfigurationError(
            f"{names.local_rank} is {rank} and {names.local_size} is {local_size}: "
            f"local ranks go from 0 to {names.local_size} - 1"
        )
    if local_size > size:
        raise ConfigurationError(
            f"{names.local_rank} is {rank} of {local_size} but {names.size} is {size}: "
            "a node cannot have more processes than there are in all"
        )
    if names.local_size in environment and size % local_size:
        raise ConfigurationError(
            f"{names.size} is {size}, which is no multiple of {names.local_size} {local_size}: "
            "start equally many processes on every node"
        )
    return rank, local_size


def _master(environment: Mapping[str, str], names: Names) -> str:
    port = _number(environment, names.port)
    host = environment.get(names.host, "")
    if not host or not 0 < port < 65536:
        raise ConfigurationError(
            f"{names.host} is {host!r} and {names.port} is {port}: "
            "both are needed, the host name and port (1-65535) of rank 0"
        )
    return f"{host}:{port}"


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise ConfigurationError(
            f"{name} is missing, though others say that there are several processes: "
            "start them by torchrun (python -m training.launch), or set it as well"
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
