"""Whoever watches a run: at a terminal, in a log, on a dashboard, or later at its curves."""

import contextlib
import math
from pathlib import Path
from typing import Self

from torch import Tensor

from training.config import TrainingConfig
from training.state import Run
from training.tensorboard import EventFiles
from training.tracing import Tracer
from workload.progress import Epoch, Step
from workload.report import Bar, emit


class DivergedError(Exception):
    """The loss is not a number any more: starting again would end in the same."""


class Watching(contextlib.ExitStack):
    """Tells of a run's steps and epochs from where it stands now.

    Raises ConfigurationError when something to be watched with is not installed, and OSError when
    a trace or curves cannot be written.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run, config, position = run, run.config, run.position
        self._every = config.log_every if run.world.leads else 0
        count = len(run.data.train)
        self._bar = Bar(total=config.epochs * count, done=done_samples(run), shown=run.world.leads)
        folder = run.folder / "tensorboard"
        self._files = EventFiles(
            folder if config.tensorboard and run.world.leads else None, step=position.step
        )
        self._tracer = _tracer(run, config)

    def __enter__(self) -> Self:
        for watcher in (self._bar, self._files, self._tracer):
            self.enter_context(watcher)
        return self

    def stepped(self, loss: Tensor, rate: float) -> None:
        """A step is done; the loss is the mean of this process's samples, a scalar."""
        run, step = self._run, self._run.position.step
        self._bar.advance(done_samples(run), step, loss)
        self._files.stepped(step, loss, rate)
        self._tracer.stepped()
        # To look at it more often would stall a GPU.
        if self._every and step % self._every == 0:
            # Who reads only the end of a long log still sees how far the run is.
            done = round(done_samples(run) / len(run.data.train), 4)
            value = finite(float(loss), run)
            emit(Step(step=step, loss=value, done_epochs=done, epochs=run.config.epochs))

    def judged(self, samples: int, **values: float) -> None:
        """An epoch of so many samples is done, interruptions included; its numbers are these."""
        config, position = self._run.config, self._run.position
        self._files.noted(position.step, **values)
        self._files.flush()
        self._run.metrics.judged(position.epoch, values["accuracy"], values["held_out_loss"])
        if self._run.world.leads:
            rounded = {name: round(value, 6) for name, value in values.items()}
            counts = {"epoch": position.epoch, "epochs": config.epochs, "samples": samples}
            emit(Epoch.model_validate({**counts, **rounded}))


def done_samples(run: Run) -> int:
    """Of all epochs so far."""
    return run.position.epoch * len(run.data.train) + run.position.seen


def finite(loss: float, run: Run) -> float:
    """The loss itself. Raises DivergedError when it is infinite or not a number."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss became {loss} in epoch {run.position.epoch + 1}, by step "
            f"{run.position.step}: lower learning_rate (it is {run.config.learning_rate}) "
            "or look for wrong values in the data"
        )
    return loss


def _tracer(run: Run, config: TrainingConfig) -> Tracer:
    return Tracer(
        Path(config.run_dir) / "profile",
        run.world.rank,
        config.profile_steps,
        config.profile_after,
        before=run.position.step,
        device=run.device,
    )
