"""Handler that runs the unoptimized PyTorch model, without the backends of our server."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from inference.engine.handlers import Handler, Source
from inference.engine.interface import TensorSpec
from tools.bench.inference.networks import compute_of
from tools.bench.inference.workloads import WORKLOADS


class PlainNetwork(Handler):
    """A custom handler that runs the model in eager PyTorch."""

    def load(self, source: Source) -> None:
        """Load the weights."""
        manifest = source.manifest
        plain = replace(WORKLOADS[manifest.model], plain=True)
        self.compute_batch = compute_of(plain, Path(source.folder))
        self.inputs = (TensorSpec("images", "FP32", (-1, *manifest.input_shape)),)
        self.outputs = (TensorSpec("probabilities", "FP32", (-1, manifest.outputs)),)

    def predict(self, decoded: Any) -> Any:
        """Return the probabilities of a batch."""
        return {"probabilities": self.compute_batch(decoded["images"])}
