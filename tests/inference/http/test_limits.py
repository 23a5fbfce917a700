"""Sweeps over the connections."""

import asyncio
from typing import cast

import pytest

from inference.config import InferenceConfig
from inference.http import limits
from inference.http.connection import Connection
from inference.http.limits import Limits


class Broken:
    """A connection whose check fails."""

    peer = "127.0.0.1"
    aborted = False

    def check(self, _: float) -> None:
        raise RuntimeError("unexpected")

    def abort(self) -> None:
        self.aborted = True


async def test_a_failed_check_closes_its_connection_and_sweeps_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.001)
    config = InferenceConfig(model_name="digits", model_path="/none")
    swept, broken, again = Limits(config, 10), Broken(), asyncio.Event()
    assert swept.add(cast(Connection, broken))
    swept.start(again.set)
    for _ in range(2):
        again.clear()
        await asyncio.wait_for(again.wait(), 60)
    swept.stop()
    assert broken.aborted
    assert "RuntimeError('unexpected')" in capsys.readouterr().out
