"""How fast a form of a model is beside the weights that it was made of."""

import statistics
import time
from typing import Final

import torch
from torch import Tensor, nn

RUNS: Final = (3, 30)
"""At least and at most."""

SECONDS: Final = 3.0
"""After which no further run begins."""


def compare(one: nn.Module, other: nn.Module, inputs: Tensor) -> tuple[float, float]:
    """Median seconds that each takes for these inputs.

    They run in turns, so that whatever else the machine does slows both alike.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    with torch.no_grad():
        for model in (one, other):
            model(inputs)
        while len(seconds[0]) < RUNS[0] or (
            len(seconds[0]) < RUNS[1] and time.perf_counter() - began < SECONDS
        ):
            for model, taken in zip((one, other), seconds, strict=True):
                started = time.perf_counter()
                model(inputs)
                taken.append(time.perf_counter() - started)
    return statistics.median(seconds[0]), statistics.median(seconds[1])
