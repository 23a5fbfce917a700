"""Export of the language model `gpt` as a Hugging Face directory, in the layout of Llama.

The model computes what Llama computes: the same norms, rotation of halves, SwiGLU and tied
embeddings. vLLM, transformers and other programs for Llama serve the directory unchanged.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor

from training.config import TrainingConfig
from training.data.manifest import TokensManifest, read_manifest
from training.data.samples import DataError
from workload.files import write_atomically
from workload.manifest import ExportError
from workload.models.gpt import Gpt

HUGGINGFACE_FOLDER: Final = "huggingface"
_TOKENIZER: Final = "tokenizer.json"


def write_huggingface(folder: Path, model: Gpt, config: TrainingConfig) -> None:
    """Write weights, configuration and tokenizer. Raises OSError or ExportError.

    An earlier directory is replaced. `model` is on any device and is not changed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_atomically(folder / _TOKENIZER, _tokenizer(config))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.context,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in llama_tensors(model)}
    write_atomically(folder / "model.safetensors", save(tensors, {"format": "pt"}))
    _write_json(folder / "config.json", llama_config(model))


def llama_config(model: Gpt) -> dict[str, Any]:
    """Return the configuration of the equivalent Llama."""
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
        # nn.RMSNorm without eps uses that of its input.
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


def llama_tensors(model: Gpt) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights under the names of Llama."""
    state = model.state_dict()
    yield "model.embed_tokens.weight", state["embedding.weight"]
    yield "model.norm.weight", state["norm.weight"]
    for number in range(len(model.blocks)):
        ours, theirs = f"blocks.{number}", f"model.layers.{number}"
        attention = state[f"{ours}.attention.queries_keys_values.weight"].chunk(3)
        for name, part in zip("qkv", attention, strict=True):
            yield f"{theirs}.self_attn.{name}_proj.weight", part
        gate, values = state[f"{ours}.feed_forward.gate_and_values.weight"].chunk(2)
        yield f"{theirs}.mlp.gate_proj.weight", gate
        yield f"{theirs}.mlp.up_proj.weight", values
        for name, other in _SAME.items():
            yield f"{theirs}.{other}.weight", state[f"{ours}.{name}.weight"]


_SAME: Final = {
    "attention_norm": "input_layernorm",
    "attention.out": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.out": "mlp.down_proj",
}


def _tokenizer(config: TrainingConfig) -> bytes:
    """Return tokenizer.json: that of the data set, or one with a token per byte."""
    if config.dataset == "tokens":
        folder = Path(config.data_dir) / "tokens"
        try:
            manifest = read_manifest(folder)
            if isinstance(manifest, TokensManifest) and manifest.tokenizer is not None:
                return (folder / manifest.tokenizer.file).read_bytes()
        except DataError as error:
            raise ExportError(f"the tokenizer cannot be read: {error}") from None
    return json.dumps(bytes_tokenizer()).encode()


def bytes_tokenizer() -> dict[str, Any]:
    """Return a tokenizer whose tokens are the bytes of UTF-8."""
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
            "vocab": {letter: number for number, letter in enumerate(_letters())},
            "merges": [],
        },
    }


def _letters() -> Iterator[str]:
    """Yield the printable character by which ByteLevel writes each byte, as GPT-2 does."""
    shifted = 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            yield chr(byte)
        else:
            yield chr(shifted)
            shifted += 1


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=2).encode())
