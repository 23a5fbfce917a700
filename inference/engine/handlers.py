"""Request handlers, which run in the worker process: the base class and the built-in handlers."""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from inference.engine.interface import NUMPY, InputError, Tensors, TensorSpec
from workload.manifest import ExportError, Manifest

AUTO: Final = "auto"


@dataclass(frozen=True)
class Source:
    """The export that a handler loads.

    `network` verifies the digest and returns the network, loaded with the configured backend on
    `device` and in evaluation mode. It raises ExportError on failure.
    """

    folder: Path
    manifest: Manifest
    device: torch.device
    network: Callable[[], nn.Module]


class Handler(ABC):
    """Base class of handlers, which load a model and compute the outputs of batches.

    `decode`, `predict` and `encode` process whole batches: each row of the inputs is a sample, and
    the outputs must contain one row per sample in the same order. If one of these methods raises an
    exception, the requests of the batch are computed again one by one. If a request fails again,
    the client gets 400: the model passed its test when it was loaded, so the inputs must be
    invalid. The message of an InputError is returned to the client. Other exceptions produce a
    generic message, and their traceback is logged. If memory is exhausted, the client gets 503, and
    no traceback is logged.
    """

    inputs: tuple[TensorSpec, ...]
    """Inputs of the handler, set by `load`. The server rejects requests that do not match."""

    outputs: tuple[TensorSpec, ...]
    """Outputs of the handler, set by `load`."""

    @abstractmethod
    def load(self, source: Source) -> None:
        """Load the model and set `inputs` and `outputs`. Raise ExportError on failure."""

    def decode(self, inputs: Tensors) -> Any:
        """Convert arrays, which must not be modified, to the argument of `predict`."""
        return inputs

    @abstractmethod
    def predict(self, decoded: Any) -> Any:
        """Compute the batch. `compute` calls this method in torch.inference_mode."""

    def encode(self, predicted: Any) -> Tensors:
        """Convert the result of `predict` to one array per output, batch dimension first."""
        encoded: Tensors = predicted
        return encoded

    def examples(self, largest: int) -> Iterator[Tensors]:
        """Yield inputs used to test and warm up the model before it is ready.

        By default, the inputs are zeros: one sample, then `largest` samples. Dynamic dimensions
        have size 1.
        """
        for samples in sorted({1, largest}):
            yield {spec.name: _zeros(spec, samples) for spec in self.inputs}

    def compute(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Decode, predict and encode a batch."""
        with torch.inference_mode():
            return dict(self.encode(self.predict(self.decode(inputs))))


class Plain(Handler):
    """Handler that returns the network's output as FP32 under the name `outputs`."""

    network: nn.Module
    device: torch.device

    def load(self, source: Source) -> None:
        """Load the network and determine the shape of its output."""
        self.inputs = (input_spec(source.manifest),)
        shape = self.load_network(source)[1:]
        self.outputs = (TensorSpec("outputs", "FP32", (-1, *shape)),)

    def load_network(self, source: Source) -> tuple[int, ...]:
        """Load the network and return the shape of its output for one sample of zeros.

        Raise ExportError if the network fails, or does not return one finite output.
        """
        manifest = source.manifest
        self.network, self.device = source.network(), source.device
        dtype = torch.int64 if manifest.input_dtype == "int64" else torch.float32
        zeros = torch.zeros((1, *manifest.input_shape), dtype=dtype, device=self.device)
        try:
            with torch.inference_mode():
                outputs = self.predict(zeros)
        except Exception as error:
            raise ExportError(
                f"model {manifest.model} cannot process inputs of shape {list(zeros.shape)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != 1:
            raise ExportError(f"model {manifest.model} does not return one output for one input")
        if not bool(outputs.isfinite().all()):
            raise ExportError(
                f"model {manifest.model} returns NaN or infinity for an input of zeros: its "
                "weights may contain NaN or infinity"
            )
        return tuple(outputs.shape)

    def decode(self, inputs: Tensors) -> Tensor:
        """Move the only input to the device."""
        return torch.from_numpy(inputs[self.inputs[0].name]).to(self.device, non_blocking=True)

    def predict(self, decoded: Tensor) -> Tensor:
        """Return the network's output."""
        outputs: Tensor = self.network(decoded)
        return outputs

    def encode(self, predicted: Tensor) -> Tensors:
        """Convert the output to FP32."""
        return {self.outputs[0].name: predicted.float().cpu().numpy()}


class Classifier(Plain):
    """Handler that returns `probabilities` (N x classes), `class` (N) and `label` (N)."""

    def load(self, source: Source) -> None:
        """Load the network, which must return one logit per class of the manifest."""
        manifest = source.manifest
        if not manifest.classes:
            raise ExportError(f"model {manifest.model} has no classes: configure another handler")
        self.inputs = (input_spec(manifest),)
        shape = self.load_network(source)
        if shape != (1, manifest.outputs):
            raise ExportError(
                f"model {manifest.model} returns {list(shape)} for one input, but its manifest has "
                f"{manifest.outputs} classes"
            )
        self._labels = np.array([label.encode() for label in manifest.classes], np.object_)
        self.outputs = (
            TensorSpec("probabilities", "FP32", (-1, manifest.outputs)),
            TensorSpec("class", "INT64", (-1,)),
            TensorSpec("label", "BYTES", (-1,)),
        )

    def predict(self, decoded: Tensor) -> Tensor:
        """Return probabilities: the softmax of the logits, N x classes."""
        logits: Tensor = self.network(decoded)
        return logits.float().softmax(1)

    def encode(self, predicted: Tensor) -> Tensors:
        """Return the probabilities, the most probable class (the first on a tie) and its label."""
        probabilities = predicted.cpu().numpy()
        best = probabilities.argmax(1)
        return {"probabilities": probabilities, "class": best, "label": self._labels[best]}


class LanguageModel(Plain):
    """Handler that maps `tokens` (N x T) to `logits` (N x T x vocabulary).

    T is at most the context size. The network must be causal: later tokens do not affect the logits
    of earlier ones. Therefore, shorter sequences can be padded to the context size if the backend
    supports only this length.
    """

    def load(self, source: Source) -> None:
        """Load the network and determine whether it accepts sequences of any length."""
        manifest = source.manifest
        if manifest.input_dtype != "int64" or len(manifest.input_shape) != 1:
            raise ExportError(
                f"model {manifest.model} does not accept tokens: configure another handler"
            )
        (self._context,) = manifest.input_shape
        self._any_length = True
        shape = self.load_network(source)
        if shape != (1, self._context, manifest.outputs):
            raise ExportError(
                f"model {manifest.model} returns {list(shape)} for one sequence of {self._context} "
                f"tokens, but its manifest has a vocabulary of {manifest.outputs} tokens"
            )
        self.inputs = (TensorSpec("tokens", "INT64", (-1, -1)),)
        self.outputs = (TensorSpec("logits", "FP32", (-1, -1, manifest.outputs)),)
        # Exported programs may accept only sequences of the context size.
        try:
            with torch.inference_mode():
                self.predict(torch.zeros((2, 1), dtype=torch.int64, device=self.device))
        except Exception:
            self._any_length = False

    def decode(self, inputs: Tensors) -> Tensor:
        """Convert tokens; reject sequences that are empty or too long, and unknown tokens."""
        tokens = inputs["tokens"]
        if not 0 < tokens.shape[1] <= self._context:
            raise InputError(
                f"tokens contains {tokens.shape[1]} tokens per sample: it must contain from 1 to "
                f"{self._context}"
            )
        vocabulary = self.outputs[0].shape[-1]
        wrong = tokens[(tokens < 0) | (tokens >= vocabulary)]
        if wrong.size:
            raise InputError(
                f"tokens contains {int(wrong[0])}: token IDs are from 0 to {vocabulary - 1}"
            )
        return torch.from_numpy(tokens).to(self.device)

    def predict(self, decoded: Tensor) -> Tensor:
        """Return the next-token logits at each position."""
        length = decoded.shape[1]
        if not self._any_length:
            decoded = functional.pad(decoded, (0, self._context - length))
        logits: Tensor = self.network(decoded)
        return logits[:, :length]


def choose_handler(name: str, manifest: Manifest) -> Handler:
    """Return the `package.module:Class` handler or, for `auto`, a built-in handler.

    The export determines which built-in handler is used. Raise ExportError if the handler cannot be
    created.
    """
    if name == AUTO:
        if manifest.classes:
            return Classifier()
        return LanguageModel() if manifest.input_dtype == "int64" else Plain()
    try:
        handler = pkgutil.resolve_name(name)()
    except (Exception, SystemExit) as error:  # A script may exit when it is imported.
        raise ExportError(
            f"handler {name} cannot be created: {type(error).__name__}: {error}; it must be a "
            "class without constructor arguments, in a directory on PYTHONPATH"
        ) from error
    if not isinstance(handler, Handler):
        raise ExportError(
            f"handler {name} is a {type(handler).__name__}: it must be an "
            "inference.engine.handlers.Handler"
        )
    return handler


def input_spec(manifest: Manifest) -> TensorSpec:
    """Return the model's input as its manifest describes it."""
    signature = manifest.signature
    return TensorSpec(signature.name, signature.datatype, signature.shape)


def _zeros(spec: TensorSpec, samples: int) -> NDArray[Any]:
    shape = (samples, *(1 if size == -1 else size for size in spec.shape[1:]))
    return np.full(shape, b"" if spec.datatype == "BYTES" else 0, NUMPY[spec.datatype])
