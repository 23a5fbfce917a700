"""LoRA adapters (arXiv:2106.09685) of the `gpt` language model, in PEFT's file format.

The peft package itself is not used: it needs transformers, and cannot adapt only part of a layer.
`gpt` computes queries, keys and values with one layer, whose parts are separate layers in Llama.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from training.config import TrainingConfig
from training.export.huggingface import (
    CONFIG_FILE,
    HUGGINGFACE_DIRECTORY,
    LLAMA_LAYERS,
    read_json,
    write_json,
)
from workload.files import exists, write_atomically
from workload.manifest import ExportError, read_error
from workload.models.gpt import Gpt

ADAPTER_DIRECTORY: Final = "adapter"
"""Directory of the adapter in an export."""

_ADAPTER_CONFIG: Final = "adapter_config.json"
_WEIGHTS_FILE: Final = "adapter_model.safetensors"
_LAYER: Final = re.compile(r"\.(\w+)\.lora_[AB]\.weight$")
_PLAIN_OPTIONS: Final = {
    "fan_in_fan_out": (False,),
    "bias": ("none",),
    "use_rslora": (False,),
    "use_dora": (False,),
    "modules_to_save": (None, []),
    "layers_to_transform": (None, []),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
}
"""Values of PEFT's options for which a PEFT adapter is equivalent to `Adapter`. The first value of
each option is written to new files."""
_REQUIRED_OPTIONS: Final = {
    "peft_type": ("LORA",),
    # Other values, such as "pissa", also change the weights of the base model.
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal", "mica"),
    "layer_replication": (None, []),
    "lora_bias": (False,),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False,),
    "use_bdlora": (None,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    **_PLAIN_OPTIONS,
}
"""`_PLAIN_OPTIONS`, and options that are checked in existing files but not written to new ones,
because older programs may not know them."""


@dataclass(frozen=True)
class Lora:
    """Settings of a model's adapters. `targets` are the Llama names of the adapted layers."""

    rank: int
    alpha: float
    targets: frozenset[str]
    dropout: float = 0.0

    @classmethod
    def of(cls, config: TrainingConfig) -> Self | None:
        """Return the settings of the adapters to train, or None if the model itself is trained."""
        if not config.lora_rank:
            return None
        targets = frozenset[str](config.lora_targets)
        return cls(config.lora_rank, config.lora_alpha, targets, config.lora_dropout)


class Adapter(nn.Sequential):
    """Product of two small matrices; the first is initialized randomly, the second with zeros."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.lora_A = nn.Linear(inputs, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)


class AdaptedLinear(nn.Linear):
    """Linear layer whose output consists of parts of equal size, some of which have an adapter."""

    def __init__(self, layer: nn.Linear, parts: tuple[str, ...], lora: Lora) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight = layer.weight
        self.parts, self.scale = parts, lora.alpha / lora.rank
        self.dropout = nn.Dropout(lora.dropout)
        size = layer.out_features // len(parts)
        self.adapters = nn.ModuleDict(
            {
                part: Adapter(layer.in_features, size, lora.rank)
                for part in parts
                if part in lora.targets
            }
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map N x T x inputs to N x T x outputs."""
        outputs = list(super().forward(inputs).chunk(len(self.parts), dim=-1))
        for part, adapter in self.adapters.items():
            change = adapter(self.dropout(inputs)) * self.scale
            outputs[self.parts.index(part)] = outputs[self.parts.index(part)] + change
        return torch.cat(outputs, dim=-1)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Merge the adapters into the weight, and return an ordinary layer with this weight."""
        rows = self.weight.chunk(len(self.parts))
        for part, adapter in self.adapters.items():
            first, second = adapter.parameters()
            rows[self.parts.index(part)].add_(second @ first, alpha=self.scale)
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer.weight = self.weight
        return layer


def adapt(model: Gpt, lora: Lora) -> None:
    """Freeze a model, and add trainable adapters."""
    model.requires_grad_(requires_grad=False)
    for block in model.blocks:
        for path, layers in LLAMA_LAYERS.items():
            parts = tuple(name.rpartition(".")[2] for name in layers)
            if lora.targets.intersection(parts):
                linear = cast(nn.Linear, block.get_submodule(path))
                block.set_submodule(path, AdaptedLinear(linear, parts, lora), strict=True)


def merge(model: Gpt) -> None:
    """Add the adapters to the weights of the model, and remove the adapters."""
    layers = {name: each for name, each in model.named_modules() if isinstance(each, AdaptedLinear)}
    for name, layer in layers.items():
        model.set_submodule(name, layer.merged(), strict=True)


def write_adapter(directory: Path, model: Gpt, lora: Lora, base: Path) -> None:
    """Write the adapters of a model as a PEFT directory.

    `base` is a run, an export or a Hugging Face directory. The written configuration refers to the
    Hugging Face directory of `base`, or to `base` itself if there is none.
    """
    candidates = (base, base / HUGGINGFACE_DIRECTORY, base / "export" / HUGGINGFACE_DIRECTORY)
    llama = next((each for each in candidates if exists(each / CONFIG_FILE)), base)
    directory.mkdir(parents=True, exist_ok=True)
    names, state = _tensor_names(len(model.blocks), lora.targets), model.state_dict()
    tensors = {theirs: state[ours].cpu().contiguous() for theirs, ours in names.items()}
    write_atomically(directory / _WEIGHTS_FILE, save(tensors, {"format": "pt"}))
    write_json(
        directory / _ADAPTER_CONFIG,
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(llama),
            "inference_mode": True,
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "target_modules": sorted(lora.targets),
            **{option: values[0] for option, values in _PLAIN_OPTIONS.items()},
        },
    )


def load_adapter(directory: Path, model: Gpt) -> tuple[str, Lora]:
    """Add the adapters in a PEFT directory to a model; return their digest and settings.

    Raise ExportError if the adapters do not match all blocks of this model.
    """
    settings = read_json(directory / _ADAPTER_CONFIG)
    try:
        content = (directory / _WEIGHTS_FILE).read_bytes()
        found = load(content)
    except (SafetensorError, OSError) as error:
        message = f"{directory / _WEIGHTS_FILE} is not readable: {error}"
        raise read_error(message, error) from None
    targets = frozenset(match[1] for match in map(_LAYER.search, found) if match)
    names = _tensor_names(len(model.blocks), targets)
    if not found or found.keys() != names.keys():
        different = ", ".join(sorted(found.keys() ^ names.keys())) or "no tensors"
        raise ExportError(f"its tensors are not those of this gpt model: {different}")
    lora = Lora(*_rank_and_alpha(settings), targets)
    adapt(model, lora)
    state = model.state_dict()
    for theirs, ours in names.items():
        if found[theirs].shape != state[ours].shape:
            raise ExportError(
                f"its {theirs} has shape {list(found[theirs].shape)}, not {list(state[ours].shape)}"
            )
        state[ours].copy_(found[theirs])
    return hashlib.sha256(content).hexdigest(), lora


def _rank_and_alpha(settings: dict[str, Any]) -> tuple[int, float]:
    """Return rank and alpha. Raise ExportError for options that change the computation."""
    for option, values in _REQUIRED_OPTIONS.items():
        if settings.get(option, values[0]) not in values:
            raise ExportError(
                f"{_ADAPTER_CONFIG} has {option} {json.dumps(settings[option])}, not "
                f"{json.dumps(values[0])}: only plain LoRA is supported"
            )
    rank: Any = settings.get("r")
    alpha: Any = settings.get("lora_alpha")
    # A JSON file may contain NaN and Infinity, and booleans are integers in Python.
    are_numbers = type(rank) is int and type(alpha) in (int, float)
    if not are_numbers or rank < 1 or not 0 < alpha < math.inf:
        raise ExportError(
            f"{_ADAPTER_CONFIG} has r {rank!r} and lora_alpha {alpha!r}: both must be positive "
            "and finite"
        )
    return rank, alpha


def _tensor_names(blocks: int, targets: frozenset[str]) -> dict[str, str]:
    """Return a mapping from the tensor names of PEFT to those of `gpt`."""
    return {
        f"base_model.model.model.layers.{block}.{layer}.{factor}.weight": (
            f"blocks.{block}.{path}.adapters.{layer.rpartition('.')[2]}.{factor}.weight"
        )
        for block in range(blocks)
        for path, layers in LLAMA_LAYERS.items()
        for layer in layers
        if layer.rpartition(".")[2] in targets
        for factor in ("lora_A", "lora_B")
    }
