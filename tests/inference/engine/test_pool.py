"""Queueing, batching and errors of requests in a real worker."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

import workload.cores
from inference.engine.batching import Batch, Piece, Request
from inference.engine.interface import (
    Answer,
    DeadlineError,
    InputError,
    OverloadedError,
    UnavailableError,
)
from inference.engine.pool import default_threads
from inference.engine.process import SLOTS
from tests.inference.engine.exports import Serve, infer, outcome, sample, until, worker_pids
from tests.inference.engine.probes import FAIL, FINE, LONG, REFUSE, REFUSE_AT_LENGTH, SLEEP

BUSY_SECONDS = 0.2
"""Seconds for which the worker is busy while requests are sent."""


async def test_requests_batched_together_get_their_own_answers(probe: Path, serve: Serve) -> None:
    async with serve(probe, max_batch=8) as engine:
        counts = [1 + number % 5 for number in range(100)]
        answers = await asyncio.gather(
            *(
                infer(engine.pool, sample(FINE, value=number, count=count))
                for number, count in enumerate(counts)
            )
        )
    for number, (count, answer) in enumerate(zip(counts, answers, strict=True)):
        assert answer.outputs["value"].tolist() == [number] * count
        assert answer.outputs["text"].tolist() == [f"{number:g}".encode()] * count
        assert answer.outputs["batch"].tolist() == [answer.batch] * count
    sizes = [answer.batch for answer in answers]
    assert max(sizes) <= 8
    assert sum(sizes) / len(sizes) > 6


@pytest.mark.parametrize(("handler", "expected"), [("Probe", False), ("Texts", True)])
async def test_pool_states_whether_the_model_reads_strings(
    handler: str, expected: bool, probe: Path, serve: Serve
) -> None:
    async with serve(probe, handler=f"tests.inference.engine.probes:{handler}") as engine:
        assert engine.pool is not None
        assert engine.pool.reads_strings == expected


async def test_idle_worker_computes_a_request_at_once(probe: Path, serve: Serve) -> None:
    async with serve(probe, max_delay_ms=1000) as engine:
        for _ in range(3):
            answer = await infer(engine.pool, sample(FINE))
            assert (answer.batch, answer.queue_seconds) == (1, pytest.approx(0, abs=0.9))


async def test_batch_waits_for_the_expected_samples_under_load(probe: Path, serve: Serve) -> None:
    async with serve(probe, max_delay_ms=1000, max_batch=8) as engine:
        busy = asyncio.create_task(infer(engine.pool, sample(SLEEP, 0.05)))
        await until(lambda: not engine.pool.idle)
        requests = [asyncio.create_task(infer(engine.pool, sample(FINE))) for _ in range(3)]
        await busy
        # Four samples were present when the previous batch ended.
        requests.append(asyncio.create_task(infer(engine.pool, sample(FINE))))
        assert [answer.batch for answer in await asyncio.gather(*requests)] == [4] * 4


async def test_requests_of_one_batch_fail_separately(probe: Path, serve: Serve) -> None:
    async with serve(probe) as engine:
        busy = asyncio.create_task(infer(engine.pool, sample(SLEEP, BUSY_SECONDS)))
        await until(lambda: not engine.pool.idle)
        requests = [
            sample(FINE, value=1),
            sample(REFUSE, value=2),
            sample(FINE, value=3, count=2),
            sample(FAIL),
        ]
        first, second, third, fourth = await asyncio.gather(
            *(outcome(infer(engine.pool, inputs)) for inputs in requests)
        )
        await busy
    assert isinstance(first, Answer)
    assert (first.outputs["value"].tolist(), first.batch) == ([1], 1)
    assert isinstance(third, Answer)
    assert third.outputs["value"].tolist() == [3, 3]
    assert isinstance(second, InputError)
    assert str(second) == "inputs has 2.0"
    assert isinstance(fourth, InputError)
    assert str(fourth) == (
        "the model cannot process this input; see compute_failed in the server log"
    )


async def test_long_errors_of_one_batch_reach_their_requests(probe: Path, serve: Serve) -> None:
    async with serve(probe, max_batch=96) as engine:
        busy = asyncio.create_task(infer(engine.pool, sample(SLEEP, BUSY_SECONDS)))
        await until(lambda: not engine.pool.idle)
        kinds = [REFUSE_AT_LENGTH if number % 5 == 0 else FINE for number in range(96)]
        requests = [sample(kind, value=number) for number, kind in enumerate(kinds)]
        answers = await asyncio.gather(
            *(outcome(infer(engine.pool, inputs)) for inputs in requests),
            *(outcome(infer(engine.pool, sample(FINE, value=number))) for number in range(96)),
        )
        await busy
    for number, answer in enumerate(answers):
        if number < 96 and kinds[number] == REFUSE_AT_LENGTH:
            assert isinstance(answer, InputError)
            assert str(answer) == f"{float(number)} {LONG}"
        else:
            assert isinstance(answer, Answer)
            assert answer.outputs["value"].tolist() == [number % 96]


async def test_requests_of_one_batch_get_only_the_outputs_that_they_request(
    probe: Path, serve: Serve
) -> None:
    async with serve(probe, max_batch=4) as engine:
        pool, no_deadline = engine.pool, float("inf")
        busy = asyncio.create_task(infer(pool, sample(SLEEP, BUSY_SECONDS)))
        await until(lambda: not pool.idle)
        split = pool.submit(sample(FINE, value=3, count=7), no_deadline, "", frozenset({"value"}))
        text = pool.submit(sample(FINE, value=4), no_deadline, "", frozenset({"text", "value"}))
        everything = pool.submit(sample(FINE, value=5), no_deadline)
        answers = await asyncio.gather(split.future, text.future, everything.future)
        await busy
    assert [set(answer.outputs) for answer in answers] == [
        {"value"},
        {"text", "value"},
        {"value", "batch", "before", "text"},
    ]
    assert answers[0].outputs["value"].tolist() == [3] * 7
    assert answers[1].outputs["text"].tolist() == [b"4"]


async def test_batch_computes_the_outputs_requested_by_any_of_its_requests() -> None:
    def batch(*wanted: frozenset[str] | None) -> Batch:
        requests = [
            Request(sample(FINE), asyncio.Future(), 0, 0, "", outputs) for outputs in wanted
        ]
        return Batch([Piece(request, 0, 1) for request in requests])

    assert batch(frozenset({"a"}), frozenset({"b"})).output_names == ["a", "b"]
    assert batch(frozenset({"a"}), None).output_names is None


async def test_a_request_larger_than_a_batch_is_split(probe: Path, serve: Serve) -> None:
    inputs = sample(FINE, count=21)
    inputs["inputs"][:, 2] = range(21)
    async with serve(probe, max_batch=8) as engine:
        answer = await infer(engine.pool, inputs)
        assert answer.outputs["value"].tolist() == list(range(21))
        assert answer.outputs["batch"].tolist() == [8] * 16 + [5] * 5
        assert answer.batch == 8
        inputs["inputs"][13, 0] = REFUSE
        with pytest.raises(InputError, match=r"inputs has 13\.0"):
            await infer(engine.pool, inputs)


PADDED = {"handler": "tests.inference.engine.probes:Padded"}


async def test_split_request_fails_alone_if_the_widths_of_its_outputs_differ(
    probe: Path, serve: Serve
) -> None:
    inputs = sample(FINE, value=2, count=9)
    inputs["inputs"][8, 2] = 5
    async with serve(probe, max_batch=8, **PADDED) as engine, asyncio.timeout(60):
        busy = asyncio.create_task(infer(engine.pool, sample(SLEEP, BUSY_SECONDS)))
        await until(lambda: not engine.pool.idle)
        # The small request is in the second batch of the large request.
        large, small = await asyncio.gather(
            outcome(infer(engine.pool, inputs)), infer(engine.pool, sample(FINE, value=3))
        )
        await busy
        assert engine.pool.idle
    assert isinstance(large, InputError)
    assert str(large) == (
        "the output padded has different shapes in the batches of this request: send at most 8 "
        "samples at once"
    )
    assert (small.batch, small.outputs["padded"].tolist()) == (2, [[3] * 5])


async def test_requests_computed_separately_may_have_outputs_of_different_widths(
    probe: Path, serve: Serve
) -> None:
    async with serve(probe, **PADDED) as engine:
        pids = worker_pids(engine)
        busy = asyncio.create_task(infer(engine.pool, sample(SLEEP, BUSY_SECONDS)))
        await until(lambda: not engine.pool.idle)
        values = [1, 3, 1, 2]
        *answers, error = await asyncio.gather(
            *(infer(engine.pool, sample(FINE, value=value)) for value in values),
            outcome(infer(engine.pool, sample(REFUSE))),
        )
        await busy
        assert worker_pids(engine) == pids
    assert isinstance(error, InputError)
    for value, answer in zip(values, answers, strict=True):
        assert isinstance(answer, Answer)
        assert answer.outputs["padded"].tolist() == [[value] * value]


@pytest.mark.parametrize("value", [1, 2, 3, 4])
async def test_outputs_that_do_not_match_the_declaration_fail_the_request(
    value: int, probe: Path, serve: Serve
) -> None:
    handler = "tests.inference.engine.probes:Changing"
    async with serve(probe, handler=handler) as engine:
        pids = worker_pids(engine)
        failed = await outcome(infer(engine.pool, sample(FINE, value=value)))
        assert isinstance(failed, InputError)
        assert "see compute_failed in the server log" in str(failed)
        assert (await infer(engine.pool, sample(FINE))).outputs["text"].tolist() == [b"0"]
        assert worker_pids(engine) == pids


@pytest.mark.parametrize(
    "failing",
    ["inference.engine.process.Arena.put", "inference.engine.process.Arena.get",
     "inference.engine.process.send"],
)  # fmt: skip
async def test_requests_fail_if_there_is_no_memory_for_their_batch(
    probe: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async with serve(probe, max_batch=2) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(failing, fail)
            for _ in range(2 * SLOTS):
                with pytest.raises(UnavailableError, match="not enough memory"):
                    await asyncio.wait_for(infer(engine.pool, sample(FINE, count=5)), 60)
        assert engine.queued == 0
        answer = await infer(engine.pool, sample(FINE, value=7, count=5))
        assert answer.outputs["value"].tolist() == [7] * 5


async def test_full_queue_refuses_requests_with_a_retry_time(probe: Path, serve: Serve) -> None:
    async with serve(probe, max_queue=4, max_batch=2) as engine:
        await infer(engine.pool, sample(SLEEP, 0.05))
        busy = asyncio.create_task(infer(engine.pool, sample(SLEEP, BUSY_SECONDS)))
        await until(lambda: not engine.pool.idle)
        # The worker has one more batch, and four samples are queued.
        requests = [asyncio.create_task(infer(engine.pool, sample(FINE))) for _ in range(6)]
        await until(lambda: engine.queued == 4)
        with pytest.raises(OverloadedError, match="4 samples are queued already") as caught:
            await infer(engine.pool, sample(FINE))
        assert 0 < caught.value.retry_after < 60
        with pytest.raises(InputError, match="send at most 4 samples"):
            await infer(engine.pool, sample(FINE, count=5))
        assert len(await asyncio.gather(busy, *requests)) == 7
        assert engine.queued == 0


async def test_queued_bytes_are_limited(probe: Path, serve: Serve) -> None:
    async with serve(probe, max_queue_bytes=2**16, max_queue=2**16) as engine:
        max_samples = 2**16 // 12
        with pytest.raises(InputError, match="65536 bytes at once"):
            await infer(engine.pool, sample(FINE, count=max_samples + 1))


async def test_a_request_that_expires_in_the_queue_is_not_computed(
    probe: Path, serve: Serve
) -> None:
    loop = asyncio.get_running_loop()
    async with serve(probe) as engine:
        busy = asyncio.create_task(infer(engine.pool, sample(SLEEP, 2 * BUSY_SECONDS)))
        await until(lambda: not engine.pool.idle)
        with pytest.raises(DeadlineError, match="the deadline passed"):
            await infer(engine.pool, sample(FINE), loop.time() + BUSY_SECONDS / 4)
        assert not busy.done()
        assert engine.queued == 0
        previous = (await busy).outputs["before"][0]
        answer = await infer(engine.pool, sample(FINE), loop.time() + 60)
        assert answer.outputs["before"][0] == previous + 1


async def test_a_request_that_cannot_meet_its_deadline_is_refused_at_once(
    probe: Path, serve: Serve
) -> None:
    loop = asyncio.get_running_loop()
    async with serve(probe, max_batch=1) as engine:
        for _ in range(3):
            await infer(engine.pool, sample(SLEEP, 0.1))
        begun = [asyncio.create_task(infer(engine.pool, sample(SLEEP, 0.1))) for _ in range(6)]
        await until(lambda: engine.queued == 4)
        with pytest.raises(OverloadedError, match="the deadline would pass") as caught:
            await infer(engine.pool, sample(FINE), loop.time() + 0.1)
        assert caught.value.retry_after > 0.1
        await asyncio.gather(*begun)


async def test_a_canceled_request_is_not_computed(probe: Path, serve: Serve) -> None:
    async with serve(probe) as engine:
        busy = asyncio.create_task(infer(engine.pool, sample(SLEEP, BUSY_SECONDS)))
        await until(lambda: not engine.pool.idle)
        cancelled = asyncio.create_task(infer(engine.pool, sample(FINE, count=7)))
        await until(lambda: engine.queued == 7)
        cancelled.cancel()
        await until(cancelled.done)
        assert engine.queued == 0
        previous = (await busy).outputs["before"][0]
        assert (await infer(engine.pool, sample(FINE))).outputs["before"][0] == previous + 1


def test_workers_share_the_cores_within_the_cpu_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(workload.cores, "CGROUPS", tmp_path)
    assert default_threads(2) == 4
    (tmp_path / "cpu.max").write_text("400000 100000")
    assert default_threads(2) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads(2) == 3
