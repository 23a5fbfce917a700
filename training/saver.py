"""Saves a run on all processes together, while its training goes on."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Final, cast

import torch.distributed as dist

from training import checkpoint
from training.checkpoint import Described, Seal
from training.distributed import all_or_none, by_leader, gather
from training.sharded_tensors import Tensors, write
from training.staging import Staging
from training.world import World

LONGEST_SAVE: Final = timedelta(hours=1)
"""How long a process waits for the others' files: a slow disk is no lost peer."""


class Saver:
    """One checkpoint after another, each written by a thread of every process.

    Only the copy of the tensors makes training wait. All processes call all methods alike.
    """

    def __init__(self, folder: Path, world: World, keep: int, keep_best: bool) -> None:
        self._folder, self._world, self._keep, self._keep_best = folder, world, keep, keep_best
        group = dist.new_group(backend="gloo", timeout=LONGEST_SAVE)
        self.group = cast(dist.ProcessGroup, group)
        self._staging = Staging()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: Future[float] | None = None
        self._step: int | None = None

    def save(self, tensors: Tensors, described: Described, done: Callable[[float], object]) -> None:
        """Copy the tensors and begin to write them, after what is under way is on the disk.

        `done` is told the seconds until all was on the disk. Raises OSError when the checkpoint
        before could not be written.
        """
        started = time.monotonic()
        self.wait()
        if described.position.step == self._step:
            return
        self._step = described.position.step
        staged = self._staging.copy(tensors)
        self._under_way = self._thread.submit(self._write, staged, described, started)
        self._under_way.add_done_callback(
            lambda future: None if future.exception() else done(future.result())
        )

    def resumed(self, step: int) -> None:
        """The checkpoint after `step` steps is there and intact: it is not written once more."""
        self._step = step

    @property
    def failed(self) -> bool:
        """Whether what is under way could not be written; `wait` says why."""
        return (
            self._under_way is not None
            and self._under_way.done()
            and self._under_way.exception() is not None
        )

    def wait(self) -> None:
        """Wait until all is on the disk. Raises OSError, on every process, when it is not."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def close(self) -> None:
        """Wait, and end the thread."""
        self.wait()
        self._thread.shutdown()

    def _write(self, tensors: Tensors, described: Described, started: float) -> float:
        step = described.position.step
        folder = by_leader(
            self._world, lambda: checkpoint.unfinished(self._folder, step), self.group
        )
        paths = write(folder, tensors, self.group, self._world.rank)
        own = all_or_none(lambda: [checkpoint.sealed(path) for path in paths], self.group)
        files = tuple(file for somebodys in gather(own, self.group) for file in somebodys)
        seal = Seal(**dict(described), files=files)
        by_leader(
            self._world,
            lambda: checkpoint.finish(folder, seal, self._keep, self._keep_best),
            self.group,
        )
        return time.monotonic() - started
