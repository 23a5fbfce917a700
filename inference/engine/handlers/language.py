"""Language models: logits for given tokens."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from inference.engine.handler import Source
from inference.engine.handlers.plain import Plain
from inference.engine.interface import InputError, Tensors, TensorSpec
from workload.manifest import ExportError


class LanguageModel(Plain):
    """Takes `tokens` N x T, gives `logits` N x T x vocabulary, T up to the context.

    The network must be causal: what is behind a place does not change its logits. So shorter
    texts are filled up to the context where a backend knows no other length.
    """

    def load(self, source: Source) -> None:
        """The network, and whether it takes texts of any length."""
        manifest = source.manifest
        if manifest.input_dtype != "int64" or len(manifest.input_shape) != 1:
            raise ExportError(f"model {manifest.model} takes no tokens: write another handler")
        self.network, self.device = source.network(), source.device
        (self._context,) = manifest.input_shape
        self._vocabulary = manifest.outputs
        self.inputs = (TensorSpec("tokens", "INT64", (-1, -1)),)
        self.outputs = (TensorSpec("logits", "FP32", (-1, -1, manifest.outputs)),)
        self._any_length = True
        given = list(self.try_one(manifest).shape)
        if given != [1, self._context, manifest.outputs]:
            raise ExportError(
                f"model {manifest.model} gives {given} for one text of {self._context} tokens, "
                f"but its manifest has {manifest.outputs} tokens"
            )
        self._any_length = self._takes_any_length()

    def decode(self, inputs: Tensors) -> Tensor:
        """Refuses texts that are empty or too long, and tokens that are not in the vocabulary."""
        tokens = inputs["tokens"]
        if not 0 < tokens.shape[1] <= self._context:
            raise InputError(
                f"tokens has {tokens.shape[1]} of them: it must be from 1 to {self._context}"
            )
        wrong = tokens[(tokens < 0) | (tokens >= self._vocabulary)]
        if wrong.size:
            raise InputError(
                f"tokens has {int(wrong[0])}: tokens go from 0 to {self._vocabulary - 1}"
            )
        return torch.from_numpy(tokens).to(self.device)

    def predict(self, decoded: Tensor) -> Tensor:
        """Logits of the token after each one."""
        length = decoded.shape[1]
        if not self._any_length:
            decoded = functional.pad(decoded, (0, self._context - length))
        logits: Tensor = self.network(decoded)
        return logits[:, :length]

    def encode(self, predicted: Tensor) -> Tensors:
        """To FP32."""
        return {"logits": predicted.float().cpu().numpy()}

    def _takes_any_length(self) -> bool:
        """Programs that were exported may be fixed to the context."""
        try:
            with torch.inference_mode():
                self.predict(torch.from_numpy(np.zeros((2, 1), np.int64)).to(self.device))
        except Exception:
            return False
        return True
