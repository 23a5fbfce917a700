import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import workload.cores
from training.gang.distributed import joined
from training.gang.world import World, read_world, use_threads
from workload.configuration import ConfigurationError
from workload.devices import choose_device

MASTER = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
COMPLETE = {"RANK": "3", "WORLD_SIZE": "4", **MASTER}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "GROUP_RANK": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    **COMPLETE,
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
TRAINJOB = {
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "3",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}
PYTORCHJOB = {**COMPLETE, "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": "3", "PET_NNODES": "4"}
ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
ALONE = World(rank=0, size=1, local_rank=0, master="")


@pytest.mark.parametrize(
    "environment",
    [
        {"MASTER_PORT": "1"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"JOB_COMPLETION_INDEX": "0"},
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"},
        {**ACCELERATE, "ACCELERATE_USE_CPU": "True"},
    ],
)
def test_a_process_without_a_rank_is_a_gang_of_one(environment: dict[str, str]) -> None:
    assert read_world(environment) == ALONE


@pytest.mark.parametrize(
    ("environment", "world"),
    [
        (TORCHRUN, World(3, 4, 1, "job-master-0:23456", 2)),
        # accelerate starts its processes with torchrun.
        (TORCHRUN | ACCELERATE, World(3, 4, 1, "job-master-0:23456", 2)),
        # mpirun starts one torchrun per node, so the ranks of Open MPI are node numbers.
        (
            TORCHRUN | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            World(3, 4, 1, "job-master-0:23456", 2),
        ),
        # torchrun in a pod of a TrainJob.
        (
            TORCHRUN | TRAINJOB | {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"},
            World(3, 4, 1, "job-master-0:23456", 2),
        ),
        # Volcano's pytorch plugin with one process per pod.
        (COMPLETE, World(3, 4, 0, "job-master-0:23456")),
        (PYTORCHJOB, World(3, 4, 0, "job-master-0:23456")),
        (TRAINJOB, World(3, 4, 0, "job-node-0-0.job:29500")),
        (
            {"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4", **MASTER},
            World(3, 4, 0, "job-master-0:23456"),
        ),
        (OPEN_MPI | MASTER, World(3, 4, 1, "job-master-0:23456", 2)),
        # A script that sets the ranks from Open MPI's variables.
        (OPEN_MPI | COMPLETE, World(3, 4, 1, "job-master-0:23456", 2)),
        (COMPLETE | {"MASTER_ADDR": "fd00::1"}, World(3, 4, 0, "[fd00::1]:23456")),
    ],
)
def test_ranks_are_read_from_the_variables_of_every_launcher(
    environment: dict[str, str], world: World
) -> None:
    assert read_world(environment) == world


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "4"}, "RANK is 4 and WORLD_SIZE is 4"),
        ({"RANK": "-1"}, "RANK is '-1': it must be an integer"),
        ({"WORLD_SIZE": "0"}, "ranks go from 0"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE is missing"),
        ({"RANK": None}, "RANK is missing"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is ''"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536"),
        ({"MASTER_PORT": None}, "MASTER_PORT is missing"),
        ({"LOCAL_RANK": "one"}, "LOCAL_RANK is 'one'"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK is 2 and LOCAL_WORLD_SIZE is 2"),
        ({"LOCAL_RANK": "7", "LOCAL_WORLD_SIZE": "8"}, "LOCAL_RANK is 7 of 8 but WORLD_SIZE is 4"),
        (
            {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"},
            "LOCAL_RANK is 2 of 3 but WORLD_SIZE is 4",
        ),
        ({**OPEN_MPI, "RANK": "0"}, "RANK is 0 but OMPI_COMM_WORLD_RANK is 3"),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"},
            "WORLD_SIZE is 4 but OMPI_COMM_WORLD_SIZE is 8",
        ),
        ({"PET_NPROC_PER_NODE": "2"}, "PET_NPROC_PER_NODE is 2 .* training.launch"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "pass --precision"),
        ({"ACCELERATE_USE_FSDP": "true"}, "pass --parallel=fsdp"),
    ],
)
def test_inconsistent_environment_is_refused(change: dict[str, str | None], message: str) -> None:
    environment = {k: v for k, v in (COMPLETE | change).items() if v is not None}
    with pytest.raises(ConfigurationError, match=message):
        read_world(environment)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JOB_COMPLETION_INDEX": "3"}, "WORLD_SIZE is missing: set it to the number of pods"),
        (TRAINJOB | {"PET_NPROC_PER_NODE": "8"}, "start it with python -m training.launch"),
        (TRAINJOB | {"PET_NNODES": "2:4"}, "PET_NNODES is 2:4"),
        (OPEN_MPI, "MASTER_PORT is missing"),
        # The variables that `accelerate launch --cpu --num_processes=2` sets.
        ({**ACCELERATE, **MASTER, "ACCELERATE_USE_CPU": "True"}, "pass --multi_gpu"),
    ],
)
def test_processes_that_would_train_separately_are_rejected(
    environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_world(environment)


def test_master_port_in_use_is_distinguished_from_an_unreachable_master() -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))  # noqa: S104 - as the master binds
        listener.listen()
        master = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            pytest.raises(ConfigurationError, match=rf"MASTER_PORT \({master}\) is in use"),
            joined(World(0, 2, 0, master), torch.device("cpu"), timeout=5),
        ):
            pass
    with (
        pytest.raises(dist.DistError, match=r"timed out|timeout"),
        joined(World(1, 2, 0, master), torch.device("cpu"), timeout=0.1),
    ):
        pass


def test_a_missing_gpu_is_rejected() -> None:
    assert choose_device("cpu", local_rank=64).type == "cpu"
    with pytest.raises(ConfigurationError, match="--device=cpu"):
        choose_device("cuda", local_rank=64)


def test_number_of_threads_is_limited_by_the_cpu_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(workload.cores, "CGROUPS", tmp_path)
    (tmp_path / "cpu.max").write_text("300000 100000")
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    use_threads({})
    use_threads({"OMP_NUM_THREADS": "5"})
    assert threads == [3, 5]


def test_omp_num_threads_must_be_a_number() -> None:
    with pytest.raises(ConfigurationError, match="OMP_NUM_THREADS is 'all'"):
        use_threads({"OMP_NUM_THREADS": "all"})
