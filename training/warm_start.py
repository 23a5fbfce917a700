"""Warm start of a run with the weights of an export or a Hugging Face directory."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    ValueType,
    set_model_state_dict,
)

from training.config import TrainingConfig
from training.export.huggingface import CONFIG_FILE, read_huggingface
from training.lora import Lora, load_adapter, merge
from training.optimizer import Average
from training.run import Run
from workload.catalog import equal_options
from workload.configuration import ConfigurationError
from workload.export import read_weights, tensors_of
from workload.files import exists
from workload.manifest import (
    MANIFEST_FILE,
    ExportError,
    UnavailableExportError,
    read_error,
    read_manifest,
)
from workload.models import build
from workload.models.gpt import Gpt
from workload.run import on_rank0

Report = dict[str, Any]
"""SHA-256 of the weights, number of loaded tensors, and names of missing and ignored tensors.

A report also contains the differences between the model of `init_from` and the run's model, and the
SHA-256 of the adapter, if any.
"""


def load_initial_weights(run: Run) -> Report:
    """Load the weights of `init_from` into all processes; return a report.

    Only rank 0 reads the files. Raise ConfigurationError if the weights do not exist, are damaged,
    do not have the required digest, or do not fit the model. Raise UnavailableExportError if they
    cannot be read at the moment.
    """
    weights: dict[str, ValueType] = {}

    def read() -> Report:
        report, fitting = _read(run)
        weights.update(fitting)
        return report

    report = on_rank0(read, run.saver.group)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(run.model.model, weights, options=options)
    if run.average is not None:
        run.average = Average(run.model, run.config.ema_decay)
    return report


def _read(run: Run) -> tuple[Report, dict[str, Tensor]]:
    """Return the report and the tensors that fit the model."""
    config = run.config
    # The run's model may be sharded. Build an unsharded one without changing the random state.
    with torch.random.fork_rng([]):
        model = build(config.model, config.model_options, run.data.outputs, run.data.shape)
    try:
        digest, found, problems = _read_source(run, model)
    except UnavailableExportError:
        raise
    except ExportError as error:
        raise ConfigurationError(
            f"init_from {config.init_from}: {error}; set it to the directory of a finished run "
            "or, for model gpt, to the Hugging Face directory of a Llama model"
        ) from None
    if config.init_sha256 not in ("", digest):
        raise ConfigurationError(
            f"the weights of init_from {config.init_from} have sha256 {digest}, not init_sha256 "
            f"{config.init_sha256}: set init_from to the run with the expected "
            "weights, or correct init_sha256"
        )
    expected = tensors_of(model)
    fitting = {
        name: tensor
        for name, tensor in found.items()
        if name in expected and tensor.shape == expected[name].shape
    }
    report: Report = {
        "sha256": digest,
        "loaded": len(fitting),
        "missing": sorted(expected.keys() - fitting.keys()),
        "ignored": sorted(found.keys() - fitting.keys()),
    }
    if report["missing"] and config.lora_rank:
        raise ConfigurationError(
            f"init_from {config.init_from} lacks {', '.join(report['missing'])}, which would "
            "keep random values because lora_rank freezes them: train the same model, or leave "
            "lora_rank out"
        )
    if problems:
        report["differences"] = [*problems]
    misfits = {
        "tensors of this model that are missing or have a different shape": report["missing"],
        "tensors that do not fit this model": report["ignored"],
    }
    problems += [f"{problem}: {', '.join(names)}" for problem, names in misfits.items() if names]
    if problems and (not config.init_partial or not fitting):
        partial = "set init_partial to load only the tensors that fit"
        remedy = partial if fitting else "correct init_from"
        raise ConfigurationError(
            f"init_from {config.init_from}: {'; '.join(problems)}; train the same model, "
            f"or {remedy}"
        )
    if config.init_adapter is not None:
        model.load_state_dict(fitting, strict=False)
        report["adapter"] = _apply_adapter(config, cast(Gpt, model))
        state = model.state_dict()
        fitting = {name: state[name] for name in state if name not in report["missing"]}
    return report, fitting


def _apply_adapter(config: TrainingConfig, model: Gpt) -> str:
    """Add the adapter to the model, and merge it unless the run trains it. Return its digest."""
    directory, source = Path(str(config.init_adapter)), Path(str(config.init_from)).resolve()
    export = directory.resolve().parent
    if exists(export / MANIFEST_FILE) and export in (source, source / "export", source.parent):
        raise ConfigurationError(
            f"init_adapter {directory} is already merged into the weights of init_from "
            f"{config.init_from}: set init_from to the base model that the adapter's "
            "adapter_config.json names, or leave init_adapter out"
        )
    try:
        digest, found = load_adapter(directory, model)
    except UnavailableExportError:
        raise
    except ExportError as error:
        raise ConfigurationError(
            f"init_adapter {directory}: {error}; set it to the PEFT directory of a LoRA adapter of "
            "this model"
        ) from None
    wanted = Lora.of(config)
    if wanted is None:
        merge(model)
    elif found != replace(wanted, dropout=0.0):
        raise ConfigurationError(
            f"init_adapter {directory} has rank {found.rank}, alpha {found.alpha:g} and targets "
            f"{','.join(sorted(found.targets))}: set lora_rank, lora_alpha and "
            "lora_targets to these values to train it, or leave lora_rank out to merge it"
        )
    return digest


def _read_source(run: Run, model: nn.Module) -> tuple[str, dict[str, Tensor], list[str]]:
    """Return the digest of the weights, the weights, and the differences from the run's model."""
    path = Path(str(run.config.init_from))
    try:
        is_export = exists(path / MANIFEST_FILE)
        is_llama = not is_export and exists(path / CONFIG_FILE)
    except OSError as error:
        raise read_error(f"it cannot be read: {error.strerror}", error) from None
    if is_llama:
        if not isinstance(model, Gpt):
            raise ExportError(f"it contains a {CONFIG_FILE}, but only gpt can load Llama weights")
        return read_huggingface(path, model, run.watchdog.beat)
    # The path is the directory of an export or of the run that wrote it.
    directory = path if is_export else path / "export"
    manifest = read_manifest(directory)
    config = run.config
    pairs: dict[str, tuple[object, object]] = {
        "model": (manifest.model, config.model),
        "input shape": (manifest.input_shape, run.data.shape),
    }
    if not equal_options(config.model, manifest.options, config.model_options):
        pairs["model_options"] = manifest.options, config.model_options
    differences = [
        f"{name} is {old}, expected {new}" for name, (old, new) in pairs.items() if old != new
    ]
    return manifest.weights.sha256, read_weights(directory, manifest), differences
