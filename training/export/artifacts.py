"""Other forms of a trained model, each written, read again, compared, judged and timed."""

import copy
import functools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from training.config import TrainingConfig
from training.export.programs import exported, write_program
from training.export.pruning import pruned, share_of_zeros
from training.export.quantization import quantized
from training.export.timing import compare
from training.export.weights import write_weights
from workload.configuration import ConfigurationError
from workload.export import fill, read_form
from workload.files import sha256_of
from workload.manifest import Artifact, ExportError, Weights
from workload.progress import Message
from workload.report import emit

Evaluate = Callable[[nn.Module], dict[str, float]]
"""Judges a model that is on the CPU: accuracy, loss or the like. It must leave the model there."""

FILES: Final = {
    "pt2": "model.pt2",
    "pruned": "model-pruned.safetensors",
    "int8": "model-int8.pt2",
}
"""Of each kind."""

BATCH: Final = 32
"""Samples that are compared and timed at once."""

CLOSE: Final = 1e-3
"""How much an output of the same computation may differ, beside the largest of the outputs."""


@dataclass(frozen=True)
class Source:
    """What forms are made of: the model on the CPU in evaluation mode, its file, some inputs.

    `samples` are inputs as in training on the CPU: static quantization observes all of them.
    """

    folder: Path
    model: nn.Module
    weights: Weights
    samples: Tensor
    evaluate: Evaluate


@dataclass(frozen=True)
class Form:
    """How one form is written and read; `setting` asked for it, `exact` ones compute the same."""

    kind: str
    setting: str
    write: Callable[[Path], None]
    read: Callable[[Path], nn.Module]
    method: str = ""
    exact: bool = False


def make_artifacts(
    source: Source, config: TrainingConfig, beat: Callable[[], None]
) -> tuple[Artifact, ...]:
    """Make the forms that the configuration asks for, and call `beat` between the parts of it.

    One that cannot be made is told as a warning that names its setting, and left out: the weights
    are worth more.
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
            message = f"{form.setting}: no {path.name} is exported: {_plain(error)}"
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
    difference = _difference(source.model, model, inputs, form.exact)
    beat()
    metrics = source.evaluate(model)
    if not all(map(math.isfinite, metrics.values())):
        raise ExportError(f"it was judged with {metrics}")
    beat()
    eager, seconds = compare(source.model, model, inputs)
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


@torch.no_grad()
def _difference(model: nn.Module, form: nn.Module, inputs: Tensor, exact: bool) -> float:
    """The largest of any output, for the batch and for its first sample alone.

    Raises ExportError when outputs are not numbers, or not the same where they should be.
    """
    largest = 0.0
    for part in (inputs, inputs[:1]):
        expected, outputs = model(part), form(part)
        difference = float((outputs - expected).abs().max())
        if not math.isfinite(difference):
            raise ExportError("its outputs are not numbers")
        limit = CLOSE * max(1.0, float(expected.abs().max()))
        if exact and difference > limit:
            raise ExportError(
                f"its outputs differ by {difference:.2g} from the model's, which is more than "
                f"{limit:.2g}: does the model compute the same in evaluation mode each time?"
            )
        largest = max(largest, difference)
    return largest


def _compressed(path: Path) -> int:
    return len(zlib.compress(path.read_bytes(), level=1))


def _plain(error: Exception) -> str:
    """One line, with the kind of the error where its author was a library."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    if isinstance(error, ExportError | ConfigurationError):
        return " ".join(lines)
    return f"{type(error).__name__}: {lines[0][:500]}"
