"""Asynchronous checkpointing by all processes of a gang."""

import functools
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from training.checkpoints import storage
from training.checkpoints.mirror import Mirror
from training.checkpoints.sharded_tensors import Tensors, write
from training.checkpoints.storage import Position, Seal
from training.config import TrainingConfig
from training.gang.distributed import await_rank0, gather
from training.gang.world import World
from workload import files
from workload.run import all_or_none, on_rank0


class Staging:
    """CPU memory for copies of tensors, reused because new memory is slow on first access.

    PyTorch 2.15's DefaultStager takes about 1.4 times as long (measured with 222 MiB on the CPU).
    """

    def __init__(self) -> None:
        self._copies: Tensors = {}

    def copy(self, tensors: Tensors) -> Tensors:
        """Copy the tensors; the result is valid until the next call. DTensors stay DTensors."""
        copied = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return copied

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        copy = self._copies.get(name)
        if copy is None or (copy.shape, copy.dtype) != (local.shape, local.dtype):
            copy = torch.empty(
                local.shape, dtype=local.dtype, pin_memory=local.device.type == "cuda"
            )
            self._copies[name] = copy
        copy.copy_(local, non_blocking=True)
        if not isinstance(tensor, DTensor):
            return copy
        return DTensor.from_local(
            copy,
            self._mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )

    @functools.cached_property
    def _mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", (dist.get_world_size(),))


class Saver:
    """Checkpoint saver. A background thread in every process writes one checkpoint at a time.

    With `checkpoint_async`, training waits only until the previous checkpoint is written and the
    tensors are copied. All processes must call the methods in the same order.
    """

    def __init__(
        self, config: TrainingConfig, world: World, group: dist.ProcessGroup, mirror: Mirror | None
    ) -> None:
        self._config, self._world, self.group, self.mirror = config, world, group, mirror
        self._directory = Path(config.run_dir) / "checkpoints"
        self._staging = Staging()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # By default, a new thread would use the first GPU of the node.
            self._thread.submit(torch.cuda.set_device, torch.cuda.current_device())
        self._pending: list[Future[None]] = []
        self._step: int | None = None

    def save(
        self,
        tensors: Tensors,
        seal: Seal,
        check: Callable[[Tensors], object],
        done: Callable[[float], object],
    ) -> None:
        """Wait for the previous checkpoint, then copy the tensors and start writing them.

        `seal` does not list the files yet. The background thread calls `check` with the copies; if
        the check fails in one process, nothing is written. When everything is on disk, `done` is
        called with the elapsed seconds. If this step has already been saved, nothing is copied. If
        the previous checkpoint could not be saved, raise OSError or the error from its check.
        """
        started = time.monotonic()
        self.wait()
        if seal.position.step == self._step:
            return
        self._step = seal.position.step
        staged = self._staging.copy(tensors)
        write = functools.partial(self._write, staged, seal, started, check, done)
        self._add_pending(self._thread.submit(write))

    def amend(self, position: Position, seconds: float, held_out_loss: float) -> None:
        """Add an evaluation to the checkpoint at `position`, if any, once it is on disk."""
        if position.step != self._step:
            return

        def action() -> None:
            path = files.checkpoint_of(self._directory, position.step)
            storage.amend_checkpoint(path, position, seconds, held_out_loss)
            self._rotate_and_copy(path)

        self._add_pending(self._thread.submit(on_rank0, action, self.group))

    def _add_pending(self, future: Future[None]) -> None:
        self._pending.append(future)
        if not self._config.checkpoint_async:
            self.wait()

    def resumed(self, checkpoint: Path) -> None:
        """Record that this checkpoint exists, so it is not written again.

        Also copy it to the object store, because the previous process may have exited before it
        copied the checkpoint.
        """
        self._step = files.step_of(checkpoint)
        if self.mirror is not None and self._world.is_rank0:
            self.mirror.submit(checkpoint)

    @property
    def failed(self) -> bool:
        """True if saving a pending checkpoint failed; `wait` raises the error."""
        return any(each.done() and each.exception() is not None for each in self._pending)

    def wait(self) -> None:
        """Wait for pending checkpoints. If one was not saved, raise the error in every process."""
        pending, self._pending = self._pending, []
        for each in pending:
            each.result()

    def close(self, beat: Callable[[], object]) -> None:
        """Wait until the checkpoints are on disk and in the object store, and stop the thread.

        While waiting for the object store, every process calls `beat` regularly.
        """
        self.wait()
        if (mirror := self.mirror) is not None:
            await_rank0(lambda: mirror.wait(beat), self.group, beat)
        self._thread.shutdown()

    def _write(
        self,
        tensors: Tensors,
        seal: Seal,
        started: float,
        check: Callable[[Tensors], object],
        done: Callable[[float], object],
    ) -> None:
        # Check here and not in `save`, where the check would make training wait several times as
        # long.
        all_or_none(lambda: check(tensors), self.group)
        target = files.checkpoint_of(self._directory, seal.position.step)
        directory = on_rank0(lambda: files.create_unfinished(target), self.group)
        paths = write(directory, tensors, self.group, self._world.rank)
        mine = all_or_none(lambda: [storage.file_entry(path) for path in paths], self.group)
        listed = tuple(itertools.chain.from_iterable(gather(mine, self.group)))
        complete = seal.model_copy(update={"files": listed})
        on_rank0(
            lambda: self._rotate_and_copy(storage.seal_checkpoint(directory, complete)), self.group
        )
        done(time.monotonic() - started)

    def _rotate_and_copy(self, checkpoint: Path) -> None:
        """Remove old checkpoints, and copy this one to the object store."""
        copying = None
        if self.mirror is not None:
            # After this call, the mirror does not start copying older checkpoints.
            self.mirror.submit(checkpoint)
            copying = self.mirror.copying
        config = self._config
        storage.rotate(checkpoint, config.keep_checkpoints, config.keep_best, copying)
