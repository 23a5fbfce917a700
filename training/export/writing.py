"""The finished model on the disk: weights, other forms of them, and the manifest last of all."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from training.config import TrainingConfig
from training.data import Dataset
from training.export.artifacts import Evaluate, Source, make_artifacts
from training.export.judging import judge_on, spread
from training.export.quantization import check_installed
from training.export.version import code_version
from training.export.weights import write_weights
from workload.files import sha256_of
from workload.manifest import (
    MANIFEST_FILE,
    WEIGHTS_FILE,
    Artifact,
    ExportError,
    InputType,
    Manifest,
    Weights,
    checked_file,
    read_manifest,
    write_manifest,
)

CALIBRATION: Final = 256
"""Training samples that quantization observes, evenly spread over all of them."""


def check_export(config: TrainingConfig) -> None:
    """Find out before the training what would be missing after it. Raises ConfigurationError."""
    if config.quantize != "none":
        check_installed(config.quantize)


def write_export(
    folder: Path,
    model: nn.Module,
    config: TrainingConfig,
    data: Dataset,
    metrics: dict[str, float],
    *,
    evaluate: Evaluate | None = None,
    calibration: Tensor | None = None,
    beat: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write a trained model so that a server can load and check it.

    `model` is the whole one, neither sharded nor wrapped, on any device; it is left as it is.
    `evaluate` judges it and its other forms, which are computed on the CPU, by default on up to
    2,048 held-out samples. `calibration` are inputs as in training, by default 256 of
    `data.train`. `beat` is called every now and then. Raises OSError when weights or manifest
    cannot be written; a form that cannot be made is told as a warning and left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    path = folder / WEIGHTS_FILE
    write_weights(path, model)
    weights = Weights(size=path.stat().st_size, sha256=sha256_of(path))
    beat()
    artifacts: tuple[Artifact, ...] = ()
    if config.export_formats or config.prune or config.quantize != "none":
        judged = evaluate or judge_on(data.held_out)
        seen = spread(data.train, CALIBRATION)[0] if calibration is None else calibration.cpu()
        complete = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        source = Source(folder, complete, weights, seen, judged)
        artifacts = make_artifacts(source, config, beat)
    manifest = Manifest(
        model=config.model,
        options=config.model_options,
        input_shape=data.shape,
        input_dtype=_input_type(spread(data.train, 1)[0]),
        classes=data.classes,
        outputs=data.outputs,
        metrics=metrics,
        weights=weights,
        artifacts=artifacts,
        run=config.run_dir.name,
        settings=config.decisive(),
        torch_version=str(torch.__version__),
        code_version=code_version(),
    )
    write_manifest(folder, manifest)
    return manifest


def finished_export(folder: Path) -> Manifest | None:
    """Return the manifest of a complete and undamaged export, or None."""
    try:
        manifest = read_manifest(folder)
        for file in (manifest.weights, *manifest.artifacts):
            checked_file(folder, file)
    except ExportError:
        return None
    return manifest


def _input_type(samples: Tensor) -> InputType:
    return "float32" if samples.is_floating_point() else "int64"
