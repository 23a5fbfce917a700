"""Agreement of all processes of a gang. Without a process group, a process is alone."""

import os
import signal
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

T = TypeVar("T")
Group = dist.ProcessGroup | None


def joined() -> bool:
    """Return whether this process belongs to a process group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Return the rank of this process, also before the group exists."""
    return dist.get_rank() if joined() else int(os.environ.get("RANK", "0"))


def gather(mine: T, group: Group = None) -> list[T]:
    """Return the values of all processes, by rank. This is also a barrier."""
    if not joined():
        return [mine]
    everyone: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine, group)
    return cast(list[T], everyone)


def on_rank0(action: Callable[[], T], group: Group = None) -> T:
    """Run an action on rank 0; every process returns the result or raises the error."""
    box = [_attempt(action) if not joined() or rank() == 0 else (None, None)]
    if joined():
        dist.broadcast_object_list(box, src=0, group=group)
    result, failure = box[0]
    if failure is not None:
        raise failure
    return cast(T, result)


def all_or_none(action: Callable[[], T], group: Group = None) -> T:
    """Run an action that may fail in one process; if it does, every process raises the error."""
    result, failure = _attempt(action)
    for problem in gather(failure, group):
        if problem is not None:
            raise problem
    return cast(T, result)


def _attempt(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return action(), None
    except Exception as error:
        return None, error


class Vote:
    """Agreement to stop all processes after the same step if one of them wants to.

    The result is fetched a step later, so that no process waits for the network.
    """

    def __init__(self, group: Group = None) -> None:
        self._group, self._requested, self._flag = group, False, torch.zeros(1)
        self._pending: dist.Work | None = None

    def listen(self) -> dict[int, Any]:
        """Vote to stop after SIGTERM or the first Ctrl-C; return the previous handlers."""
        return {
            each: signal.signal(each, self._request) for each in (signal.SIGTERM, signal.SIGINT)
        }

    def _request(self, number: int, _: object) -> None:
        self._requested = True
        # torchrun forwards a Ctrl-C, which its processes also receive from the terminal.
        if number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def cast(self, stop: bool = False) -> bool:
        """Cast this step's vote; return True if a process voted to stop in the previous step."""
        stop = stop or self._requested
        if not joined():
            return stop
        decided = self.result()
        if not decided:
            self._flag.fill_(float(stop))
            maximum = dist.ReduceOp.MAX
            self._pending = dist.all_reduce(self._flag, maximum, self._group, async_op=True)
        return decided

    def result(self) -> bool:
        """Wait for the last vote; return True if a process voted to stop."""
        pending, self._pending = self._pending, None
        if pending is None:
            return False
        pending.wait()
        return bool(self._flag.item())
