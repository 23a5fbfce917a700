"""Workers that die, hang or cannot start, and the effects on requests."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from inference.engine import backoff
from inference.engine.backoff import Backoff
from inference.engine.interface import Observer, UnavailableError
from inference.metrics import Metrics
from inference.service import Service
from tests.inference.engine.exports import Serve, infer, outcome, sample, until, worker_pids
from tests.inference.engine.probes import CUDA, DIE, FINE, HOLD, PASSWORD, RELEASE, SLEEP
from tests.processes import is_running

LONG = 600
"""Seconds that a worker computes unless it is interrupted."""


async def test_a_killed_worker_loses_no_request(probe_copy: Path, serve: Serve) -> None:
    class Listener(Observer):
        ends: list[str] = []  # noqa: RUF012

        def worker_ended(self, reason: str) -> None:
            self.ends.append(reason)

    async with serve(probe_copy, Listener(), max_batch=2) as engine:
        (pid,) = worker_pids(engine)
        begun = asyncio.create_task(infer(engine.pool, sample(HOLD, LONG, count=2)))
        await until(lambda: not engine.pool.idle)
        # The worker already has a second full batch, so the third request is queued.
        queued = [asyncio.create_task(infer(engine.pool, sample(FINE, value=n))) for n in range(3)]
        await until(lambda: engine.queued == 1)
        (probe_copy / RELEASE).touch()
        os.kill(pid, signal.SIGKILL)
        assert (await begun).batch == 2
        answers = await asyncio.gather(*queued)
        assert [answer.outputs["value"][0] for answer in answers] == [0, 1, 2]
        assert engine.reason == ""
        assert worker_pids(engine) != [pid]
    assert Listener.ends == ["it was killed by signal 9"]


async def test_request_that_kills_workers_fails_alone(probe: Path, serve: Serve) -> None:
    async with serve(probe, max_batch=8) as engine:
        busy = asyncio.create_task(infer(engine.pool, sample(SLEEP, 0.3)))
        await until(lambda: not engine.pool.idle)
        kinds = [FINE, FINE, DIE, FINE]
        together = [asyncio.create_task(outcome(infer(engine.pool, sample(k)))) for k in kinds]
        await busy
        first, second, poison, last = await asyncio.gather(*together)
        assert isinstance(poison, UnavailableError)
        assert "died: it was killed by signal 9" in str(poison)
        assert poison.retry_after > 0
        assert [answer.batch for answer in (first, second, last)] == [1, 1, 1]
        assert engine.reason == ""


async def test_consecutive_worker_deaths_make_the_server_temporarily_unready(
    probe: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "MAX_DEATHS", 2)
    monkeypatch.setattr(backoff, "MAX_DELAY", 0.5)
    async with serve(probe) as engine:
        for _ in range(2):
            assert isinstance(await outcome(infer(engine.pool, sample(DIE))), UnavailableError)
        assert engine.reason == "workers died 2 times in a row: it was killed by signal 9"
        with pytest.raises(UnavailableError, match="2 times in a row"):
            await infer(engine.pool, sample(FINE))
        await until(lambda: engine.reason == "")
        assert (await infer(engine.pool, sample(FINE))).batch == 1


async def test_gpu_error_ends_the_worker(probe: Path, serve: Serve) -> None:
    async with serve(probe) as engine:
        (pid,) = worker_pids(engine)
        with pytest.raises(UnavailableError, match="died: it exited with code"):
            await infer(engine.pool, sample(CUDA))
        assert (await infer(engine.pool, sample(FINE))).batch == 1
        assert worker_pids(engine) != [pid]


async def test_a_hanging_worker_is_replaced(probe: Path, serve: Serve) -> None:
    async with serve(probe, hang_seconds=3) as engine:
        with pytest.raises(UnavailableError, match=r"a batch took more than 3 s"):
            await infer(engine.pool, sample(SLEEP, LONG))
        assert (await infer(engine.pool, sample(FINE))).batch == 1


async def test_workers_compute_concurrently(probe_copy: Path, serve: Serve) -> None:
    async with serve(probe_copy, workers=2) as engine:
        assert len(worker_pids(engine)) == 2
        begun = asyncio.create_task(infer(engine.pool, sample(HOLD, LONG)))
        await until(lambda: not engine.pool.idle)
        assert (await infer(engine.pool, sample(FINE))).batch == 1
        pids = worker_pids(engine)
        (probe_copy / RELEASE).touch()
        assert (await begun).batch == 1
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        # A request sent to a dead worker whose death is not yet detected would be lost.
        await until(lambda: not set(pids) & set(worker_pids(engine)))
        assert (await infer(engine.pool, sample(FINE))).batch == 1


async def test_shutdown_finishes_requests_and_leaks_no_resources(probe: Path, serve: Serve) -> None:
    files_before = set(Path("/proc/self/fd").iterdir())
    async with serve(probe, max_batch=1) as engine:
        pids = worker_pids(engine)
        begun = [asyncio.create_task(infer(engine.pool, sample(SLEEP, 0.1))) for _ in range(3)]
        await until(lambda: not engine.pool.idle)
        engine.drain()
        assert engine.draining
        assert engine.reason == "the server is shutting down"
        begun.append(asyncio.create_task(infer(engine.pool, sample(FINE))))
        await asyncio.sleep(0)
    assert len(await asyncio.gather(*begun)) == 4
    with pytest.raises(UnavailableError):
        await infer(engine.pool, sample(FINE))
    assert not any(map(psutil.pid_exists, pids))
    # The fork server's files stay open, but their number does not grow.
    assert len(set(Path("/proc/self/fd").iterdir()) - files_before) <= 4
    assert not list(Path("/dev/shm").glob("inference*"))


async def test_requests_that_exceed_the_drain_time_are_abandoned(probe: Path, serve: Serve) -> None:
    async with serve(probe, drain_seconds=1) as engine:
        begun = asyncio.create_task(infer(engine.pool, sample(SLEEP, LONG)))
        await until(lambda: not engine.pool.idle)
    with pytest.raises(UnavailableError, match="the server is shutting down"):
        await begun


async def test_drain_time_can_be_shortened_during_shutdown(probe: Path, serve: Serve) -> None:
    async with serve(probe, drain_seconds=600) as engine:
        begun = asyncio.create_task(infer(engine.pool, sample(SLEEP, 600)))
        await until(lambda: not engine.pool.idle)
        async with asyncio.timeout(60):
            await engine.close(0)
        with pytest.raises(UnavailableError, match="the server is shutting down"):
            await begun


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (
            "tests.inference.engine.probes:Liar",
            "handler returned the outputs .'value'., but declared",
        ),
        ("tests.inference.engine.probes:NoHandler", "is a NoHandler: it must be an"),
        ("tests.inference.engine.probes:Missing", "AttributeError: see load_failed in the server"),
        ("tests.inference.engine.probes:Exiting", "SystemExit: see load_failed in the server"),
        ("tests.inference.engine.probes:Unreachable", "OSError: see load_failed in the server"),
        ("auto", "unknown model probe"),
    ],
)
async def test_an_invalid_handler_is_reported(
    handler: str, message: str, probe: Path, serve: Serve
) -> None:
    async with serve(probe, handler=handler, ready=False) as engine:
        await until(lambda: "not loaded yet" not in engine.reason)
        service = Service(engine.config, engine, Metrics())
        with pytest.raises(UnavailableError, match=message) as failure:
            service.pool()
        assert PASSWORD not in str(failure.value)
        assert engine.served is None
        await until(lambda: not worker_pids(engine))


SERVER = """
import asyncio, math, sys
import numpy as np
from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine

async def serve(folder, handler):
    engine = ModelEngine(InferenceConfig(
        model_name="probe", model_path=folder, handler=handler, device="cpu", threads=1
    ))
    await engine.start()
    while engine.served is None:
        await asyncio.sleep(0.01)
    print(*(worker._process.pid for worker in engine.pool._workers), flush=True)
    await engine.pool.submit({"inputs": np.float32([[1, 600, 0]])}, math.inf).future

if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
"""


async def test_workers_exit_when_the_server_is_killed(probe: Path, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = [sys.executable, tmp_path / "server.py", probe]
    with subprocess.Popen(
        [*command, "tests.inference.engine.probes:Probe"],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b'{"event": "loaded"')
        pids = [child.pid for child in psutil.Process(server.pid).children(recursive=True)]
        assert int(server.stdout.readline()) in pids
        server.kill()
    # Workers that nothing has reaped yet are zombies.
    await until(lambda: not any(map(is_running, pids)))


def test_the_server_process_does_not_import_torch() -> None:
    check = "import sys, inference.engine.engine; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_isolated_worker_deaths_do_not_delay_the_restart() -> None:
    deaths = Backoff()
    assert [deaths.died(100 * turn, "signal 9") for turn in range(1, 9)] == [0] * 8
    assert deaths.reason(900) == ""


def test_worker_deaths_between_successful_batches_keep_the_server_ready() -> None:
    deaths = Backoff()
    for turn in range(6):
        assert deaths.died(turn, "poison") == 0
        deaths.succeeded()
        assert deaths.reason(turn) == ""


def test_two_worker_deaths_caused_by_one_request_count_as_one() -> None:
    deaths = Backoff()
    for turn in range(2):
        deaths.died(turn, "signal 9")
        assert deaths.died(turn, "signal 9", retried=True) == 0
        assert deaths.reason(turn) == ""


def test_three_requests_that_each_kill_a_worker_count_as_three_deaths() -> None:
    deaths = Backoff()
    deaths.died(0, "signal 9")
    assert [deaths.died(0, "signal 9", retried=True) for _ in range(3)] == [0, 0, 1]
    assert deaths.reason(0) == "workers died 3 times in a row: signal 9"


def test_consecutive_worker_deaths_increase_the_restart_delay() -> None:
    deaths = Backoff()
    assert [deaths.died(turn, "signal 9") for turn in range(10)] == [
        0,
        0,
        1,
        2,
        4,
        8,
        16,
        30,
        30,
        30,
    ]
    assert deaths.reason(10) == "workers died 10 times in a row: signal 9"
    assert deaths.reason(39) != ""
    assert deaths.reason(40) == ""
    assert deaths.died(71, "signal 9") == 0
