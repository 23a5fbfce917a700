"""Conversion between the `gpt` language model and Hugging Face directories of Llama models.

The model is equivalent to Llama: it has the same norms, rotary embeddings, SwiGLU and tied
embeddings. vLLM, transformers and other programs that support Llama can load such a
directory unchanged.
"""

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from training.config import TrainingConfig
from training.data.manifest import TokensManifest, read_manifest
from training.data.samples import DataError, UnavailableError, require_available
from workload.files import exists, write_atomically
from workload.manifest import WEIGHTS_FILE, ExportError, read_error
from workload.models.gpt import Gpt

HUGGINGFACE_DIRECTORY: Final = "huggingface"
CONFIG_FILE: Final = "config.json"
_INDEX_FILE: Final = "model.safetensors.index.json"


def write_huggingface(directory: Path, model: Gpt, config: TrainingConfig) -> None:
    """Write weights, configuration and tokenizer to a Hugging Face directory.

    An existing directory is replaced. `model` may be on any device and is not modified. Raise
    OSError, UnavailableError or ExportError on failure.
    """
    shutil.rmtree(directory, ignore_errors=True)
    # On NFS, files that a server has open remain, so the directory may still exist.
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "tokenizer.json", _tokenizer(config))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.context,
        "clean_up_tokenization_spaces": False,
    }
    write_json(directory / "tokenizer_config.json", settings)
    state = model.state_dict()
    tensors = {
        name: part.cpu().contiguous().clone()
        for ours, theirs in _weight_names(len(model.blocks))
        for name, part in zip(theirs, state[ours].chunk(len(theirs)), strict=True)
    }
    write_atomically(directory / WEIGHTS_FILE, save(tensors, {"format": "pt"}))
    write_json(directory / CONFIG_FILE, llama_config(model))


def llama_config(model: Gpt) -> dict[str, Any]:
    """Return the configuration of the equivalent Llama model."""
    dtype = model.embedding.weight.dtype
    heads = model.embedding.embedding_dim // model.head_width
    name = str(dtype).removeprefix("torch.")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.embedding.num_embeddings,
        "hidden_size": model.embedding.embedding_dim,
        "intermediate_size": model.state_dict()["blocks.0.feed_forward.out.weight"].shape[1],
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": model.head_width,
        "max_position_embeddings": model.context,
        "hidden_act": "silu",
        # Without eps, nn.RMSNorm uses the machine epsilon of its input's dtype.
        "rms_norm_eps": torch.finfo(dtype).eps,
        "rope_theta": 10_000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": name,
        "dtype": name,
    }


def gpt_tensors(tensors: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Convert Llama tensors to those of `gpt`; tensors without a counterpart keep their names.

    Tensors that can be derived from others (tied embeddings, rotary frequencies) are omitted.
    """
    left = {name: each for name, each in tensors.items() if not name.endswith("inv_freq")}
    if {_HEAD, _EMBEDDING} <= left.keys() and torch.equal(left[_HEAD], left[_EMBEDDING]):
        del left[_HEAD]
    found = {}
    for ours, theirs in _weight_names(layers):
        if not left.keys() >= set(theirs) or not all(left[name].dim() for name in theirs):
            continue
        if len({left[name].shape[1:] for name in theirs}) == 1:
            found[ours] = torch.cat([left.pop(name) for name in theirs])
    return found | left


_HEAD: Final = "lm_head.weight"
_EMBEDDING: Final = "model.embed_tokens.weight"
LLAMA_LAYERS: Final = {
    "attention.queries_keys_values": tuple(f"self_attn.{each}_proj" for each in "qkv"),
    "attention.out": ("self_attn.o_proj",),
    "attention_norm": ("input_layernorm",),
    "feed_forward.gate_and_values": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.out": ("mlp.down_proj",),
    "feed_forward_norm": ("post_attention_layernorm",),
}
"""Maps each layer in a block of `gpt` to the Llama layers that it combines."""


def _weight_names(layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each `gpt` weight and the names of the Llama weights that it combines."""
    yield "embedding.weight", (_EMBEDDING,)
    yield "norm.weight", ("model.norm.weight",)
    for number in range(layers):
        for ours, theirs in LLAMA_LAYERS.items():
            parts = tuple(f"model.layers.{number}.{each}.weight" for each in theirs)
            yield f"blocks.{number}.{ours}.weight", parts


def read_huggingface(
    directory: Path, model: Gpt, beat: Callable[[], object]
) -> tuple[str, dict[str, Tensor], list[str]]:
    """Read a Llama model.

    Return the digest of its weights, the tensors renamed for `gpt`, and the settings that differ
    from `model`. The digest covers the safetensors files in the order of their names. Raise
    ExportError on failure.
    """
    found, expected = _llama_settings(read_json(directory / CONFIG_FILE)), llama_config(model)
    differences = [
        f"{name} is {found.get(name)}, expected {expected[name]}"
        for name in _COMPARED_SETTINGS
        if found.get(name) != expected[name]
    ]
    digest, tensors = hashlib.sha256(), dict[str, Tensor]()
    for path in _weight_files(directory):
        try:
            with path.open("rb") as file:
                while block := file.read(2**24):
                    digest.update(block)
                    beat()
            tensors |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise read_error(f"{path} is not a readable safetensors file: {error}", error) from None
    dtype = model.embedding.weight.dtype
    converted = {name: each.to(dtype) for name, each in tensors.items()}
    read = gpt_tensors(converted, len(model.blocks))
    return digest.hexdigest(), read, differences


_COMPARED_SETTINGS: Final = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
    "rope_parameters", "attention_bias", "mlp_bias", "tie_word_embeddings",
)  # fmt: skip


def _llama_settings(found: dict[str, Any]) -> dict[str, Any]:
    """Return the content of config.json, completed with transformers' defaults for Llama.

    transformers releases before 5.0 write `rope_theta` and `rope_scaling` instead of
    `rope_parameters`. Raise ExportError if `rope_scaling` is not an object.
    """
    heads, width = found.get("num_attention_heads"), found.get("hidden_size")
    head_dim = found.get("head_dim")
    if head_dim is None and isinstance(heads, int) and isinstance(width, int) and heads > 0:
        head_dim = width // heads
    scaling = found.get("rope_scaling") or {"rope_type": "default"}
    if not isinstance(scaling, dict):
        raise ExportError(f"{CONFIG_FILE} has rope_scaling {scaling!r}, which is not an object")
    return {
        "num_key_value_heads": heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {**scaling, "rope_theta": found.get("rope_theta", 10_000.0)},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        **found,
        # Some releases write null, so `found` must not override this value.
        "head_dim": head_dim,
    }


def _weight_files(directory: Path) -> list[Path]:
    """Return the weights file, or the files that the index lists."""
    if not exists(directory / _INDEX_FILE):
        return [directory / WEIGHTS_FILE]
    names = read_json(directory / _INDEX_FILE).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in names.values()
    ):
        raise ExportError(
            f"{directory / _INDEX_FILE} has no valid weight_map, or lists a file outside "
            "its directory"
        )
    return [directory / name for name in sorted(set(names.values()))]


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raise ExportError on failure."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise read_error(f"{path} is not readable JSON: {error}", error) from None
    if not isinstance(content, dict):
        raise ExportError(f"{path} is not a JSON object")
    return content


def _tokenizer(config: TrainingConfig) -> bytes:
    """Return the data set's tokenizer.json or, without one, a tokenizer with one token per byte."""
    if config.dataset == "tokens":
        directory = Path(config.data_dir) / "tokens"
        try:
            manifest = read_manifest(directory)
            if isinstance(manifest, TokensManifest) and manifest.tokenizer is not None:
                return (directory / manifest.tokenizer.file).read_bytes()
        except UnavailableError:
            raise
        except (DataError, OSError) as error:
            require_available(directory, error)
            raise ExportError(f"the tokenizer cannot be read: {error}") from None
    return json.dumps(bytes_tokenizer()).encode()


def bytes_tokenizer() -> dict[str, Any]:
    """Return a tokenizer whose tokens are the bytes of UTF-8 text."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: number for number, letter in enumerate(_byte_characters())},
            "merges": [],
        },
    }


def _byte_characters() -> Iterator[str]:
    """Yield the printable character that represents each byte in a ByteLevel tokenizer (GPT-2)."""
    visible, others = {*range(33, 127), *range(161, 173), *range(174, 256)}, itertools.count(256)
    for byte in range(256):
        yield chr(byte if byte in visible else next(others))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object to a file. Raise OSError on failure."""
    write_atomically(path, json.dumps(content, indent=2).encode())
