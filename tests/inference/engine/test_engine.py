"""Loading and reloading of models while requests arrive."""

import asyncio
import json
import os
import signal
import tempfile
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from inference.engine.engine import ModelEngine, compile_cache, remove_compiled
from inference.engine.interface import UnavailableError
from tests.inference.engine.exports import Serve, infer, sample, until, worker_pids, write_probe
from tests.inference.engine.probes import FINE, HOLD, RELEASE, SLEEP
from workload.configuration import ConfigurationError
from workload.manifest import ExportError, read_manifest


class Load:
    """Clients that send requests one after another until `stop`."""

    def __init__(self, engine: ModelEngine) -> None:
        self.versions: Counter[str] = Counter()
        self._engine = engine
        self._running = True
        self._clients = [asyncio.create_task(self._send_requests()) for _ in range(8)]

    async def _send_requests(self) -> None:
        while self._running:
            answer = await infer(self._engine.pool, sample(SLEEP, 0.002))
            self.versions[answer.served.version] += 1

    async def stop(self) -> None:
        """Stop the clients, and raise the error of the first request that failed."""
        self._running = False
        await asyncio.gather(*self._clients)


async def test_a_reload_loses_no_request(probe_copy: Path, serve: Serve) -> None:
    async with serve(probe_copy) as engine:
        assert engine.served
        old, pids = engine.served.version, worker_pids(engine)
        assert (await engine.reload()).version == old
        assert worker_pids(engine) == pids
        load = Load(engine)
        await until(lambda: load.versions[old])
        new = write_probe(probe_copy, seed=1).version
        assert (await engine.reload()).version == new
        await until(lambda: load.versions[new])
        await load.stop()
        assert load.versions.keys() == {old, new}
        await until(lambda: len(worker_pids(engine)) == 1)
        assert worker_pids(engine) != pids


async def test_reload_waits_for_a_request_that_exceeds_the_default_deadline(
    probe_copy: Path, serve: Serve
) -> None:
    async with serve(probe_copy, request_seconds=0.1, drain_seconds=1) as engine:
        slow = asyncio.create_task(infer(engine.pool, sample(HOLD, 60, 7)))
        await until(lambda: engine.pool is not None and not engine.pool.idle)
        write_probe(probe_copy, seed=1)
        await engine.reload()
        await asyncio.sleep(1.5)
        (probe_copy / RELEASE).touch()
        assert (await slow).outputs["value"].tolist() == [7]
        await until(lambda: len(worker_pids(engine)) == 1)


async def test_invalid_new_version_does_not_replace_the_served_one(
    probe_copy: Path, serve: Serve
) -> None:
    async with serve(probe_copy) as engine:
        assert engine.served
        old, pids = engine.served.version, worker_pids(engine)
        load = Load(engine)
        write_probe(probe_copy, seed=1)
        manifest = probe_copy / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"probe"', '"other:Model"'))
        (probe_copy / "model.safetensors").write_bytes(b"damaged")
        with pytest.raises(ExportError, match="7 bytes, but the manifest states"):
            await engine.reload()
        manifest.write_text("{")
        with pytest.raises(ExportError, match=r"manifest\.json is damaged"):
            await engine.reload()
        await load.stop()
        assert load.versions.keys() == {old}
        assert (engine.reason, worker_pids(engine)) == ("", pids)


async def test_worker_that_dies_after_its_version_was_overwritten_is_replaced_by_the_new_one(
    probe_copy: Path, serve: Serve
) -> None:
    async with serve(probe_copy) as engine:
        new = write_probe(probe_copy, seed=1).version
        os.kill(worker_pids(engine)[0], signal.SIGKILL)
        await until(lambda: engine.served and engine.served.version == new)
        assert (await infer(engine.pool, sample(FINE))).served.version == new
        assert engine.reason == ""


def fail_starts(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int) -> list[int]:
    """Make the next process starts fail; return a list that gets an item for each failed start."""
    starts: list[int] = []
    start = ForkServerProcess.start

    def failing(self: ForkServerProcess) -> None:
        if len(starts) < times:
            starts.append(1)
            raise error
        start(self)

    monkeypatch.setattr(ForkServerProcess, "start", failing)
    return starts


@pytest.mark.parametrize(
    "error",
    [EOFError(), ConnectionRefusedError("refused"), RuntimeError("can't start new thread")],
)
async def test_failed_start_of_the_first_worker_is_retried(
    error: Exception, probe: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_starts(monkeypatch, error, 1)
    async with serve(probe, ready=False, poll_seconds=0.5) as engine:
        await until(lambda: engine.reason == f"a worker cannot be started: {error!r}")
        await until(lambda: engine.served)
        assert engine.reason == ""


async def test_worker_that_loads_slowly_is_logged(
    probe: Path,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("inference.engine.pool.SLOW_LOAD_SECONDS", 0.0)
    async with serve(probe):
        pass
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"event": "load_slow", "model": "probe", "seconds": 0.0} in events


async def test_manifest_that_cannot_be_read_because_of_too_many_threads_is_read_again(
    probe: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("can't start new thread")
    with monkeypatch.context() as limited:
        limited.setattr(asyncio, "to_thread", AsyncMock(side_effect=error))
        async with serve(probe, ready=False) as engine:
            await until(lambda: engine.reason == f"the manifest cannot be read: {error!r}")
            limited.undo()
            await until(lambda: engine.served)


async def test_failed_start_of_a_replacement_worker_is_retried(
    probe: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(probe) as engine:
        starts = fail_starts(monkeypatch, EOFError(), 1)
        os.kill(worker_pids(engine)[0], signal.SIGKILL)
        await until(lambda: starts and engine.reason)
        assert engine.reason == "a worker cannot be started: EOFError()"
        await until(lambda: not engine.reason)
        await infer(engine.pool, sample(FINE))


async def test_failed_worker_start_during_a_reload_keeps_the_served_version(
    probe_copy: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(probe_copy) as engine:
        write_probe(probe_copy, seed=1)
        fail_starts(monkeypatch, EOFError(), 1)
        with pytest.raises(ExportError, match="a worker cannot be started"):
            await engine.reload()
        assert (engine.reason, engine.reload_failures) == ("", 1)
        await engine.reload()


async def test_a_server_without_workers_is_unready(
    probe: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def do_not_start(*_: object) -> None: ...

    async with serve(probe) as engine:
        monkeypatch.setattr(engine.pool, "_replace", do_not_start)
        os.kill(worker_pids(engine)[0], signal.SIGKILL)
        await until(lambda: engine.reason)
        assert engine.reason == "no worker is running"


async def test_server_is_unready_if_the_replacement_of_its_only_worker_does_not_load(
    probe: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load_forever(*_: object) -> None:
        await asyncio.Event().wait()

    async with serve(probe, request_seconds=0.5) as engine:
        monkeypatch.setattr(engine.pool, "_start", load_forever)
        os.kill(worker_pids(engine)[0], signal.SIGKILL)
        await until(lambda: not worker_pids(engine))
        assert engine.reason == ""
        await until(lambda: engine.reason)
        assert engine.reason == "no worker is running: a replacement is still loading the model"
        with pytest.raises(UnavailableError, match="still loading"):
            await infer(engine.pool, sample(FINE))


async def test_an_export_is_served_once_it_exists(tmp_path: Path, serve: Serve) -> None:
    folder = tmp_path / "later"
    async with serve(folder, ready=False) as engine:
        await until(lambda: "does not exist yet" in engine.reason)
        manifest = write_probe(folder)
        await until(lambda: engine.served)
        assert engine.served
        assert engine.served.manifest == manifest
        assert engine.reason == ""


async def test_best_run_of_a_sweep_is_served_once_its_link_exists(
    tmp_path: Path, serve: Serve
) -> None:
    run = tmp_path / "digits-1a2b3c4d"
    run.mkdir()
    manifest = write_probe(run / "export")
    link = tmp_path / "digits-sweep" / "winner-0a1b2c3d"
    link.parent.mkdir()
    async with serve(link / "export", ready=False) as engine:
        await until(lambda: "does not exist yet" in engine.reason)
        link.symlink_to("../digits-1a2b3c4d")
        await until(lambda: engine.served)
        assert engine.served
        assert engine.served.manifest == manifest


async def test_weights_that_do_not_match_the_pinned_digest_are_not_served(
    probe_copy: Path, serve: Serve
) -> None:
    digest = read_manifest(probe_copy).weights.sha256
    async with serve(probe_copy, model_sha256=digest) as engine:
        write_probe(probe_copy, seed=1)
        with pytest.raises(ExportError, match=f"only {digest[:12]}… may be served here"):
            await engine.reload()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_compile_cache_survives_a_restart(temporary: Path) -> None:
    folder = compile_cache()
    assert folder == compile_cache()
    assert (folder.parent, folder.stat().st_mode & 0o777) == (temporary, 0o700)
    for name in ("ab-1.pt2", "ab-2.pt2", "cd-1.pt2"):
        (folder / name).touch()
    remove_compiled(folder, "ab")
    assert [path.name for path in folder.iterdir()] == ["cd-1.pt2"]


def test_missing_temporary_directory_is_an_error_that_names_the_remedy(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(ConfigurationError, match="set TMPDIR to a writable directory"):
        compile_cache()


def test_a_compile_cache_writable_by_others_is_not_used(temporary: Path) -> None:
    first = compile_cache()
    first.chmod(0o755)
    second = compile_cache()
    assert second != first
    first.rmdir()
    (temporary / "elsewhere").mkdir(mode=0o700)
    first.symlink_to(temporary / "elsewhere")
    assert compile_cache() not in (first, temporary / "elsewhere")
    for target in (temporary / "missing", temporary / "file"):
        first.unlink()
        first.symlink_to(target)
        assert compile_cache() != first
        (temporary / "file").touch()
