"""One process among its peers: the only place that reads ranks and talks to the process group.

A run that is started alone is a gang of one, so that nothing else distinguishes the two.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from training.config import ConfigurationError, DeviceName

T = TypeVar("T")


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


@contextlib.contextmanager
def joined(world: World, device: torch.device, peer_timeout: float) -> Iterator[None]:
    """Be a member of the process group: gloo on the CPU, and NCCL beside it with a GPU.

    Raises torch.distributed.DistError (a RuntimeError) when the others cannot be reached. Inside,
    an operation with a peer that died fails at once or after `peer_timeout` seconds.
    """
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    store = HashStore() if world.size == 1 else None
    dist.init_process_group(
        backend,
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=peer_timeout),
    )
    yield
    # Not after an error: with a dead peer it may block, and the process ends anyway.
    dist.destroy_process_group()


def gather(mine: T) -> list[T]:
    """Give every process what each has, by rank. Also a point where all wait for all."""
    everyone: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone  # type: ignore[return-value]


def by_leader(world: World, action: Callable[[], T]) -> T:
    """Let rank 0 do something; every process gets the result, or raises the error."""
    box: list[tuple[T | None, Exception | None]] = [(None, None)]
    if world.leads:
        try:
            box = [(action(), None)]
        except Exception as error:
            box = [(None, error)]
    dist.broadcast_object_list(box, src=0)
    result, failure = box[0]
    if failure is not None:
        raise failure
    return cast(T, result)


def all_or_none(action: Callable[[], T]) -> T:
    """Do what may fail in one process alone; when it did, every process raises that error."""
    failure: Exception | None = None
    try:
        result = action()
    except Exception as error:
        failure = error
    for somebodys in gather(failure):
        if somebodys is not None:
            raise somebodys
    return result


def lost_peer(error: Exception) -> bool:
    """Whether an operation failed because another process is gone or does not answer."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


class Vote:
    """Lets all processes stop after the same step when one of them wants to.

    The answer is fetched a step later, so that nobody waits for the network in between.
    """

    def __init__(self) -> None:
        self._flag = torch.zeros(1)
        self._pending: dist.Work | None = None

    def cast(self, stop: bool) -> bool:
        """Cast this step's vote; True when somebody wanted to stop in the step before."""
        decided = self._result()
        self._flag.fill_(float(stop))
        if not decided:
            self._pending = dist.all_reduce(self._flag, dist.ReduceOp.MAX, async_op=True)
        return decided

    def close(self) -> None:
        """Wait for the last vote, whose answer is not needed any more."""
        self._result()

    def _result(self) -> bool:
        if self._pending is None:
            return False
        self._pending.wait()
        self._pending = None
        return bool(self._flag.item())
