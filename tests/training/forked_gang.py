"""Gangs of processes that are forked from the test and compute with its modules."""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.gang.world import World

MAX_SECONDS = 240
"""Seconds after which a gang hangs."""


def run_gang(size: int, action: Callable[[World], Any], folder: Path) -> list[Any]:
    """Run the action in `size` forked processes; return their results by rank.

    What they print is in `folder`/rank-N.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{probe.getsockname()[1]}" if size > 1 else ""
    pids = [_fork(World(rank, size, rank, master, size), action, folder) for rank in range(size)]
    codes = [_exit_code(pid, time.monotonic() + MAX_SECONDS) for pid in pids]
    outputs = [(folder / f"rank-{rank}").read_text() for rank in range(size)]
    assert codes == [0] * size, "\n".join(outputs)
    return [torch.load(folder / f"result-{rank}", weights_only=False) for rank in range(size)]


def _exit_code(pid: int, deadline: float) -> int:
    """Wait for a process, and kill it after the deadline."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _fork(world: World, action: Callable[[World], Any], folder: Path) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        output = os.open(folder / f"rank-{world.rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # The output of pytest's capture is not that of the descriptor.
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        # OpenMP's threads do not exist after a fork, and the first parallel loop waits for them.
        torch.set_num_threads(1)
        torch.save(action(world), folder / f"result-{world.rank}")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
