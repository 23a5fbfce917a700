"""Artifacts of an export, each of which is compared with the model, evaluated and timed."""

import copy
import math
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training import evaluation
from training.config import TrainingConfig
from training.data.loader import scale
from training.data.samples import Samples, spread
from training.export.compression import exported, pruned, quantized, share_of_zeros, write_program
from workload.configuration import ConfigurationError
from workload.export import fill, read_model, tensors_of
from workload.files import describe, write_atomically
from workload.manifest import Artifact, ExportError, Weights
from workload.progress import Message
from workload.report import emit

TIMING_RUNS: Final = (3, 30)
"""Minimum and maximum number of timed runs."""

TIMING_SECONDS: Final = 3.0
"""Seconds after which no more timed runs start, if the minimum number has been reached."""


def time_both(one: nn.Module, other: nn.Module, inputs: Tensor) -> tuple[float, float]:
    """Return the median time (s) of each model.

    Runs alternate, so system load affects both models equally.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    with torch.no_grad():
        for model in (one, other):
            model(inputs)
        while len(seconds[0]) < TIMING_RUNS[0] or (
            len(seconds[0]) < TIMING_RUNS[1] and time.perf_counter() - begin < TIMING_SECONDS
        ):
            for model, durations in zip((one, other), seconds, strict=True):
                started = time.perf_counter()
                model(inputs)
                durations.append(time.perf_counter() - started)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


MAX_EVALUATED: Final = 2048
"""Maximum number of held-out samples per evaluation, evenly spaced over the set."""

MAX_BATCH_SAMPLES: Final = 32
"""Maximum number of samples in a batch that is evaluated, compared or timed."""


def batch_size(samples: Samples) -> int:
    """Return the number of samples in a batch: fewer for long texts, whose logits are large."""
    _, target = samples.batch(spread(len(samples), 1))
    return evaluation.batch_size(target.size, MAX_BATCH_SAMPLES)


def spread_samples(samples: Samples, count: int) -> tuple[Tensor, Tensor]:
    """Return up to `count` evenly spaced samples: inputs as models expect them, and targets."""
    inputs, targets = map(torch.from_numpy, samples.batch(spread(len(samples), count)))
    return scale(inputs, samples.divisor), targets


@torch.no_grad()
def evaluate_on_cpu(
    model: nn.Module, samples: Samples, heartbeat: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Return accuracy (0 to 1) and mean cross entropy (per image or token) on held-out samples.

    `heartbeat` is called before each batch.
    """
    inputs, targets = spread_samples(samples, MAX_EVALUATED)
    loss, correct, size = 0.0, 0.0, batch_size(samples)
    for part, expected in zip(torch.split(inputs, size), torch.split(targets, size), strict=True):
        heartbeat()
        logits = model(part).flatten(0, -2)
        loss += float(cross_entropy(logits, expected.flatten(), reduction="sum"))
        correct += float((logits.argmax(1) == expected.flatten()).sum())
    return {"accuracy": correct / targets.numel(), "loss": loss / targets.numel()}


TOLERANCE: Final = 1e-3
"""Maximum difference between outputs that should be equal, divided by max(1, largest absolute
output)."""


@torch.no_grad()
def largest_difference(model: nn.Module, artifact: nn.Module, inputs: Tensor, exact: bool) -> float:
    """Return the largest difference between the outputs of a model and those of its artifact.

    Outputs are compared for the whole batch, and for its first sample alone. Raise ExportError if
    outputs are not finite or, with `exact`, differ by more than the tolerance.
    """
    largest = 0.0
    for part in (inputs, inputs[:1]):
        expected, outputs = model(part), artifact(part)
        difference = float((outputs - expected).abs().max())
        if not math.isfinite(difference):
            raise ExportError("its outputs are not finite")
        limit = TOLERANCE * max(1.0, float(expected.abs().max()))
        if exact and difference > limit:
            raise ExportError(
                f"its outputs differ by {difference:.2g} from the model's, which is more than "
                f"{limit:.2g}: is the model deterministic in evaluation mode?"
            )
        largest = max(largest, difference)
    return largest


def write_weights(path: Path, model: nn.Module) -> None:
    """Write a model's tensors to a safetensors file. Raise OSError on failure."""
    # Copy the tensors, because a file cannot contain overlapping ones.
    tensors = {
        name: tensor.cpu().contiguous().clone() for name, tensor in tensors_of(model).items()
    }
    write_atomically(path, save(tensors))


ARTIFACT_FILES: Final = {
    "pt2": "model.pt2",
    "pruned": "model-pruned.safetensors",
    "int8": "model-int8.pt2",
}
"""Maps the kind of an artifact to its file name."""


@dataclass(frozen=True)
class Source:
    """Source of all artifacts: the model, its weights file and samples.

    `model` is on the CPU and in evaluation mode. `samples` are training inputs on the CPU; static
    quantization is calibrated on all of them.
    """

    directory: Path
    model: nn.Module
    weights: Weights
    samples: Tensor
    held_out: Samples


def requested_artifacts(config: TrainingConfig) -> dict[str, tuple[str, str]]:
    """Map each setting that requests an artifact to the kind and the method of the artifact."""
    artifacts: dict[str, tuple[str, str]] = {
        f"export_formats {kind}": (kind, "") for kind in config.export_formats
    }
    if config.prune:
        artifacts[f"prune {config.prune:g}"] = ("pruned", "l1-unstructured")
    if config.quantize != "none":
        artifacts[f"quantize {config.quantize}"] = ("int8", config.quantize)
    return artifacts


def make_artifacts(
    source: Source, config: TrainingConfig, heartbeat: Callable[[], object]
) -> tuple[tuple[Artifact, ...], tuple[str, ...]]:
    """Write the configured artifacts, calling `heartbeat` regularly.

    An artifact that cannot be exported is skipped with a warning. Return the artifacts, and the
    settings of the skipped ones. Raise OSError if a file cannot be written or read back.
    """
    model_metrics: dict[str, float] = {}
    artifacts, skipped = [], []
    for setting, (kind, method) in requested_artifacts(config).items():
        heartbeat()
        path = source.directory / ARTIFACT_FILES[kind]
        try:
            model_metrics = model_metrics or evaluate_on_cpu(
                source.model, source.held_out, heartbeat
            )
            _write(source, config, kind, path)
            heartbeat()
            artifact = _check(source, kind, method, path, model_metrics, heartbeat)
            artifacts.append(artifact.model_copy(update={"setting": setting}))
        except Exception as error:
            # The disk may have space after a restart. PyTorch's OSErrors about sources or libraries
            # have no errno.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            path.unlink(missing_ok=True)
            skipped.append(setting)
            message = f"{setting}: {path.name} could not be exported: {_one_line(error)}"
            emit(Message(event="warning", message=message))
    heartbeat()
    return tuple(artifacts), tuple(skipped)


def _write(source: Source, config: TrainingConfig, kind: str, path: Path) -> None:
    match kind, config.quantize:
        case "pruned", _:
            write_weights(path, pruned(source.model, config.prune))
        case "int8", "static" | "dynamic" | "weight-only" as method:
            write_program(path, quantized(source.model, method, source.samples))
        case _:
            write_program(path, exported(source.model, source.samples))


def _check(
    source: Source,
    kind: str,
    method: str,
    path: Path,
    model_metrics: dict[str, float],
    heartbeat: Callable[[], object],
) -> Artifact:
    """Read an artifact back, compare it with the model, evaluate it and time it."""
    is_pruned = kind == "pruned"
    model = fill(copy.deepcopy(source.model), path) if is_pruned else read_model(path, kind, method)
    inputs = source.samples[: batch_size(source.held_out)]
    # Pruned and int8 artifacts need not compute the same outputs as the model.
    difference = largest_difference(source.model, model, inputs, exact=kind == "pt2")
    heartbeat()
    metrics = evaluate_on_cpu(model, source.held_out, heartbeat)
    if not all(map(math.isfinite, metrics.values())):
        raise ExportError(f"its evaluation returned {metrics}")
    heartbeat()
    eager, seconds = time_both(source.model, model, inputs)
    weights = source.directory / source.weights.file
    return Artifact(
        kind=kind,
        method=method,
        file=path.name,
        **describe(path),
        metrics=metrics,
        metrics_before=model_metrics,
        relative_size=path.stat().st_size / source.weights.size,
        relative_speed=eager / seconds,
        seconds=seconds,
        batch=len(inputs),
        threads=torch.get_num_threads(),
        largest_difference=difference,
        zeros=share_of_zeros(model) if is_pruned else None,
        compressed_size=_compressed_size(path) / _compressed_size(weights) if is_pruned else None,
    )


def _compressed_size(path: Path) -> int:
    return len(zlib.compress(path.read_bytes(), level=1))


def _one_line(error: Exception) -> str:
    """Return the error on one line, with its type if it comes from a library."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    if isinstance(error, ExportError | ConfigurationError):
        return " ".join(lines)
    return f"{type(error).__name__}: {lines[0][:500]}"
