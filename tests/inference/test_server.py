"""Reloads of the model server."""

import asyncio
import os
import signal

from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine
from inference.engine.interface import Served
from inference.server import _reload_at_signals
from tests.inference.protocol.models import SERVED


class Engine(ModelEngine):
    """An engine whose loads of the current version take until `finish` is set."""

    def __init__(self) -> None:
        super().__init__(InferenceConfig(model_name="digits", model_path="/none"))
        self.current = self.loaded = 0
        self.loads = 0
        self.finish = asyncio.Event()

    async def _load(self) -> Served:
        self.loads += 1
        loading = self.current
        await self.finish.wait()
        self.loaded = loading
        return SERVED


def test_requests_during_a_reload_share_another_reload() -> None:
    async def serve() -> Engine:
        engine = Engine()
        _reload_at_signals(engine)
        requests = []
        for version in (1, 2, 3):
            engine.current = version
            os.kill(os.getpid(), signal.SIGHUP)
            requests.append(asyncio.create_task(engine.reload()))
            await asyncio.sleep(0.01)
        engine.finish.set()
        assert await asyncio.gather(*requests) == [SERVED] * 3
        return engine

    engine = asyncio.run(serve())
    assert (engine.loaded, engine.loads) == (3, 2)
