"""Our own server with exactly the network that the peers compute, none of its backends."""

from pathlib import Path
from typing import Any

from inference.engine.handlers import Handler, Source
from inference.engine.interface import TensorSpec
from tools.bench.inference.networks import compute_of
from tools.bench.inference.workloads import WORKLOADS


class PlainNetwork(Handler):
    """A handler like a user's own."""

    def load(self, source: Source) -> None:
        """The weights in eager PyTorch."""
        manifest = source.manifest
        self.compute_batch = compute_of(WORKLOADS[manifest.model], Path(source.folder))
        self.inputs = (TensorSpec("images", "FP32", (-1, *manifest.input_shape)),)
        self.outputs = (TensorSpec("probabilities", "FP32", (-1, manifest.outputs)),)

    def predict(self, decoded: Any) -> Any:
        """Probabilities."""
        return {"probabilities": self.compute_batch(decoded["images"])}
