"""The Hugging Face directory of a language model, read by transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.environments import environment, run
from training.config import TrainingConfig
from training.data import load
from training.data.__main__ import main as prepare
from training.export import write_export
from training.export.huggingface import bytes_tokenizer
from workload.models import build

TEXT = "Grüße, wörld\n"
OPTIONS = {"context": 32, "layers": 3, "heads": 2, "width": 48}


@pytest.fixture(scope="module")
def python() -> Path:
    return environment("hugging-face", inherits=True)


def exported(folder: Path, dataset: str) -> tuple[Path, torch.nn.Module]:
    """Export a language model with random weights, which differ from their initial scale."""
    torch.manual_seed(3)
    values: dict[str, Any] = {"model": "gpt", "dataset": dataset, "model_options": OPTIONS}
    places = {"data_dir": str(folder), "run_dir": "/checkpoints/run-7"}
    config = TrainingConfig.model_validate(values | places)
    data = load(dataset, folder, (OPTIONS["context"],), seed=0)
    model = build("gpt", config.model_options, data.outputs, data.shape).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    write_export(folder / "export", model, config, data, {})
    return folder / "export" / "huggingface", model


def read(python: Path, folder: Path, tokens: Any) -> tuple[dict[str, Any], Any]:
    """What transformers reads: its report, and the logits of the tokens."""
    np.save(folder.parent / "tokens.npy", tokens)
    program = Path(__file__).with_name("read_huggingface.py")
    command = [str(python), str(program), str(folder), str(folder.parent / "tokens.npy"), TEXT]
    answer = json.loads(run(command).splitlines()[-1])
    return answer, np.load(folder.parent / "tokens.npy.logits.npy")


@pytest.mark.timeout(300)
def test_transformers_computes_the_same_logits_and_tokens(python: Path, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("The quick brown fox jumps over it. " * 50)
    folder, model = exported(tmp_path, "text")
    tokens = np.random.default_rng(0).integers(0, 256, (3, 32))
    answer, logits = read(python, folder, tokens)
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).numpy()
    assert (answer["missing"], answer["unexpected"]) == ([], [])
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    assert answer["encoded"] == list(TEXT.encode())
    assert answer["decoded"] == TEXT


@pytest.mark.timeout(300)
def test_the_tokenizer_of_the_data_set_is_exported(python: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("The quick brown fox jumps over it. " * 200)
    tokenizer = bytes_tokenizer()
    tokenizer["model"]["vocab"]["Th"] = 256
    tokenizer["model"]["merges"] = [["T", "h"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    given = ["--tokenizer", str(tmp_path / "tokenizer.json")]
    prepare(["prepare", "text", "--folder", str(source), str(tmp_path / "tokens"), *given])
    folder, _ = exported(tmp_path, "tokens")
    answer, _ = read(python, folder, np.zeros((1, 8), np.int64))
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 257
    assert answer["decoded"] == TEXT
    assert (folder / "tokenizer.json").read_text() == (tmp_path / "tokenizer.json").read_text()
