"""Custom handlers that the tests of the engine configure. Workers import this module."""

import os
import signal
import time

import numpy as np
import torch

from inference.engine.handlers import Handler, Source, input_spec
from inference.engine.interface import InputError, Tensors, TensorSpec
from workload.manifest import checked_file

FINE, SLEEP, REFUSE, FAIL, DIE, HOLD, CUDA = range(7)
"""Actions, selected by the first number of a sample. The second is the maximum time to sleep."""

PASSWORD = "hunter2"
"""Secret in the text of an exception."""

RELEASE = "release"
"""File in the export whose creation ends `HOLD`."""


class Probe(Handler):
    """Handler that returns a sample's third number, the batch size and earlier samples' count."""

    def load(self, source: Source) -> None:
        checked_file(source.folder, source.manifest.weights)
        self.inputs = (input_spec(source.manifest),)
        self.outputs = (
            TensorSpec("value", "FP32", (-1,)),
            TensorSpec("batch", "INT64", (-1,)),
            TensorSpec("before", "INT64", (-1,)),
            TensorSpec("text", "BYTES", (-1,)),
        )
        self.computed = 0
        self.release = source.folder / RELEASE

    def predict(self, decoded: Tensors) -> Tensors:
        rows = decoded["inputs"]
        for what, seconds, value in rows.tolist():
            if what == SLEEP:
                time.sleep(seconds)
            elif what == HOLD:
                until = time.monotonic() + seconds
                while not self.release.exists() and time.monotonic() < until:
                    time.sleep(0.01)
            elif what == REFUSE:
                raise InputError(f"inputs has {value}")
            elif what == FAIL:
                raise ValueError("a mistake in the model")
            elif what == CUDA:
                raise torch.AcceleratorError("CUDA error: unspecified launch failure")
            elif what == DIE:
                os.kill(os.getpid(), signal.SIGKILL)
        before = np.arange(self.computed, self.computed + len(rows))
        self.computed += len(rows)
        text = np.array([f"{value:g}".encode() for value in rows[:, 2]], np.object_)
        return {
            "value": rows[:, 2],
            "batch": np.full(len(rows), len(rows)),
            "before": before,
            "text": text,
        }


class Broken(Probe):
    """Handler that fails for all samples except the zeros with which it is loaded."""

    def predict(self, decoded: Tensors) -> Tensors:
        if decoded["inputs"].any():
            raise ValueError("a mistake in the model")
        return super().predict(decoded)


class Slow(Probe):
    """Handler that takes two seconds per batch, except for those with which it is loaded."""

    def predict(self, decoded: Tensors) -> Tensors:
        if decoded["inputs"].any():
            time.sleep(2)
        return super().predict(decoded)


class Liar(Probe):
    """Handler whose outputs differ from its declaration."""

    def predict(self, decoded: Tensors) -> Tensors:
        return {"value": decoded["inputs"]}


class NoHandler:
    """A class that is not a handler."""


class Unreachable(Probe):
    """Handler whose constructor fails with a text that callers must not see."""

    def __init__(self) -> None:
        raise OSError(f"cannot connect to postgres://model:{PASSWORD}@features")
