"""The handler of language models, with a small untrained GPT in a real worker."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.engine.interface import InputError
from tests.inference.engine.exports import Serve, infer, write_model
from workload.models import build

CONTEXT, TOKENS = 16, 50
OPTIONS = {"context": CONTEXT, "layers": 2, "heads": 2, "width": 16}


@pytest.fixture(scope="module")
def gpt() -> torch.nn.Module:
    torch.manual_seed(0)
    network = build("gpt", dict(OPTIONS), TOKENS, (CONTEXT,))
    # The initial weights are so small that all tokens would be equally likely.
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return network.eval()


@pytest.fixture(scope="module")
def export(gpt: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt") / "export"
    facts = {"input_shape": (CONTEXT,), "input_dtype": "int64", "outputs": TOKENS}
    write_model(folder, gpt, model="gpt", options=OPTIONS, **facts)
    return folder


async def test_logits_are_correct_for_sequences_of_any_length(
    export: Path, gpt: torch.nn.Module, serve: Serve
) -> None:
    texts = [np.arange(length)[None] % TOKENS for length in (1, 5, 5, CONTEXT)]
    async with serve(export, handler="auto") as engine:
        assert engine.served
        assert engine.served.inputs[0].shape == (-1, -1)
        answers = await asyncio.gather(*(infer(engine.pool, {"tokens": text}) for text in texts))
        for text, answer in zip(texts, answers, strict=True):
            with torch.no_grad():
                expected = gpt(torch.from_numpy(text)).numpy()
            assert answer.outputs["logits"] == pytest.approx(expected, abs=1e-4)
        for invalid, message in [
            (np.zeros((1, CONTEXT + 1), np.int64), "must contain from 1 to 16"),
            (np.zeros((1, 0), np.int64), "must contain from 1 to 16"),
            (np.array([[3, TOKENS]]), "tokens contains 50: token IDs are from 0 to 49"),
        ]:
            with pytest.raises(InputError, match=message):
                await infer(engine.pool, {"tokens": invalid})
