"""One tensor in, one tensor out, as the network has them."""

import numpy as np
import torch
from torch import Tensor, nn

from inference.engine.handler import Handler, Source
from inference.engine.interface import Tensors, TensorSpec
from workload.manifest import ExportError, Manifest


class Plain(Handler):
    """Gives what the network gives, as FP32, under the name `outputs`."""

    network: nn.Module
    device: torch.device

    def load(self, source: Source) -> None:
        """The network, and what one sample becomes."""
        self.network, self.device = source.network(), source.device
        self.inputs = (input_spec(source.manifest),)
        shape = tuple(self.try_one(source.manifest).shape[1:])
        self.outputs = (TensorSpec("outputs", "FP32", (-1, *shape)),)

    def decode(self, inputs: Tensors) -> Tensor:
        """The only tensor, on the device."""
        return torch.from_numpy(inputs[self.inputs[0].name]).to(self.device, non_blocking=True)

    def predict(self, decoded: Tensor) -> Tensor:
        """The network's outputs."""
        outputs: Tensor = self.network(decoded)
        return outputs

    def encode(self, predicted: Tensor) -> Tensors:
        """To FP32."""
        return {"outputs": predicted.float().cpu().numpy()}

    def try_one(self, manifest: Manifest) -> Tensor:
        """What the network gives for one sample of zeros. Raises ExportError."""
        dtype = np.int64 if manifest.input_dtype == "int64" else np.float32
        zeros = torch.from_numpy(np.zeros((1, *manifest.input_shape), dtype)).to(self.device)
        try:
            with torch.inference_mode():
                outputs = self.predict(zeros)
        except Exception as error:
            raise ExportError(
                f"model {manifest.model} cannot compute inputs of {list(zeros.shape)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != 1:
            raise ExportError(f"model {manifest.model} does not give one output for one input")
        if not bool(outputs.isfinite().all()):
            raise ExportError(
                f"{manifest.weights.file} has values with which no prediction can be computed"
            )
        return outputs


def input_spec(manifest: Manifest) -> TensorSpec:
    """The model's input as its manifest tells it."""
    signature = manifest.signature
    return TensorSpec(signature.name, signature.datatype, signature.shape)
