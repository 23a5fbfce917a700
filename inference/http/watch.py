"""Requests that take longer: ended when their body does not come, or their client has gone.

One look at all of them every tenth of a second, in place of a timer and a task for each: a short
request costs nothing. Connections are looked after as well: when nearly all that may be open are,
answers close theirs, since those that wait to be accepted would wait for others that are idle.
"""

import asyncio
import contextlib
import os
import time
from typing import Final

from inference.http.admission import Admission
from inference.http.exchange import Exchange
from inference.service import Service

LOOKS: Final = 0.1
"""Seconds between two looks."""
KEYS: Final = 50
"""Looks between two at the file of the API keys."""
CONNECTIONS: Final = 10
"""Looks between two at how many connections are open."""
CROWDED: Final = 0.9
"""Share of the connections that may be open."""


class Watch:
    """The requests that are being answered."""

    def __init__(self, service: Service, admission: Admission) -> None:
        self._service, self._admission = service, admission
        self.most = service.config.max_connections
        """Connections that may be open."""
        self.crowded = False
        """Whether answers should close their connections."""
        self._exchanges: set[Exchange] = set()
        self._looking: asyncio.Task[None] | None = None
        self._files = 0

    def start(self) -> None:
        """Begin to look, on the running event loop."""
        self._files = _open_files()
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
            if looks % CONNECTIONS == 0:
                self.crowded = _open_files() - self._files > CROWDED * self.most
            if looks % KEYS == 0:
                self._service.access.refresh()

    def _look_at(self, exchange: Exchange, age: float) -> None:
        if exchange.reading:
            if age > LOOKS:
                # Slow uploads must not keep others out.
                self._admission.leave(exchange)
            # A client that goes away meanwhile ends the reading by itself.
            if age > self._service.config.body_seconds and exchange.task is not None:
                exchange.timed_out = True
                exchange.task.cancel()
        elif exchange.watcher is None and age > LOOKS:
            exchange.watcher = asyncio.create_task(_cancel_when_gone(exchange))


def _open_files() -> int:
    """Those that are opened later are connections. 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  names are all that is needed
    return 0


async def _cancel_when_gone(exchange: Exchange) -> None:
    await exchange.protocol.client_disconnect()
    if exchange.task is not None:
        exchange.task.cancel()
