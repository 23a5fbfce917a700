"""A small GPT with new weights, in a real worker."""

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.engine.interface import (
    DeadlineError,
    InputError,
    OverloadedError,
    Sampling,
    UnavailableError,
)
from tests.inference.engine.exports import Serve, outcome, until, write_model
from training.models import build

CONTEXT, TOKENS = 16, 50
OPTIONS = {"context": CONTEXT, "layers": 2, "heads": 2, "width": 16}


@pytest.fixture(scope="module")
def gpt() -> torch.nn.Module:
    torch.manual_seed(0)
    network = build("gpt", dict(OPTIONS), TOKENS, (CONTEXT,))
    # New weights are so small that all tokens would be equally likely.
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return network.eval()


@pytest.fixture(scope="module")
def export(gpt: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt") / "export"
    facts = {"input_shape": (CONTEXT,), "input_dtype": "int64", "outputs": TOKENS}
    write_model(folder, gpt, model="gpt", options=OPTIONS, **facts)
    return folder


@torch.no_grad()
def likeliest(gpt: torch.nn.Module, tokens: list[int], count: int) -> list[int]:
    """The continuation, by the book."""
    text = [*tokens]
    for _ in range(count):
        text.append(int(gpt(torch.tensor([text[-CONTEXT:]]))[0, -1].argmax()))
    return text[len(tokens) :]


async def test_logits_of_texts_of_any_length(
    export: Path, gpt: torch.nn.Module, serve: Serve
) -> None:
    texts = [np.arange(length)[None] % TOKENS for length in (1, 5, 5, CONTEXT)]
    async with serve(export, handler="auto") as engine:
        assert engine.served
        assert engine.served.generates
        assert engine.served.inputs[0].shape == (-1, -1)
        answers = await asyncio.gather(*(engine.infer({"tokens": text}) for text in texts))
        for text, answer in zip(texts, answers, strict=True):
            with torch.no_grad():
                expected = gpt(torch.from_numpy(text)).numpy()
            assert answer.outputs["logits"] == pytest.approx(expected, abs=1e-4)
        for wrong, message in [
            (np.zeros((1, CONTEXT + 1), np.int64), "must be from 1 to 16"),
            (np.zeros((1, 0), np.int64), "must be from 1 to 16"),
            (np.array([[3, TOKENS]]), "tokens has 50: tokens go from 0 to 49"),
        ]:
            with pytest.raises(InputError, match=message):
                await engine.infer({"tokens": wrong})


async def test_texts_are_continued_together_as_they_would_be_alone(
    export: Path, gpt: torch.nn.Module, serve: Serve
) -> None:
    texts = [[1], [7, 8, 9], [*range(CONTEXT + 4)], [49, 0]]
    counts = [30, 3, 5, 12]
    async with serve(export, handler="auto", max_batch=3) as engine:

        async def continued(text: list[int], count: int) -> list[int]:
            return [token async for token in engine.generate(text, Sampling(count))]

        pairs = list(zip(texts, counts, strict=True))
        given = await asyncio.gather(*(continued(*pair) for pair in pairs))
        assert given == [likeliest(gpt, text, count) for text, count in pairs]
        assert not engine.busy


async def test_sampling(export: Path, gpt: torch.nn.Module, serve: Serve) -> None:
    async with serve(export, handler="auto") as engine:

        async def drawn(count: int = 12, **sampling: object) -> list[int]:
            chosen = Sampling(count, **sampling)  # type: ignore[arg-type]
            return [token async for token in engine.generate([1, 2], chosen)]

        best = likeliest(gpt, [1, 2], 12)
        assert await drawn(temperature=5.0, seed=1) == await drawn(temperature=5.0, seed=1)
        assert await drawn(temperature=5.0, seed=1) != await drawn(temperature=5.0, seed=2)
        assert await drawn(temperature=5.0, top_k=1) == best
        stop = best[4]
        assert await drawn(stop=[stop]) == best[: best.index(stop)]


async def test_what_cannot_be_continued_is_refused(export: Path, serve: Serve) -> None:
    async with serve(export, handler="auto") as engine:
        good = asyncio.create_task(outcome(anext(engine.generate([1], Sampling(40)))))
        for tokens, sampling, message in [
            ([], Sampling(1), "tokens is empty"),
            ([1], Sampling(0), "max_tokens is 0"),
            ([TOKENS], Sampling(1), "tokens go from 0 to 49"),
        ]:
            with pytest.raises(InputError, match=message):
                await anext(engine.generate(tokens, sampling))
        past = asyncio.get_running_loop().time() - 1
        with pytest.raises(DeadlineError):
            [token async for token in engine.generate([1], Sampling(10**6), past)]
        assert isinstance(await good, int)


async def test_closing_ends_the_work_and_makes_room(export: Path, serve: Serve) -> None:
    async with serve(export, handler="auto", max_batch=1, max_queue=1) as engine:
        endless = engine.generate([1], Sampling(10**9))
        assert isinstance(await anext(endless), int)
        second = engine.generate([1], Sampling(2))
        waiting = asyncio.create_task(anext(second))
        await until(lambda: engine.waiting == 1)
        with pytest.raises(OverloadedError):
            await anext(engine.generate([1], Sampling(1)))
        await endless.aclose()  # type: ignore[attr-defined]
        assert isinstance(await waiting, int)
        await second.aclose()  # type: ignore[attr-defined]
        await until(lambda: not engine.busy)


async def test_a_worker_that_dies_ends_its_texts(export: Path, serve: Serve) -> None:
    async with serve(export, handler="auto") as engine:
        endless = engine.generate([1], Sampling(10**9))
        await anext(endless)
        os.kill(engine.pids[0], signal.SIGKILL)
        with pytest.raises(UnavailableError, match="died"):
            [token async for token in endless]
        assert isinstance(await anext(engine.generate([1], Sampling(1))), int)
