"""State and length of a run in one process, and the check that it has not diverged."""

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import torch
import torch.distributed as dist
from torch import Tensor

from training.checkpoints.saver import Saver
from training.checkpoints.storage import Position
from training.config import TrainingConfig
from training.data import Dataset
from training.gang.world import World
from training.objective import Evaluation, Objective
from training.optimizer import Average
from training.parallel import Parallel
from training.telemetry.metrics import Metrics
from workload.configuration import ConfigurationError
from workload.run import Vote, Watchdog

MIN_LOSS_SCALE: Final = 1e-4
"""Loss scale (fp16) below which the scale is not the cause of an infinite or NaN gradient."""


@dataclass(frozen=True)
class Length:
    """Length of a run: `steps` steps or, if `steps` is None, `samples` samples.

    `epoch_samples` is the number of samples in an epoch, and `step_samples` the number of samples
    in a step, over all processes. The last step of an epoch may be smaller.
    """

    epoch_samples: int
    step_samples: int
    samples: int = 0
    steps: int | None = None

    @classmethod
    def of(cls, config: TrainingConfig, data: Dataset, processes: int) -> Self:
        """Return the length that a configuration specifies, in samples or steps."""
        epoch, step = len(data.train), config.batch_size * config.accumulate * processes
        match config.length:
            case "train_steps", steps:
                return cls(epoch, step, steps=steps)
            case "train_samples", samples:
                return cls(epoch, step, samples)
            case "train_tokens", tokens:
                return cls(epoch, step, -(-tokens // math.prod(data.shape)))
            case _, epochs:
                return cls(epoch, step, epochs * epoch)

    def done(self, position: Position) -> int:
        """Return the number of samples used for training so far, in all epochs."""
        return position.epoch * self.epoch_samples + position.seen

    def progress(self, position: Position) -> float:
        """Return the completed fraction of the run, from 0 to 1."""
        if self.steps is not None:
            return position.step / self.steps
        return self.done(position) / self.samples

    def end(self, position: Position) -> int:
        """Return the position (in samples) within the epoch at which the epoch or the run ends."""
        return min(self.epoch_samples, position.seen + self._remaining(position))

    def is_reached(self, position: Position) -> bool:
        """Return whether the run ends at this position."""
        return self._remaining(position) <= 0

    def total(self, position: Position) -> int:
        """Return the number of samples of the full run, given the current number of processes."""
        if self.steps is None:
            return self.samples
        left, rest = self.steps - position.step, self.epoch_samples - position.seen
        steps = -(-rest // self.step_samples)
        if left <= steps:
            return self.done(position) + min(left * self.step_samples, rest)
        epochs, last = divmod(left - steps, -(-self.epoch_samples // self.step_samples))
        later = epochs * self.epoch_samples + min(last * self.step_samples, self.epoch_samples)
        return self.done(position) + rest + later

    def epochs(self, samples: int) -> int | float:
        """Convert a number of samples to epochs: an integer if the last epoch is complete."""
        complete, rest = divmod(samples, self.epoch_samples)
        return float(f"{samples / self.epoch_samples:.6g}") if rest else complete

    def check(self, position: Position, config: TrainingConfig) -> None:
        """Raise ConfigurationError if the run has already exceeded the configured length."""
        if self._remaining(position) < 0:
            name, value = config.length
            raise ConfigurationError(
                f"the run in {config.run_dir} has already trained for {position.step} steps "
                f"({self.epochs(self.done(position))} epochs), which is more than {name} {value}: "
                f"increase {name}, or choose another run_dir"
            )

    def _remaining(self, position: Position) -> int:
        """Return an upper bound on the remaining samples: 0 at the end, negative beyond it."""
        if self.steps is not None:
            return (self.steps - position.step) * self.step_samples
        return self.samples - self.done(position)


class DivergedError(Exception):
    """A loss, gradient, weight or metric is not finite; a restarted run would diverge again."""


@dataclass
class Run:
    """State of a run in one process.

    `loss_sum` (a scalar) and `samples` cover the current epoch. `diverged` is a boolean scalar on
    the device, so that no step waits for the GPU. If `give_up` is True, this process votes to stop,
    and all processes then check the loss together. `evaluation` describes the current weights;
    `unevaluated` is True if the weights come from a checkpoint without an evaluation.
    `flops_per_sample` is None if the FLOPs are unknown.
    """

    config: TrainingConfig
    world: World
    device: torch.device
    data: Dataset
    model: Parallel
    objective: Objective
    optimizer: torch.optim.Optimizer
    saver: Saver
    watchdog: Watchdog
    metrics: Metrics
    loss_sum: Tensor
    diverged: Tensor
    average: Average | None = None
    flops_per_sample: int | None = None
    samples: int = 0
    give_up: bool = False
    position: Position = field(default_factory=Position)
    started: float = field(default_factory=time.monotonic)
    evaluation: Evaluation | None = None
    unevaluated: bool = False
    vote: Vote = field(default_factory=Vote)

    @property
    def directory(self) -> Path:
        """Directory of the run, shared by all processes."""
        return Path(self.config.run_dir)

    @functools.cached_property
    def length(self) -> Length:
        """Length of the run, in samples or steps."""
        return Length.of(self.config, self.data, self.world.size)

    @property
    def seconds(self) -> float:
        """Total training time (s), excluding lost steps and the time between attempts."""
        return time.monotonic() - self.started

    def should_stop(self) -> bool:
        """Return whether a process voted to stop. All processes must call this method together."""
        return self.vote.cast(self.saver.failed or self.give_up)

    @contextlib.contextmanager
    def result_weights(self) -> Iterator[None]:
        """Within the context, use the weights and buffers that are evaluated and exported."""
        with contextlib.ExitStack() as stack:
            if self.average is not None:
                stack.enter_context(self.average.applied())
            stack.enter_context(self.model.averaged_buffers())
            yield

    def check_step(self, loss: Tensor, norm: Tensor) -> None:
        """Record whether a step's loss and gradients are finite, without waiting for the device."""
        scaler, is_valid = self.model.scaler, norm.isfinite()
        # With fp16, the scaler skips a step with an infinite gradient and reduces the loss scale.
        if scaler.is_enabled():
            is_valid |= scaler.scale(torch.ones_like(norm)) >= MIN_LOSS_SCALE
        self.diverged |= ~(loss.isfinite() & is_valid)


def mean_loss(run: Run) -> tuple[float, int]:
    """Return the mean loss of this epoch so far over all processes, and the number of samples.

    If a loss or gradient of one process is not finite, raise DivergedError in all processes.
    """
    samples = torch.full_like(run.loss_sum, run.samples)
    totals = torch.stack([run.loss_sum, samples, run.diverged.to(run.loss_sum)])
    dist.all_reduce(totals)
    loss_sum, count, diverged = totals.tolist()
    loss = require_finite(loss_sum / max(count, 1), run)
    if diverged:
        raise diverged_error(run, "a gradient became infinite or NaN")
    return loss, int(count)


def require_finite(loss: float, run: Run, name: str = "loss") -> float:
    """Return the loss. Raise DivergedError if it is infinite or NaN."""
    if not math.isfinite(loss):
        raise diverged_error(run, f"the {name} became {loss}")
    return loss


def require_finite_metrics(metrics: Mapping[str, float], run: Run) -> None:
    """Raise DivergedError if a custom metric is infinite or NaN; exports cannot contain either."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise DivergedError(
                f"metric {name} became {value} in epoch {run.position.epoch + 1}, at or before "
                f"step {run.position.step}: its function must return finite values for all "
                "held-out samples. Correct the function, or remove it from metrics, and start the "
                "run again; it resumes from its newest checkpoint"
            )


def diverged_error(run: Run, problem: str) -> DivergedError:
    """Return an error that states the problem, the current step and the remedies."""
    return DivergedError(
        f"{problem} in epoch {run.position.epoch + 1}, at or before step {run.position.step}: "
        f"lower learning_rate (it is {run.config.learning_rate}) or look for wrong values in the "
        "data. The run resumes from its newest checkpoint, whose weights are finite; to go back "
        f"further, delete the newest directories in {run.directory}/checkpoints"
    )
