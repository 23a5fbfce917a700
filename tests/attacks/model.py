"""Handler with one small and one very large output, imported by the attacked server's worker."""

import os
import signal

import numpy as np

from inference.engine.handlers import Handler, Source, input_spec
from inference.engine.interface import Tensors, TensorSpec
from workload.manifest import checked_file

DIE = 4
"""First number of a sample that terminates the worker."""

LARGE = 2**18
"""Number of floats in the large output of one sample: 1 MiB for a request of a few bytes."""


class Amplifier(Handler):
    """Handler that returns each sample's third number, and 1 MiB of zeros."""

    def load(self, source: Source) -> None:
        """Verify the export."""
        checked_file(source.folder, source.manifest.weights)
        self.inputs = (input_spec(source.manifest),)
        self.outputs = (
            TensorSpec("value", "FP32", (-1,)),
            TensorSpec("large", "FP32", (-1, LARGE)),
        )

    def predict(self, decoded: Tensors) -> Tensors:
        """Return the outputs, or terminate the process."""
        rows = decoded["inputs"]
        if (rows[:, 0] == DIE).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return {"value": rows[:, 2], "large": np.zeros((len(rows), LARGE), np.float32)}
