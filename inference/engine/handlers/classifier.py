"""Classes of images and the like: logits to probabilities, the best class and its label."""

import numpy as np
from torch import Tensor

from inference.engine.handler import Source
from inference.engine.handlers.plain import Plain, input_spec
from inference.engine.interface import Tensors, TensorSpec
from workload.manifest import ExportError


class Classifier(Plain):
    """Gives `probabilities` N x classes, `class` N and `label` N."""

    def load(self, source: Source) -> None:
        """The network, which must give one logit for each class of the manifest."""
        manifest = source.manifest
        if not manifest.classes:
            raise ExportError(f"model {manifest.model} has no classes: write another handler")
        self.network, self.device = source.network(), source.device
        self.inputs = (input_spec(manifest),)
        given = list(self.try_one(manifest).shape)
        if given != [1, manifest.outputs]:
            raise ExportError(
                f"model {manifest.model} gives {given} for one input, but its manifest has "
                f"{manifest.outputs} classes"
            )
        self._labels = np.array([label.encode() for label in manifest.classes], np.object_)
        self.outputs = (
            TensorSpec("probabilities", "FP32", (-1, manifest.outputs)),
            TensorSpec("class", "INT64", (-1,)),
            TensorSpec("label", "BYTES", (-1,)),
        )

    def predict(self, decoded: Tensor) -> Tensor:
        """Probabilities: the softmax of the logits, N x classes."""
        logits: Tensor = self.network(decoded)
        return logits.float().softmax(1)

    def encode(self, predicted: Tensor) -> Tensors:
        """The best class is the first of the likeliest."""
        probabilities = predicted.cpu().numpy()
        best = probabilities.argmax(1)
        return {"probabilities": probabilities, "class": best, "label": self._labels[best]}
