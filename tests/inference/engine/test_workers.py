"""Processes that die, hang, or cannot start, and what becomes of requests then."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from inference.engine.interface import UnavailableError
from inference.engine.observer import Observer
from inference.engine.patience import Limits
from tests.inference.engine.exports import Serve, outcome, sample, until
from tests.inference.engine.probes import DIE, FINE, SLEEP

LONG = 600
"""Seconds that a worker would compute if nothing happened to it."""


async def test_a_killed_worker_loses_only_what_it_was_computing(probe: Path, serve: Serve) -> None:
    class Listener(Observer):
        ends: list[str] = []  # noqa: RUF012

        def worker_ended(self, reason: str) -> None:
            self.ends.append(reason)

    async with serve(probe, Listener(), max_batch=2) as engine:
        (pid,) = engine.pids
        lost = asyncio.create_task(engine.infer(sample(SLEEP, LONG, count=2)))
        await until(lambda: engine.busy)
        # A full batch is with the worker already, another one waits here.
        kept = [asyncio.create_task(engine.infer(sample(FINE, value=n))) for n in range(3)]
        await until(lambda: engine.waiting == 1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(UnavailableError, match="died: it was ended by signal 9") as caught:
            await lost
        assert caught.value.retry_after > 0
        answers = await asyncio.gather(*kept)
        assert [answer.outputs["value"][0] for answer in answers] == [0, 1, 2]
        assert engine.reason == ""
        assert engine.pids != [pid]
    assert Listener.ends == ["it was ended by signal 9"]


async def test_several_deaths_in_a_row_keep_requests_away_for_a_while(
    probe: Path, serve: Serve
) -> None:
    limits = Limits(deaths=2, calm=1.0, first_delay=0.5)
    async with serve(probe, limits=limits) as engine:
        for _ in range(2):
            assert isinstance(await outcome(engine.infer(sample(DIE))), UnavailableError)
        assert engine.reason == "workers died 2 times in a row: it was ended by signal 9"
        with pytest.raises(UnavailableError, match="2 times in a row"):
            await engine.infer(sample(FINE))
        await until(lambda: engine.reason == "")
        assert (await engine.infer(sample(FINE))).batch == 1


async def test_a_worker_that_hangs_is_replaced(probe: Path, serve: Serve) -> None:
    async with serve(probe, hang_seconds=3) as engine:
        with pytest.raises(UnavailableError, match=r"it computed for more than 3 s"):
            await engine.infer(sample(SLEEP, LONG))
        assert (await engine.infer(sample(FINE))).batch == 1


async def test_several_workers_compute_at_the_same_time(probe: Path, serve: Serve) -> None:
    async with serve(probe, workers=2) as engine:
        assert len(engine.pids) == 2
        hanging = asyncio.create_task(engine.infer(sample(SLEEP, LONG)))
        await until(lambda: engine.busy)
        assert (await engine.infer(sample(FINE))).batch == 1
        pids = engine.pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert isinstance(await outcome(hanging), UnavailableError)
        # What is sent to a worker whose death is not known yet would be lost with it.
        await until(lambda: not set(pids) & set(engine.pids))
        assert (await engine.infer(sample(FINE))).batch == 1


async def test_the_end_lets_requests_finish_and_leaves_nothing_behind(
    probe: Path, serve: Serve
) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    async with serve(probe, max_batch=1) as engine:
        pids = engine.pids
        begun = [asyncio.create_task(engine.infer(sample(SLEEP, 0.1))) for _ in range(3)]
        await until(lambda: engine.busy)
        engine.drain()
        assert engine.draining
        assert engine.reason == "the server is shutting down"
        begun.append(asyncio.create_task(engine.infer(sample(FINE))))
        await asyncio.sleep(0)
    assert len(await asyncio.gather(*begun)) == 4
    with pytest.raises(UnavailableError):
        await engine.infer(sample(FINE))
    assert not any(map(psutil.pid_exists, pids))
    # Those of the process that workers are forked from stay; they are no more from time to time.
    assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 4
    assert not list(Path("/dev/shm").glob("inference*"))


async def test_what_does_not_finish_in_time_is_given_up(probe: Path, serve: Serve) -> None:
    async with serve(probe, drain_seconds=1) as engine:
        begun = asyncio.create_task(engine.infer(sample(SLEEP, LONG)))
        await until(lambda: engine.busy)
    with pytest.raises(UnavailableError, match="the server is shutting down"):
        await begun


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("tests.inference.engine.probes:Liar", "the handler gave .'value'., but its outputs are"),
        ("tests.inference.engine.probes:NoHandler", "gave NoHandler: it must be an"),
        ("tests.inference.engine.probes:Missing", "Missing cannot be made: AttributeError"),
        ("auto", "model probe is not known"),
    ],
)
async def test_a_handler_that_cannot_serve_is_told(
    handler: str, message: str, probe: Path, serve: Serve
) -> None:
    async with serve(probe, handler=handler, ready=False) as engine:
        await until(lambda: "not loaded yet" not in engine.reason)
        with pytest.raises(UnavailableError, match=message):
            await engine.infer(sample(FINE))
        assert engine.served is None
        await until(lambda: not engine.pids)


SERVER = """
import asyncio, sys
from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine
from tests.inference.engine.exports import sample

async def serve(folder, handler):
    engine = ModelEngine(InferenceConfig(
        model_name="probe", model_path=folder, handler=handler, device="cpu", threads=1
    ))
    await engine.start()
    while engine.served is None:
        await asyncio.sleep(0.01)
    print(*engine.pids, flush=True)
    await engine.infer(sample(1, 600))

if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
"""


async def test_workers_end_with_a_server_that_was_killed(probe: Path, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = [sys.executable, tmp_path / "server.py", probe]
    with subprocess.Popen(
        [*command, "tests.inference.engine.probes:Probe"],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b'{"event": "loaded"')
        children = psutil.Process(server.pid).children(recursive=True)
        assert int(server.stdout.readline()) in [child.pid for child in children]
        server.kill()
    await until(lambda: not any(child.is_running() for child in children))


def test_the_server_itself_imports_no_torch() -> None:
    check = "import sys, inference.engine.engine; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
