"""Other forms of a trained model: written, read back, compared, evaluated and timed."""

import copy
import functools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from training.config import TrainingConfig
from training.export.compression import exported, pruned, quantized, share_of_zeros, write_program
from training.export.measurement import largest_difference, time_both
from workload.configuration import ConfigurationError
from workload.export import fill, read_form, tensors_of
from workload.files import sha256_of, write_atomically
from workload.manifest import Artifact, ExportError, Weights
from workload.progress import Message
from workload.report import emit


def write_weights(path: Path, model: nn.Module) -> None:
    """Write a model's tensors to a safetensors file. Raises OSError."""
    # Copies, since a file cannot contain overlapping tensors.
    tensors = {
        name: tensor.cpu().contiguous().clone() for name, tensor in tensors_of(model).items()
    }
    write_atomically(path, save(tensors))


Evaluate = Callable[[nn.Module], dict[str, float]]
"""Returns metrics of a model, such as its accuracy; evaluates it on the CPU and leaves it there."""

FILES: Final = {
    "pt2": "model.pt2",
    "pruned": "model-pruned.safetensors",
    "int8": "model-int8.pt2",
}
"""File name of each kind."""

BATCH: Final = 32
"""Number of samples in the batch that is compared and timed."""


@dataclass(frozen=True)
class Source:
    """Input of all forms: the model on the CPU in evaluation mode, its file, and some samples.

    `samples` are inputs as in training on the CPU; static quantization observes all of them.
    """

    folder: Path
    model: nn.Module
    weights: Weights
    samples: Tensor
    evaluate: Evaluate


@dataclass(frozen=True)
class Form:
    """A form of the model: how to write and read it, and the `setting` that requests it.

    An `exact` form computes the same outputs as the model.
    """

    kind: str
    setting: str
    write: Callable[[Path], None]
    read: Callable[[Path], nn.Module]
    method: str = ""
    exact: bool = False


def make_artifacts(
    source: Source, config: TrainingConfig, beat: Callable[[], None]
) -> tuple[Artifact, ...]:
    """Write the configured forms, calling `beat` regularly.

    A form that fails is skipped with a warning that names its setting, because the weights are
    more important.
    """
    for file in FILES.values():
        (source.folder / file).unlink(missing_ok=True)
    before: dict[str, float] = {}
    artifacts = []
    for form in _forms(source, config):
        beat()
        path = source.folder / FILES[form.kind]
        try:
            before = before or source.evaluate(source.model)
            artifacts.append(_make(source, form, path, before, beat))
        except Exception as error:
            path.unlink(missing_ok=True)
            message = f"{form.setting}: {path.name} is not exported: {_one_line(error)}"
            emit(Message(event="warning", message=message))
    beat()
    return tuple(artifacts)


def _forms(source: Source, config: TrainingConfig) -> Iterator[Form]:
    model, samples = source.model, source.samples
    for kind in config.export_formats:
        yield Form(
            kind,
            f"export_formats {kind}",
            write=lambda path: write_program(path, exported(model, samples)),
            read=functools.partial(read_form, kind=kind),
            exact=True,
        )
    if config.prune:
        yield Form(
            "pruned",
            f"prune {config.prune:g}",
            write=lambda path: write_weights(path, pruned(model, config.prune)),
            read=lambda path: fill(copy.deepcopy(model), path),
            method="l1-unstructured",
        )
    if (method := config.quantize) != "none":
        yield Form(
            "int8",
            f"quantize {method}",
            write=lambda path: write_program(path, quantized(model, method, samples)),
            read=functools.partial(read_form, kind="int8", method=method),
            method=method,
        )


def _make(
    source: Source, form: Form, path: Path, before: dict[str, float], beat: Callable[[], None]
) -> Artifact:
    form.write(path)
    beat()
    model = form.read(path)
    inputs = source.samples[:BATCH]
    difference = largest_difference(source.model, model, inputs, form.exact)
    beat()
    metrics = source.evaluate(model)
    if not all(map(math.isfinite, metrics.values())):
        raise ExportError(f"its evaluation returned {metrics}")
    beat()
    eager, seconds = time_both(source.model, model, inputs)
    weights = source.folder / source.weights.file
    is_pruned = form.kind == "pruned"
    return Artifact(
        kind=form.kind,
        method=form.method,
        file=path.name,
        size=path.stat().st_size,
        sha256=sha256_of(path),
        metrics=metrics,
        metrics_before=before,
        relative_size=path.stat().st_size / source.weights.size,
        relative_speed=eager / seconds,
        seconds=seconds,
        batch=len(inputs),
        threads=torch.get_num_threads(),
        largest_difference=difference,
        zeros=share_of_zeros(model) if is_pruned else None,
        compressed_size=_compressed(path) / _compressed(weights) if is_pruned else None,
    )


def _compressed(path: Path) -> int:
    return len(zlib.compress(path.read_bytes(), level=1))


def _one_line(error: Exception) -> str:
    """Return the error in one line, with its type if it comes from a library."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    if isinstance(error, ExportError | ConfigurationError):
        return " ".join(lines)
    return f"{type(error).__name__}: {lines[0][:500]}"
