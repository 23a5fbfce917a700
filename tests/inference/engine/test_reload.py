"""One version after another, while requests come."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from inference.engine.engine import ModelEngine
from inference.engine.interface import ReloadError
from tests.inference.engine.exports import Serve, sample, until, write_probe
from tests.inference.engine.probes import FINE, SLEEP
from workload.manifest import read_manifest


class Load:
    """Clients that ask one after another, until they are told to stop."""

    def __init__(self, engine: ModelEngine) -> None:
        self.versions: Counter[str] = Counter()
        self._engine = engine
        self._on = True
        self._clients = [asyncio.create_task(self._ask()) for _ in range(8)]

    async def _ask(self) -> None:
        while self._on:
            answer = await self._engine.infer(sample(SLEEP, 0.002))
            self.versions[answer.served.version] += 1

    async def stop(self) -> None:
        """Raises what any request was answered with."""
        self._on = False
        await asyncio.gather(*self._clients)


async def test_a_new_version_takes_over_without_a_lost_request(own: Path, serve: Serve) -> None:
    async with serve(own) as engine:
        assert engine.served
        old, pids = engine.served.version, engine.pids
        assert (await engine.reload()).version == old
        assert engine.pids == pids
        load = Load(engine)
        await until(lambda: load.versions[old])
        new = write_probe(own, seed=1).version
        assert (await engine.reload()).version == new
        await until(lambda: load.versions[new])
        await load.stop()
        assert load.versions.keys() == {old, new}
        await until(lambda: len(engine.pids) == 1)
        assert engine.pids != pids


async def test_a_bad_version_keeps_the_old_one(own: Path, serve: Serve) -> None:
    async with serve(own) as engine:
        assert engine.served
        old, pids = engine.served.version, engine.pids
        load = Load(engine)
        write_probe(own, seed=1)
        manifest = own / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"probe"', '"other:Model"'))
        (own / "model.safetensors").write_bytes(b"damaged")
        with pytest.raises(ReloadError, match="7 bytes, its manifest says"):
            await engine.reload()
        manifest.write_text("{")
        with pytest.raises(ReloadError, match=r"manifest\.json is damaged"):
            await engine.reload()
        await load.stop()
        assert load.versions.keys() == {old}
        assert (engine.reason, engine.pids) == ("", pids)


async def test_a_worker_that_dies_when_its_files_are_gone_makes_the_new_version_serve(
    own: Path, serve: Serve
) -> None:
    async with serve(own) as engine:
        new = write_probe(own, seed=1).version
        os.kill(engine.pids[0], signal.SIGKILL)
        await until(lambda: engine.served and engine.served.version == new)
        assert (await engine.infer(sample(FINE))).served.version == new
        assert engine.reason == ""


async def test_an_export_is_served_as_soon_as_it_is_there(tmp_path: Path, serve: Serve) -> None:
    folder = tmp_path / "later"
    async with serve(folder, ready=False) as engine:
        await until(lambda: "is not there yet" in engine.reason)
        manifest = write_probe(folder)
        await until(lambda: engine.served)
        assert engine.served
        assert engine.served.manifest == manifest
        assert engine.reason == ""


async def test_other_weights_than_those_that_are_pinned_are_not_served(
    own: Path, serve: Serve
) -> None:
    digest = read_manifest(own).weights.sha256
    async with serve(own, model_sha256=digest) as engine:
        write_probe(own, seed=1)
        with pytest.raises(ReloadError, match=f"only {digest[:12]}… may be served here"):
            await engine.reload()
