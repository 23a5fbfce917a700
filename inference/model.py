"""A trained model: checked against its manifest, then only ever asked for predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from training.export import load_network
from training.manifest import ExportError, Manifest, read_manifest

LARGEST_BATCH: Final = 256
"""Samples computed at once; a larger request is computed in parts, so that memory is bounded."""


@dataclass(frozen=True)
class Model:
    """A network in evaluation mode and the manifest of the export that it came from."""

    manifest: Manifest
    network: nn.Module
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


def load_model(folder: Path, device: torch.device, own: str = "") -> Model:
    """Load an export of a classifier and try it once.

    `own` is the one `package.module:factory` beside the project's models that a manifest may name.
    Raises ExportError when the export is not complete, not what its manifest says, or does not
    compute.
    """
    manifest = read_manifest(folder)
    if not manifest.classes:
        raise ExportError(
            f"the export in {folder} is of a model of tokens ({manifest.model}): "
            "this server answers for classes of images"
        )
    network = load_network(folder, manifest, own)
    model = Model(manifest, network.to(device), device)
    probabilities = model.predict(np.zeros((1, *manifest.input_shape), np.float32))
    if probabilities.shape != (1, manifest.outputs):
        raise ExportError(
            f"model {manifest.model} gives {list(probabilities.shape)} for one input, but its "
            f"manifest has {manifest.outputs} classes"
        )
    if not np.isfinite(probabilities).all():
        raise ExportError(
            f"{folder / manifest.weights.file} has values with which no prediction can be computed"
        )
    return model
