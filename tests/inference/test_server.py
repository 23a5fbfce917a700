"""Reloads of the model server at signals."""

import asyncio
import os
import signal
from typing import cast

from inference.engine.engine import ModelEngine
from inference.server import _reload_at_signals


class Engine:
    """An engine that loads the current version slowly."""

    def __init__(self) -> None:
        self.current = self.served = 0
        self.loads = 0
        self._reloading = asyncio.Lock()

    async def reload(self) -> None:
        async with self._reloading:
            self.loads += 1
            loading = self.current
            await asyncio.sleep(0.05)
            self.served = loading


def test_signal_during_a_reload_triggers_another_reload() -> None:
    async def serve() -> Engine:
        engine = Engine()
        _reload_at_signals(cast(ModelEngine, engine))
        for version in (1, 2, 3):
            engine.current = version
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        return engine

    engine = asyncio.run(serve())
    assert (engine.served, engine.loads) == (3, 2)
