"""Rank of this process and size of its gang, read from its launcher's environment variables.

There are three kinds of launchers. torchrun and accelerate start the processes of a node and set
the rank of each. Open MPI starts the processes of all nodes. Kubeflow, Volcano and Indexed Jobs
start pods, whose index is a rank only if each pod runs one process. The training program reads the
rank and the size only in this module. A process without a launcher is a gang of one, so that other
code needs no special case.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from workload.configuration import ConfigurationError
from workload.cores import available_cores


@dataclass(frozen=True)
class LauncherVariables:
    """Names of the environment variables that a launcher sets."""

    rank: str = "RANK"
    size: str = "WORLD_SIZE"
    local_rank: str = "LOCAL_RANK"
    local_size: str = "LOCAL_WORLD_SIZE"
    host: str = "MASTER_ADDR"
    port: str = "MASTER_PORT"


PLAIN: Final = LauncherVariables()
"""Variables that torchrun, accelerate, Volcano's pytorch plugin, a PyTorchJob or a user sets."""

INDEXED: Final = LauncherVariables(rank="JOB_COMPLETION_INDEX")
"""Variables of an Indexed Job, which sets the index of a pod but not the number of pods."""

KUBEFLOW: Final = LauncherVariables(
    rank="PET_NODE_RANK", size="PET_NNODES", host="PET_MASTER_ADDR", port="PET_MASTER_PORT"
)
"""Variables of a TrainJob, which sets only torchrun's options."""

OPEN_MPI: Final = LauncherVariables(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
"""Variables of Open MPI. It sets neither MASTER_ADDR nor MASTER_PORT, which are also needed."""

PLAIN_BY_MPI: Final = replace(PLAIN, local_rank=OPEN_MPI.local_rank, local_size=OPEN_MPI.local_size)
"""Variables to read if a script sets RANK and WORLD_SIZE, but only Open MPI sets the local rank."""

ACCELERATE_OPTIONS: Final = {
    "ACCELERATE_MIXED_PRECISION": ("no", "--mixed_precision", "--precision"),
    "ACCELERATE_DYNAMO_BACKEND": ("no", "--dynamo_backend", "--compile"),
    "ACCELERATE_USE_FSDP": ("false", "--use_fsdp", "--parallel=fsdp"),
    "ACCELERATE_USE_DEEPSPEED": ("false", "--use_deepspeed", "--parallel=fsdp"),
    "ACCELERATE_USE_MEGATRON_LM": ("false", "--use_megatron_lm", "--parallel=fsdp"),
}
"""Maps the variable of each option to the value that turns the option off, accelerate's flag, and
this program's flag."""


def _launcher_variables(environment: Mapping[str, str]) -> LauncherVariables | None:
    if "TORCHELASTIC_RUN_ID" in environment:
        return PLAIN
    _check_processes_of_pod(environment)
    started_by_mpi = environment.get(OPEN_MPI.size, "1") != "1"
    if environment.keys() & {"RANK", "LOCAL_RANK"}:
        return PLAIN_BY_MPI if started_by_mpi and "LOCAL_RANK" not in environment else PLAIN
    if started_by_mpi:
        return OPEN_MPI
    if "WORLD_SIZE" in environment:
        return INDEXED if INDEXED.rank in environment else PLAIN
    if environment.get(KUBEFLOW.size, "1") != "1":
        return KUBEFLOW
    _check_single_process(environment)
    return None


def _check_accelerate(environment: Mapping[str, str]) -> None:
    for variable, (off, flag, ours) in ACCELERATE_OPTIONS.items():
        value = environment.get(variable, off)
        if value.lower() != off:
            raise ConfigurationError(
                f"accelerate launch was called with {flag} ({variable} is {value!r}), which this "
                f"program ignores: remove the flag, and pass {ours} to this program"
            )


def _check_processes_of_pod(environment: Mapping[str, str]) -> None:
    processes = environment.get("PET_NPROC_PER_NODE", "1")
    nodes = environment.get("PET_NNODES", "1")
    # A PyTorchJob sets `auto` by default; `2:4` is the node range of an elastic job.
    if "LOCAL_RANK" in environment or (processes in {"1", "auto"} and nodes.isdecimal()):
        return
    raise ConfigurationError(
        f"PET_NPROC_PER_NODE is {processes} and PET_NNODES is {nodes}, but this process was "
        "started without torchrun: start it with python -m training.launch -m training"
    )


def _check_single_process(environment: Mapping[str, str]) -> None:
    index = environment.get(INDEXED.rank, "0")
    if index != "0":
        raise ConfigurationError(
            f"{INDEXED.rank} is {index}, but WORLD_SIZE is missing: set it to the number of pods "
            "and also set MASTER_ADDR and MASTER_PORT; if every pod is a separate run, set RANK to "
            "0 and WORLD_SIZE to 1 instead"
        )
    if "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment:
        raise ConfigurationError(
            "accelerate launch started only one of several configured processes, which happens "
            "with --cpu: pass --multi_gpu to accelerate launch even for training on CPUs, and "
            "--device=cpu to this program"
        )


@dataclass(frozen=True)
class World:
    """Rank of this process: `rank` of `size` and, on its node, `local_rank` of `local_size`.

    `master` is the address of rank 0 as host:port, or empty for a single process.
    """

    rank: int
    size: int
    local_rank: int
    master: str
    local_size: int = 1

    @property
    def is_rank0(self) -> bool:
        """True if this process completes checkpoints, writes the export and reports progress."""
        return self.rank == 0


def read_world(environment: Mapping[str, str]) -> World:
    """Read the rank. Raise ConfigurationError if variables are incomplete or contradictory."""
    _check_accelerate(environment)
    names = _launcher_variables(environment)
    if names is None:
        return World(rank=0, size=1, local_rank=0, master="")
    rank, size = _number(environment, names.rank), _number(environment, names.size)
    if size < 1 or rank >= size:
        raise ConfigurationError(
            f"{names.rank} is {rank} and {names.size} is {size}: "
            f"ranks go from 0 to {names.size} - 1"
        )
    _check_open_mpi(environment, rank, size)
    local_rank, local_size = _local_rank_of(environment, names, size)
    master = _master(environment, names) if size > 1 else ""
    return World(rank, size, local_rank, master, local_size)


def _check_open_mpi(environment: Mapping[str, str], rank: int, size: int) -> None:
    # If mpirun starts torchrun, torchrun's variables take precedence. Variables that a script sets
    # must match Open MPI's.
    if "TORCHELASTIC_RUN_ID" in environment or environment.get(OPEN_MPI.size, "1") == "1":
        return
    for ours, value, theirs in (("RANK", rank, OPEN_MPI.rank), ("WORLD_SIZE", size, OPEN_MPI.size)):
        if _number(environment, theirs) != value:
            raise ConfigurationError(
                f"{ours} is {value} but {theirs} is {environment[theirs]}: they come from two "
                "launchers, so unset the variables of one of them"
            )


def _local_rank_of(
    environment: Mapping[str, str], names: LauncherVariables, size: int
) -> tuple[int, int]:
    if names in (INDEXED, KUBEFLOW):
        return 0, 1
    rank = _number(environment, names.local_rank, default=0)
    # If the local size is not set, assume the minimum that the local rank implies.
    local_size = _number(environment, names.local_size, default=rank + 1)
    if rank >= local_size:
        raise ConfigurationError(
            f"{names.local_rank} is {rank} and {names.local_size} is {local_size}: "
            f"local ranks go from 0 to {names.local_size} - 1"
        )
    if local_size > size or (names.local_size in environment and size % local_size):
        raise ConfigurationError(
            f"{names.local_rank} is {rank} of {local_size} but {names.size} is {size}: "
            "start the same number of processes on every node"
        )
    return rank, local_size


def _master(environment: Mapping[str, str], names: LauncherVariables) -> str:
    port = _number(environment, names.port)
    host = environment.get(names.host, "")
    if not host or not 0 < port < 65536:
        raise ConfigurationError(
            f"{names.host} is {host!r} and {names.port} is {port}: "
            "set them to the host name and the port (1-65535) of rank 0"
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise ConfigurationError(
            f"{name} is missing, but other variables imply several processes: "
            f"start them with torchrun (python -m training.launch), or set {name} as well"
        )
    if not text.isdecimal():
        raise ConfigurationError(f"{name} is {text!r}: it must be an integer")
    return int(text)


def use_threads(environment: Mapping[str, str]) -> None:
    """Set the number of CPU threads: OMP_NUM_THREADS, or one per available core."""
    threads = _number(environment, "OMP_NUM_THREADS", default=available_cores())
    torch.set_num_threads(max(1, threads))
