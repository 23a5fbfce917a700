"""Requests that take longer: ended when their body does not come, or their client has gone.

One look at all of them every tenth of a second, in place of a timer and a task for each: a short
request costs nothing.
"""

import asyncio
import time
from typing import Final

from inference.http.exchange import Exchange
from inference.service import Service

LOOKS: Final = 0.1
"""Seconds between two looks."""
KEYS: Final = 50
"""Looks between two at the file of the API keys."""


class Watch:
    """The requests that are being answered."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._exchanges: set[Exchange] = set()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look, on the running event loop."""
        self._looking = asyncio.create_task(self._look())

    def stop(self) -> None:
        """End to look; requests are left alone."""
        if self._looking is not None:
            self._looking.cancel()

    def add(self, exchange: Exchange) -> None:
        """The task that runs now answers this request."""
        exchange.task = asyncio.current_task()
        self._exchanges.add(exchange)

    def remove(self, exchange: Exchange) -> None:
        """It is answered."""
        self._exchanges.discard(exchange)
        if exchange.watcher is not None:
            exchange.watcher.cancel()

    async def _look(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOKS)
            now = time.monotonic()
            for exchange in tuple(self._exchanges):
                self._look_at(exchange, now - exchange.started)
            looks += 1
            if looks % KEYS == 0:
                self._service.access.refresh()

    def _look_at(self, exchange: Exchange, age: float) -> None:
        if exchange.reading:
            # A client that goes away meanwhile ends the reading by itself.
            if age > self._service.config.body_seconds and exchange.task is not None:
                exchange.timed_out = True
                exchange.task.cancel()
        elif exchange.watcher is None and age > LOOKS:
            exchange.watcher = asyncio.create_task(_cancel_when_gone(exchange))


async def _cancel_when_gone(exchange: Exchange) -> None:
    await exchange.protocol.client_disconnect()
    if exchange.task is not None:
        exchange.task.cancel()
