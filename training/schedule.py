"""The learning rate as a function of progress alone: no state, and any number of processes."""

import math
from typing import Final

from training.config import TrainingConfig

FIRST: Final = 0.1
"""Share of the peak at which the warm-up begins."""

LEAST: Final = 0.001
"""Share of the peak at which the run ends."""


def learning_rate(config: TrainingConfig, progress: float) -> float:
    """The learning rate after `progress`, the share from 0 to 1 of all samples of all epochs.

    Up in a straight line to the peak, then on a cosine (one-cycle, after Smith and Topin,
    arXiv:1708.07120), in a straight line, or not at all, down to nearly nothing.
    """
    return config.learning_rate * _share(config, progress)


def _share(config: TrainingConfig, progress: float) -> float:
    if progress < config.warm_up:
        return FIRST + (1 - FIRST) * progress / config.warm_up
    left = (1 - progress) / (1 - config.warm_up)
    match config.schedule:
        case "one-cycle":
            return LEAST + (1 - LEAST) * (1 - math.cos(math.pi * left)) / 2
        case "linear":
            return LEAST + (1 - LEAST) * left
        case "constant":
            return 1.0
