"""A trained model: checked against its manifest, then only ever asked for predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from training.manifest import ExportError, Manifest, checked_weights, read_manifest
from training.models import MODELS, ImageClassifier

LARGEST_BATCH: Final = 256
"""Samples computed at once; a larger request is computed in parts, so that memory is bounded."""


@dataclass(frozen=True)
class Model:
    """A network in evaluation mode and the manifest of the export that it came from."""

    manifest: Manifest
    network: ImageClassifier
    device: torch.device

    @torch.inference_mode()
    def predict(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Images N x input shape with pixels from 0 to 1; gives N x classes probabilities."""
        parts = [
            self.network(part.to(self.device)).softmax(1).cpu()
            for part in torch.split(torch.from_numpy(images), LARGEST_BATCH)
        ]
        probabilities: NDArray[np.float32] = torch.cat(parts).numpy()
        return probabilities


def load_model(folder: Path, device: torch.device) -> Model:
    """Load an export and try it once.

    Raises ExportError when it is not complete, not what its manifest says, or does not compute.
    """
    manifest = read_manifest(folder)
    weights = checked_weights(folder, manifest)
    try:
        tensors = load_file(weights)
    except (SafetensorError, OSError) as error:
        raise ExportError(f"{weights} is no readable safetensors file: {error}") from None
    network = _build(manifest)
    _check_tensors(weights, tensors, network.state_dict())
    network.load_state_dict(tensors)
    model = Model(manifest, network.to(device).eval(), device)
    probabilities = model.predict(np.zeros((1, *manifest.input_shape), np.float32))
    if not np.isfinite(probabilities).all():
        raise ExportError(f"{weights} has values with which no prediction can be computed")
    return model


def _build(manifest: Manifest) -> ImageClassifier:
    factory = MODELS.get(manifest.model)
    if factory is None:
        raise ExportError(
            f"the manifest names model {manifest.model!r}, but this server knows only "
            f"{', '.join(MODELS)}: serve it with the image that trained it"
        )
    if manifest.input_shape != factory.input_shape:
        raise ExportError(
            f"the manifest gives input shape {list(manifest.input_shape)}, but {manifest.model} "
            f"takes {list(factory.input_shape)}"
        )
    return factory(len(manifest.classes))


def _check_tensors(path: Path, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if found.keys() != expected.keys():
        different = ", ".join(sorted(found.keys() ^ expected.keys()))
        raise ExportError(f"{path} lacks tensors of the model or has others: {different}")
    for name, tensor in expected.items():
        if (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype):
            raise ExportError(
                f"{path}: tensor {name} is {found[name].dtype} {list(found[name].shape)}, "
                f"the model has {tensor.dtype} {list(tensor.shape)}"
            )
