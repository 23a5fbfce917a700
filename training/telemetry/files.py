"""Files of a run for TensorBoard and Perfetto: event files and profiles."""

import contextlib
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor
from torch.profiler import profile, schedule

from workload.configuration import ConfigurationError

LOSSES_PER_COPY: Final = 100
"""Number of losses per copy from the device. Each copy stalls the device, so losses are batched."""


class EventFiles(contextlib.ExitStack):
    """Event files of a run.

    `step` is the number of steps that the run has completed when this process starts. If a killed
    process has written events for later steps, TensorBoard hides them. Raise ConfigurationError if
    tensorboard is not installed.
    """

    def __init__(self, directory: Path, step: int = 0) -> None:
        super().__init__()
        try:
            # Imported here, because the import takes seconds.
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError(
                f"tensorboard is set, but the package cannot be imported ({error}): "
                "install tensorboard in the image, or leave the setting out"
            ) from None
        self._pending: list[tuple[int, Tensor]] = []
        self._writer = SummaryWriter(str(directory), purge_step=step + 1)
        self.callback(self._writer.close)
        self.callback(self.flush)

    def stepped(self, step: int, loss: Tensor, learning_rate: float) -> None:
        """Record the loss (a scalar on any device) and learning rate of a step."""
        self._writer.add_scalar("learning_rate", learning_rate, step)
        self._pending.append((step, loss.detach()))
        if len(self._pending) == LOSSES_PER_COPY:
            self.flush()

    def add_scalars(self, step: int, **values: float) -> None:
        """Record values under their names, such as accuracy after an epoch, and flush."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self.flush()

    def flush(self) -> None:
        """Write everything to disk. Raise OSError on failure."""
        pending, self._pending = self._pending, []
        losses = torch.stack([loss for _, loss in pending]).tolist() if pending else []
        for (step, _), loss in zip(pending, losses, strict=True):
            self._writer.add_scalar("loss", loss, step)
        self._writer.flush()


class Tracer:
    """Profiler that skips the first `after` steps of this process and then records `steps` steps.

    If `steps` is 0, it is disabled. `before` is the number of steps that the run has completed when
    this process starts. After the last profiled step, or at exit, the trace is written to
    `directory`/rank-<rank>-step-<first>.json.gz. Raise OSError if it cannot be written.
    """

    _profile: profile | None = None

    def __init__(self, directory: Path, rank: int, steps: int, after: int, before: int) -> None:
        self._target = directory / f"rank-{rank}-step-{before + after + 1:08d}.json.gz"
        self._left = after + steps
        if steps:
            # The step before the profiled ones is a warm-up, which absorbs the profiler's startup.
            skipped = {"skip_first": after - 1, "wait": 0, "warmup": 1}
            plan = schedule(**skipped, active=steps, repeat=1) if after else None
            self._profile = profile(schedule=plan, on_trace_ready=self._write, record_shapes=True)

    def __enter__(self) -> Self:
        if self._profile is not None:
            self._profile.start()
        return self

    def stepped(self) -> None:
        """Record an optimizer step."""
        self._left -= 1
        if self._left <= 0:
            self.__exit__()
        elif self._profile is not None:
            self._profile.step()

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, done: profile) -> None:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._target.with_name(f".{self._target.name}")
        done.export_chrome_trace(str(unfinished))
        unfinished.replace(self._target)
