"""Calls beyond what could be computed are refused before their messages are read.

gRPC does not tell how large a message is before it is there, but it reads none that nobody asks
for: only what fits the windows of HTTP/2's flow control arrives. So every call is declared as one
that takes a stream of messages, which looks the same on the wire, and the first one is asked for
here, when there is room for the largest that may come.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from inference.config import InferenceConfig
from inference.engine.interface import DeadlineError, InputError, OverloadedError
from inference.service import Service

Context = grpc.aio.ServicerContext[Any, Any]

_ENVELOPE: Final = 64 * 2**10
"""Bytes of a message beyond its tensors."""


def largest_message(config: InferenceConfig) -> int:
    """Bytes of the largest message that is taken."""
    return config.max_body_bytes + _ENVELOPE


class Intake:
    """Counts the calls between the arrival of their message and their answer, and their bytes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._taken = 0
        config = service.config
        self._turns = asyncio.Semaphore(
            max(1, config.max_buffered_bytes // largest_message(config))
        )

    def check_room(self) -> None:
        """Raises OverloadedError while so many are being answered as could wait and be computed."""
        service = self._service
        if self._taken > service.config.max_queue and self._taken >= service.engine.most:
            raise OverloadedError(
                f"{self._taken} calls are being answered already", service.engine.expected_wait
            )

    @contextlib.asynccontextmanager
    async def admitted(self, context: Context) -> AsyncIterator[bytes]:
        """The message of a call that is to be computed; it counts until the block is left.

        Raises OverloadedError, mostly before reading, and what `read` raises.
        """
        self.check_room()
        content = await self.read(context, bounded=True)
        metrics, most = self._service.metrics, self._service.config.max_buffered_bytes
        if metrics.buffered + len(content) > most:
            raise OverloadedError(f"the bodies of all requests are above {most} bytes: try again")
        metrics.buffered += len(content)
        self._taken += 1
        try:
            yield content
        finally:
            self._taken -= 1
            metrics.buffered -= len(content)

    async def read(self, context: Context, bounded: bool = False) -> bytes:
        """The first message of a call. `bounded` looks again for room when its turn has come.

        Raises InputError where there is none, OverloadedError where its turn does not come within
        `body_seconds`, DeadlineError where it does not arrive within as many from then on.
        """
        async with self._turn():
            if bounded:
                self.check_room()
            # The core writes to the place of a message even when nobody waits any more.
            reading = asyncio.ensure_future(context.read())
            reading.add_done_callback(_forget)
            try:
                async with asyncio.timeout(self._service.config.body_seconds):
                    content = await asyncio.shield(reading)
            except TimeoutError:
                raise DeadlineError("the message did not arrive in time") from None
        if not isinstance(content, bytes):
            raise InputError("the call has no message")
        return content

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One of the places for messages that arrive; others' slowness is not this call's."""
        try:
            async with asyncio.timeout(self._service.config.body_seconds):
                await self._turns.acquire()
        except TimeoutError:
            raise OverloadedError("the messages of others are slow to arrive: try again") from None
        try:
            yield
        finally:
            self._turns.release()


def _forget(reading: "asyncio.Future[Any]") -> None:
    """A call that has ended meanwhile is nobody's mistake."""
    if not reading.cancelled():
        reading.exception()
