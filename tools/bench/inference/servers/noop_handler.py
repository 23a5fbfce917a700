"""The no-op of our own server: what came in."""

from typing import Any

from inference.engine.handlers import Handler, Source
from inference.engine.interface import TensorSpec


class NoOp(Handler):
    """A handler like a user's own, without a network."""

    def load(self, source: Source) -> None:
        """Only the shapes."""
        shape = (-1, *source.manifest.input_shape)
        self.inputs = (TensorSpec("inputs", "FP32", shape),)
        self.outputs = (TensorSpec("outputs", "FP32", shape),)

    def predict(self, decoded: Any) -> Any:
        """The same array under another name."""
        return {"outputs": decoded["inputs"].copy()}
