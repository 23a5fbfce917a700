"""The exported Hugging Face directory of a language model, read by transformers."""

import errno
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.training.programs import run_with
from tools.environments import environment
from training.config import TrainingConfig
from training.data import load
from training.data.__main__ import main as prepare
from training.data.samples import UnavailableError
from training.export import huggingface, write_export
from training.export.huggingface import bytes_tokenizer, write_huggingface
from workload.models import build
from workload.models.gpt import Gpt

TEXT = "Grüße, wörld\n"
OPTIONS = {"context": 32, "layers": 3, "heads": 2, "width": 48}


def exported(folder: Path, dataset: str) -> tuple[Path, torch.nn.Module]:
    """Export a language model with random weights, which are larger than in a new model."""
    torch.manual_seed(3)
    values: dict[str, Any] = {"model": "gpt", "dataset": dataset, "model_options": OPTIONS}
    paths = {"data_dir": str(folder), "run_dir": "/checkpoints/run-7"}
    config = TrainingConfig.model_validate(values | paths)
    data = load(dataset, folder, (OPTIONS["context"],), seed=0)
    model = build("gpt", config.model_options, data.outputs, data.shape).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    write_export(folder / "export", model, config, data, {})
    return folder / "export" / "huggingface", model


@dataclass(frozen=True)
class ReadExport:
    """An export, the inputs of its model, and the results computed by transformers."""

    folder: Path
    model: torch.nn.Module
    tokens: Any
    logits: Any
    answer: dict[str, Any]


def write_text_files(folder: Path) -> None:
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("The quick brown fox jumps over it. " * 50)


def prepare_tokens(folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    (source / "a.txt").write_text("The quick brown fox jumps over it. " * 200)
    tokenizer = bytes_tokenizer()
    tokenizer["model"]["vocab"]["Th"] = 256
    tokenizer["model"]["merges"] = [["T", "h"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    options = ["--tokenizer", str(folder / "tokenizer.json")]
    prepare(["prepare", "text", "--folder", str(source), str(folder / "tokens"), *options])


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReadExport]:
    """Exports of models for text files and for prepared tokens, read with transformers."""
    exports = {}
    for dataset, write in (("text", write_text_files), ("tokens", prepare_tokens)):
        folder = tmp_path_factory.mktemp(dataset)
        write(folder)
        exports[dataset] = exported(folder, dataset)
        tokens = np.random.default_rng(0).integers(0, 256, (3, OPTIONS["context"]))
        np.save(exports[dataset][0].with_name("tokens.npy"), tokens)
    python = environment("hugging-face", inherits=True)
    arguments = [TEXT, *(str(folder) for folder, _ in exports.values())]
    output = tmp_path_factory.mktemp("transformers") / "output"
    run_with(python, "tests.training.export.read_huggingface", arguments, output)
    return {
        dataset: ReadExport(
            folder,
            model,
            torch.from_numpy(np.load(folder.with_name("tokens.npy"))),
            np.load(folder.with_name("logits.npy")),
            json.loads(folder.with_name("answer.json").read_text()),
        )
        for dataset, (folder, model) in exports.items()
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dataset", ["text", "tokens"])
def test_transformers_computes_the_same_logits_and_tokens(
    exports: dict[str, ReadExport], dataset: str
) -> None:
    export = exports[dataset]
    with torch.no_grad():
        expected = export.model(export.tokens).numpy()
    assert (export.answer["missing"], export.answer["unexpected"]) == ([], [])
    assert np.abs(export.logits - expected).max() <= 1e-4 * np.abs(expected).max()
    assert export.answer["decoded"] == TEXT


def test_bytes_are_the_tokens_of_text_files(exports: dict[str, ReadExport]) -> None:
    assert exports["text"].answer["encoded"] == list(TEXT.encode())


def test_the_tokenizer_of_the_data_set_is_exported(exports: dict[str, ReadExport]) -> None:
    folder = exports["tokens"].folder
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 257
    original = folder.parents[1] / "tokenizer.json"
    assert (folder / "tokenizer.json").read_text() == original.read_text()


def test_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text_files(tmp_path)
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(huggingface, "write_json", Mock(side_effect=error))
    with pytest.raises(OSError, match="No space left"):
        exported(tmp_path, "text")
    assert not (tmp_path / "export/manifest.json").exists()


def test_unavailable_tokenizer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainingConfig.model_validate(
        {"model": "gpt", "dataset": "tokens", "data_dir": str(tmp_path), "model_options": OPTIONS}
    )
    model = build("gpt", config.model_options, 257, (OPTIONS["context"],))
    assert isinstance(model, Gpt)
    prepare_tokens(tmp_path)
    error = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=error))
    with pytest.raises(UnavailableError, match="Input/output error"):
        write_huggingface(tmp_path / "export", model, config)
