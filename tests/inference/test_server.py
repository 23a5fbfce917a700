"""The life cycle of the model server."""

import asyncio
import os
import signal
from typing import cast

from inference.engine.engine import ModelEngine
from inference.server import _reload_at_signals


class Engine:
    """An engine that takes a while to load the current version."""

    def __init__(self) -> None:
        self.current = self.served = 0
        self.loads = 0
        self._reloading = asyncio.Lock()

    async def reload(self) -> None:
        async with self._reloading:
            self.loads += 1
            found = self.current
            await asyncio.sleep(0.05)
            self.served = found


def test_a_signal_during_a_reload_loads_the_version_that_was_written_in_the_meantime() -> None:
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
