"""Who started this process, and under which names it says where the process stands.

Three kinds: torchrun and accelerate start the processes of a node and give each its rank; Open MPI
starts each process of all nodes; Kubeflow, Volcano and Indexed Jobs start pods, which are ranks
only where one process runs in each. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from workload.configuration import ConfigurationError


@dataclass(frozen=True)
class Names:
    """The variables of one launcher. `checked`: those of others must agree with them."""

    rank: str = "RANK"
    size: str = "WORLD_SIZE"
    local_rank: str = "LOCAL_RANK"
    local_size: str = "LOCAL_WORLD_SIZE"
    host: str = "MASTER_ADDR"
    port: str = "MASTER_PORT"
    checked: bool = False


TORCHRUN: Final = Names()
"""Also accelerate's. It may be started by mpirun, whose ranks then count nodes."""

PLAIN: Final = Names(checked=True)
"""The same names, set by Volcano's pytorch plugin or a PyTorchJob, which count pods, or by hand."""

INDEXED: Final = Names(rank="JOB_COMPLETION_INDEX")
"""An Indexed Job tells a pod its index, but not how many there are."""

KUBEFLOW: Final = Names(
    rank="PET_NODE_RANK", size="PET_NNODES", host="PET_MASTER_ADDR", port="PET_MASTER_PORT"
)
"""A TrainJob tells torchrun, by torchrun's own variables, and nobody else."""

ONE_POD_ONE_RANK: Final = (INDEXED, KUBEFLOW)

OPEN_MPI: Final = Names(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
"""Open MPI sets no address: MASTER_ADDR and MASTER_PORT do."""

ACCELERATE_OPTIONS: Final = {
    "ACCELERATE_MIXED_PRECISION": ("no", "--mixed_precision", "--precision"),
    "ACCELERATE_DYNAMO_BACKEND": ("no", "--dynamo_backend", "--compile"),
    "ACCELERATE_USE_FSDP": ("false", "--use_fsdp", "--parallel=fsdp"),
    "ACCELERATE_USE_DEEPSPEED": ("false", "--use_deepspeed", "--parallel=fsdp"),
    "ACCELERATE_USE_MEGATRON_LM": ("false", "--use_megatron_lm", "--parallel=fsdp"),
}
"""By variable: its value when nothing is asked for, accelerate's flag, and what does it here."""


def names_for(environment: Mapping[str, str]) -> Names | None:
    """The variables that tell where this process stands; None when it is alone.

    Raises ConfigurationError when they were meant for a launcher that did not come in between.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return TORCHRUN
    _check_processes_of_pod(environment)
    if environment.keys() & {"RANK", "LOCAL_RANK"}:
        return PLAIN
    if environment.get(OPEN_MPI.size, "1") != "1":
        return OPEN_MPI
    if "WORLD_SIZE" in environment:
        return INDEXED if INDEXED.rank in environment else PLAIN
    if environment.get(KUBEFLOW.size, "1") != "1":
        return KUBEFLOW
    _check_alone(environment)
    return None


def check_accelerate(environment: Mapping[str, str]) -> None:
    """Refuse what `accelerate launch` or its configuration asks for and this program would ignore.

    Raises ConfigurationError.
    """
    for variable, (nothing, flag, ours) in ACCELERATE_OPTIONS.items():
        value = environment.get(variable, nothing)
        if value.lower() != nothing:
            raise ConfigurationError(
                f"accelerate launch was told {flag} ({variable} is {value!r}), which this program "
                f"does not read: leave it out there, and write {ours} as this program's own flag"
            )


def _check_processes_of_pod(environment: Mapping[str, str]) -> None:
    """A PyTorchJob's or TrainJob's pod of several processes has to start them itself."""
    each = environment.get("PET_NPROC_PER_NODE", "1")
    nodes = environment.get("PET_NNODES", "1")
    # `auto` is what a PyTorchJob says by itself; `2:4` are the nodes of an elastic job.
    if "LOCAL_RANK" in environment or (each in {"1", "auto"} and nodes.isdecimal()):
        return
    raise ConfigurationError(
        f"PET_NPROC_PER_NODE is {each} and PET_NNODES is {nodes}, which are for torchrun, but this "
        "process was started without it: start it by python -m training.launch -m training"
    )


def _check_alone(environment: Mapping[str, str]) -> None:
    index = environment.get(INDEXED.rank, "0")
    if index != "0":
        raise ConfigurationError(
            f"{INDEXED.rank} is {index}, but WORLD_SIZE is missing: set it to the number of pods, "
            "with MASTER_ADDR and MASTER_PORT, or write RANK 0 and WORLD_SIZE 1 where every pod "
            "has a run of its own"
        )
    if "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment:
        raise ConfigurationError(
            "accelerate launch was told of several processes but has started one, as it does with "
            "--cpu: write --multi_gpu there, also on the CPU, and --device=cpu for this program"
        )
