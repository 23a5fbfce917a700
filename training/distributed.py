"""What the processes of a gang do together: the only place that talks to the process group."""

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from training.world import World, port_taken

T = TypeVar("T")

NEW_STORE: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Tells torchrun to make a new store for every start; training.launch sets it where it can."""


@contextlib.contextmanager
def joined(world: World, device: torch.device, peer_timeout: float) -> Iterator[None]:
    """Be a member of the process group: gloo on the CPU, and NCCL beside it with a GPU.

    Raises torch.distributed.DistError (a RuntimeError) when the others cannot be reached, and
    ConfigurationError when the port of rank 0 is taken. Inside,
    an operation with a peer that died fails at once or after `peer_timeout` seconds.
    """
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(
            backend,
            store=HashStore() if world.size == 1 else _store(timedelta(seconds=peer_timeout)),
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=peer_timeout),
        )
    except dist.DistNetworkError as error:
        raise port_taken(world, error) or error from None
    yield
    # Not after an error: with a dead peer it may block, and the process ends anyway.
    dist.destroy_process_group()


def _store(timeout: timedelta) -> Store:
    """Where the processes find one another's addresses: at rank 0, or at torchrun's own.

    torchrun keeps its store when it starts the processes again, with the addresses of those that
    are gone; PyTorch reads these (seen with 2.15). So every start has names of its own there.
    """
    store: Store
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and NEW_STORE not in os.environ:
        return PrefixStore(f"start-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    return store


def gather(mine: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Give every process what each has, by rank. Also a point where all wait for all."""
    everyone: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine, group)
    return everyone  # type: ignore[return-value]


def by_leader(world: World, action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Let rank 0 do something; every process gets the result, or raises the error."""
    box: list[tuple[T | None, Exception | None]] = [(None, None)]
    if world.leads:
        try:
            box = [(action(), None)]
        except Exception as error:
            box = [(None, error)]
    dist.broadcast_object_list(box, src=0, group=group)
    result, failure = box[0]
    if failure is not None:
        raise failure
    return cast(T, result)


def all_or_none(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Do what may fail in one process alone; when it did, every process raises that error."""
    failure: Exception | None = None
    try:
        result = action()
    except Exception as error:
        failure = error
    for somebodys in gather(failure, group):
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
