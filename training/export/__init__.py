"""Export of the finished model, for a server to load."""

import copy
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import nn

from training.config import TrainingConfig, metric_name
from training.data import Dataset
from training.export.artifacts import (
    Source,
    make_artifacts,
    requested_artifacts,
    spread_samples,
    write_weights,
)
from training.export.huggingface import HUGGINGFACE_DIRECTORY, write_huggingface
from workload.files import describe
from workload.manifest import (
    WEIGHTS_FILE,
    Artifact,
    ExportError,
    Manifest,
    UnavailableExportError,
    Weights,
    checked_file,
    read_manifest,
    write_manifest,
)
from workload.models.gpt import Gpt
from workload.progress import Message
from workload.report import emit


def code_version() -> str:
    """Return $CODE_VERSION or, if it is not set, `sources-` followed by a hash of the sources."""
    return os.environ.get("CODE_VERSION") or f"sources-{_sources_digest(Path(__file__).parents[2])}"


def _sources_digest(root: Path) -> str:
    complete = hashlib.sha256()
    paths = (path for name in ("training", "workload") for path in (root / name).rglob("*.py"))
    for path in sorted(paths):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        complete.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return complete.hexdigest()[:12]


CALIBRATION_SAMPLES: Final = 256
"""Number of evenly spaced training samples that quantization observes."""


def write_export(
    directory: Path,
    model: nn.Module,
    config: TrainingConfig,
    data: Dataset,
    metrics: dict[str, float],
    *,
    beat: Callable[[], object] = lambda: None,
) -> Manifest:
    """Write a trained model to an empty directory so that a server can load and verify it.

    `model` must be unsharded and unwrapped. It may be on any device and is not modified. `beat` is
    called regularly. If an artifact or the Hugging Face directory cannot be exported, it is skipped
    with a warning. Raise OSError if a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / WEIGHTS_FILE
    write_weights(path, model)
    weights = Weights(**describe(path))
    beat()
    if isinstance(model, Gpt):
        try:
            write_huggingface(directory / HUGGINGFACE_DIRECTORY, model, config)
        except ExportError as error:
            # The export is complete even without this directory.
            shutil.rmtree(directory / HUGGINGFACE_DIRECTORY, ignore_errors=True)
            message = f"{HUGGINGFACE_DIRECTORY} could not be exported: {error}"
            emit(Message(event="warning", message=message))
        beat()
    artifacts: tuple[Artifact, ...] = ()
    skipped: tuple[str, ...] = ()
    if config.export_formats or config.prune or config.quantize != "none":
        inputs, _ = spread_samples(data.train, CALIBRATION_SAMPLES)
        frozen = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        source = Source(directory, frozen, weights, inputs, data.held_out)
        artifacts, skipped = make_artifacts(source, config, beat)
    example, _ = spread_samples(data.train, 1)
    manifest = Manifest(
        model=config.model,
        options=config.model_options,
        input_shape=data.shape,
        input_dtype="float32" if example.is_floating_point() else "int64",
        classes=data.classes,
        outputs=data.outputs,
        metrics=metrics,
        weights=weights,
        artifacts=artifacts,
        skipped=skipped,
        run=config.run_dir.name,
        settings=config.result_settings(),
        data_sha256=data.identity,
        torch_version=str(torch.__version__),
        code_version=code_version(),
    )
    write_manifest(directory, manifest)
    return manifest


def missing_results(config: TrainingConfig, manifest: Manifest) -> list[str]:
    """Return the settings whose artifacts or metrics an export lacks.

    Artifacts that could not be exported do not count as missing.
    """
    written = {(each.kind, each.method, each.setting) for each in manifest.artifacts}
    artifacts = [
        setting
        for setting, artifact in requested_artifacts(config).items()
        if not written & {(*artifact, setting), (*artifact, "")} and setting not in manifest.skipped
    ]
    metrics = [
        f"metrics {each}" for each in config.metrics if metric_name(each) not in manifest.metrics
    ]
    return artifacts + metrics


def finished_export(directory: Path) -> Manifest | None:
    """Return the manifest of a complete and undamaged export, or None.

    Raise UnavailableExportError if the export cannot be read at the moment.
    """
    try:
        manifest = read_manifest(directory)
        for file in (manifest.weights, *manifest.artifacts):
            checked_file(directory, file)
    except UnavailableExportError:
        raise
    except ExportError:
        return None
    return manifest
