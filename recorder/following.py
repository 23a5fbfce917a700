"""Logs of containers, followed while they run: what is deleted can be asked for no more."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from httpx2 import HTTPError
from lightkube import AsyncClient

from recorder.pods import Attempt
from recorder.tail import Tail

LATE: Final = 5.0
"""Seconds in which the rest of a log may come after its container's end."""

STREAMS: Final = 90
"""Logs that one connection (HTTP/2) carries: API servers allow 100 streams and more, and whoever
asks for another waits until one of them ends."""

_log = logging.getLogger(__name__)


class Following:
    """The last lines of every container that is followed. Times are in front of the lines."""

    def __init__(self, connect: Callable[[], AsyncClient], lines: int, size: int) -> None:
        self._connect, self._lines, self._size = connect, lines, size
        self._client = connect()
        self._streams: list[tuple[AsyncClient, asyncio.Semaphore]] = []
        self._tails: dict[Attempt, Tail] = {}
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}

    def follow(self, attempt: Attempt) -> None:
        """Begins, unless it is followed already or is over."""
        if attempt not in self._tasks:
            self._tasks[attempt] = asyncio.create_task(self._read(attempt))

    async def last_lines(self, attempt: Attempt) -> list[str]:
        """Of a container that has ended; asked for now where it was not followed."""
        task = self._tasks.get(attempt)
        if task is not None:
            await asyncio.wait({task}, timeout=LATE)
        tail = self._tails.get(attempt)
        if tail is None or not tail.lines:
            with contextlib.suppress(HTTPError):  # the pod is gone
                return await self._ask(attempt)
        return [] if tail is None else tail.lines

    def forget(self, uid: str) -> None:
        """Ends what belongs to a pod that is gone."""
        for attempt in [each for each in self._tasks if each.uid == uid]:
            self._tasks.pop(attempt).cancel()
        for attempt in [each for each in self._tails if each.uid == uid]:
            del self._tails[attempt]

    async def _ask(self, attempt: Attempt) -> list[str]:
        lines = self._client.log(
            attempt.pod,
            container=attempt.container,
            tail_lines=self._lines,
            timestamps=True,
            newlines=False,
        )
        return Tail(self._lines, self._size, [line async for line in lines]).lines

    async def _read(self, attempt: Attempt) -> None:
        # Begun anew after an interruption, it gets the same last lines again.
        tail = self._tails[attempt] = Tail(self._lines, self._size)
        client, free = self._connection()
        try:
            async with free:
                lines = client.log(
                    attempt.pod,
                    container=attempt.container,
                    follow=True,
                    tail_lines=self._lines,
                    timestamps=True,
                    newlines=False,
                )
                async for line in lines:
                    tail.add(line)
        except (HTTPError, RuntimeError) as error:
            # lightkube answers a refusal with a RuntimeError: it reads the reason in the wrong way.
            _log.warning("the log of %s is cut off: %s", attempt.pod, type(error).__name__)
            # What has come is kept; it is followed again when the pod is looked at next.
            self._tasks.pop(attempt, None)

    def _connection(self) -> tuple[AsyncClient, asyncio.Semaphore]:
        """One with room for another log."""
        for stream in self._streams:
            if not stream[1].locked():
                return stream
        self._streams.append((self._connect(), asyncio.Semaphore(STREAMS)))
        return self._streams[-1]
