"""Length of a run, and its progress."""

import math
from dataclasses import dataclass
from typing import Self

from training.checkpoints.storage import Position
from training.config import TrainingConfig
from training.data import Dataset
from workload.configuration import ConfigurationError


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
                f"set a larger {name}, or choose another run_dir"
            )

    def _remaining(self, position: Position) -> int:
        """Return an upper bound on the remaining samples: 0 at the end, negative beyond it."""
        if self.steps is not None:
            return (self.steps - position.step) * self.step_samples
        return self.samples - self.done(position)
