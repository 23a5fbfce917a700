"""The finished model: weights as safetensors, then the manifest that makes the export complete."""

from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from training.config import TrainingConfig
from training.data import Dataset
from training.files import sha256_of, write_atomically
from training.manifest import (
    MANIFEST_FILE,
    WEIGHTS_FILE,
    ExportError,
    Manifest,
    Weights,
    checked_weights,
    read_manifest,
    write_manifest,
)


def write_export(
    folder: Path,
    model: nn.Module,
    config: TrainingConfig,
    data: Dataset,
    metrics: dict[str, float],
) -> Manifest:
    """Write a trained model so that a server can load and check it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    weights = folder / WEIGHTS_FILE
    tensors = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_atomically(weights, lambda stream: stream.write(save(tensors)))
    manifest = Manifest(
        model=config.model,
        input_shape=data.shape,
        classes=data.classes,
        metrics=metrics,
        weights=Weights(size=weights.stat().st_size, sha256=sha256_of(weights)),
        run=config.run_dir.name,
        settings=config.decisive(),
        torch_version=str(torch.__version__),
    )
    write_manifest(folder, manifest)
    return manifest


def finished_export(folder: Path) -> Manifest | None:
    """The manifest of a complete and undamaged export, or None."""
    try:
        manifest = read_manifest(folder)
        checked_weights(folder, manifest)
    except ExportError:
        return None
    return manifest
