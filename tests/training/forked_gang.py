"""Gangs of processes that run a test's function, forked from the fork server.

A fork of the test process itself could hang, because it lacks the threads of earlier tests.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests import fork_server
from tests.training.programs import free_port
from training.gang.world import World

MAX_SECONDS = 540
"""Seconds after which a gang is considered hung."""


def run_gang(size: int, action: Callable[[World], Any], folder: Path) -> list[Any]:
    """Run a picklable function in `size` processes; return the results by rank.

    The output of each process is in `folder`/rank-N.
    """
    master = f"127.0.0.1:{free_port()}" if size > 1 else ""
    worlds = [World(rank, size, rank, master, size) for rank in range(size)]
    gang = [
        fork_server.SERVER.Process(target=_compute, args=(world, action, folder))
        for world in worlds
    ]
    for process in gang:
        process.start()
    deadline = time.monotonic() + MAX_SECONDS
    for process in gang:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()
    outputs = [(folder / f"rank-{rank}").read_text() for rank in range(size)]
    assert [process.exitcode for process in gang] == [0] * size, "\n".join(outputs)
    return [torch.load(folder / f"result-{rank}", weights_only=False) for rank in range(size)]


def _compute(world: World, action: Callable[[World], Any], folder: Path) -> None:
    code = 1
    try:
        output = os.open(folder / f"rank-{world.rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        torch.save(action(world), folder / f"result-{world.rank}")
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
