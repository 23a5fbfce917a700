"""Process groups of a gang, and operations that wait for all of its processes."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.collective_utils import all_gather
from torch.distributed.rendezvous import rendezvous

from training.gang.world import World
from workload.configuration import ConfigurationError
from workload.run import all_or_none

T = TypeVar("T")

NEW_STORE: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Environment variable that makes torchrun create a new store whenever it starts the processes.

training.launch sets it unless the rendezvous is static.
"""


POLL_SECONDS: Final = 0.05
"""Seconds between two checks of whether all processes have arrived."""


@contextlib.contextmanager
def joined(world: World, device: torch.device, timeout: float) -> Iterator[None]:
    """Join the process group within the context: gloo for CPU tensors, NCCL for GPU tensors.

    Raise torch.distributed.DistError (a RuntimeError) if the other processes cannot be reached, and
    ConfigurationError if the port of rank 0 is in use. If a peer is dead, an operation
    fails immediately or after `timeout` seconds.
    """
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(
            backend,
            store=HashStore() if world.size == 1 else _store(world, timedelta(seconds=timeout)),
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=timeout),
            # With a device ID, NCCL connects immediately and runs barriers on the right GPU.
            device_id=device if device.type == "cuda" else None,
        )
    except dist.DistNetworkError as error:
        # PyTorch reports the cause only as text.
        if "EADDRINUSE" not in str(error):
            raise
        raise ConfigurationError(
            f"MASTER_PORT ({world.master}) is in use by another program on this machine: "
            "set another port"
        ) from None
    yield
    # Skip this after an error: it may block if a peer is dead, and the process exits anyway.
    dist.destroy_process_group()


def _store(world: World, timeout: timedelta) -> Store:
    """Return a connection to the rendezvous store, hosted by rank 0 or by torchrun's agent.

    The address is explicit because not every launcher sets the variables that `env://` reads.

    When torchrun restarts the processes without `NEW_STORE`, its store still contains the addresses
    of dead processes, which PyTorch 2.15 would read again. Therefore, each start uses a different
    prefix.
    """
    store: Store
    address = f"tcp://{world.master}"
    store, _, _ = next(rendezvous(address, world.rank, world.size, timeout=timeout))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and NEW_STORE not in os.environ:
        return PrefixStore(f"start-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    return store


def gather(mine: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return the values of all ranks in order. This is also a barrier."""
    return all_gather(mine, pg=group or dist.group.WORLD)


def await_peers(action: Callable[[], T], group: dist.ProcessGroup, beat: Callable[[], object]) -> T:
    """Run an action, then call `beat` until all processes have run it; return the result.

    This way, a slow peer is not reported as a hang. Raise torch.distributed.DistError (a
    RuntimeError) if a process is dead.
    """
    try:
        return action()
    finally:
        work = dist.barrier(group, async_op=True)
        while not work.is_completed():
            beat()
            time.sleep(POLL_SECONDS)
        work.wait()


def await_rank0(action: Callable[[], T], group: dist.ProcessGroup, beat: Callable[[], object]) -> T:
    """Run an action, which may take hours, on rank 0 only.

    Return its result, or raise its error, on every rank. While the action runs, the other processes
    call `beat` regularly. Raise torch.distributed.DistError (a RuntimeError) if a process is dead.
    """

    def mine() -> T | None:
        return action() if dist.get_rank(group) == 0 else None

    found = all_or_none(lambda: await_peers(mine, group, beat), group)
    return cast(T, gather(found, group)[0])


def is_lost_peer(error: Exception) -> bool:
    """Return whether an error means that another process is dead or unreachable."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)
