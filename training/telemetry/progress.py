"""Progress outputs of a run: terminal bar, JSON log, metrics, TensorBoard and traces."""

import contextlib
from pathlib import Path
from typing import Self

from torch import Tensor

from training.config import TrainingConfig
from training.run import Run, require_finite
from training.telemetry.tensorboard import EventFiles
from training.telemetry.tracing import Tracer
from workload.progress import Epoch, Step
from workload.report import Bar, emit


class ProgressOutputs(contextlib.ExitStack):
    """Reports steps and epochs of a run, starting at its current position.

    Raises ConfigurationError when a required package is not installed, and OSError when a trace or
    event file cannot be written.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run, config, position = run, run.config, run.position
        self._every = config.log_every if run.world.is_rank0 else 0
        count = len(run.data.train)
        self._bar = Bar(
            total=config.epochs * count, done=done_samples(run), shown=run.world.is_rank0
        )
        folder = run.folder / "tensorboard"
        self._files = EventFiles(
            folder if config.tensorboard and run.world.is_rank0 else None, step=position.step
        )
        self._tracer = _tracer(run, config)

    def __enter__(self) -> Self:
        for output in (self._bar, self._files, self._tracer):
            self.enter_context(output)
        return self

    def stepped(self, loss: Tensor, rate: float) -> None:
        """Report a step; the loss is the mean of this process's samples, a scalar."""
        run, step = self._run, self._run.position.step
        self._bar.advance(done_samples(run), step, loss)
        self._files.stepped(step, loss, rate)
        self._tracer.stepped()
        # Reading the loss stalls a GPU, so it is read only when it is logged.
        if self._every and step % self._every == 0:
            # The end of a long log shows the progress on its own.
            done = round(done_samples(run) / len(run.data.train), 4)
            value = require_finite(float(loss), run)
            emit(Step(step=step, loss=value, done_epochs=done, epochs=run.config.epochs))

    def evaluated(self, samples: int, **values: float) -> None:
        """Report an epoch with its number of samples, interruptions included, and its values."""
        config, position = self._run.config, self._run.position
        self._files.add_scalars(position.step, **values)
        self._files.flush()
        self._run.metrics.evaluated(position.epoch, values["accuracy"], values["held_out_loss"])
        if self._run.world.is_rank0:
            rounded = {name: round(value, 6) for name, value in values.items()}
            counts = {"epoch": position.epoch, "epochs": config.epochs, "samples": samples}
            emit(Epoch.model_validate({**counts, **rounded}))


def done_samples(run: Run) -> int:
    """Return the number of samples in all epochs so far."""
    return run.position.epoch * len(run.data.train) + run.position.seen


def _tracer(run: Run, config: TrainingConfig) -> Tracer:
    return Tracer(
        Path(config.run_dir) / "profile",
        run.world.rank,
        config.profile_steps,
        config.profile_after,
        before=run.position.step,
        device=run.device,
    )
