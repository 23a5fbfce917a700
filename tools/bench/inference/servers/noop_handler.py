"""Handler for our server that returns the input unchanged."""

from typing import Any

from inference.engine.handlers import Handler, Source
from inference.engine.interface import TensorSpec


class NoOp(Handler):
    """A custom handler that runs no neural network."""

    def load(self, source: Source) -> None:
        """Read the shapes."""
        shape = (-1, *source.manifest.input_shape)
        self.inputs = (TensorSpec("inputs", "FP32", shape),)
        self.outputs = (TensorSpec("outputs", "FP32", shape),)

    def predict(self, decoded: Any) -> Any:
        """Return the input under the output's name."""
        return {"outputs": decoded["inputs"].copy()}
