"""Streams of container logs.

Logs are streamed while the containers run, because logs of deleted pods are not available.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from httpx2 import HTTPError, Response
from lightkube import AsyncClient

from recorder.pods import Attempt

END_SECONDS: Final = 5.0
"""Time (s) to wait for the remaining log lines after a container has terminated."""

MAX_STREAMS: Final = 90
"""Maximum number of log streams per HTTP/2 connection. API servers allow at least 100. A stream
above the server's limit would block until another stream ends."""

_log = logging.getLogger(__name__)


class Tail:
    """The last lines of a stream, bounded in number and in bytes."""

    def __init__(self, max_lines: int, max_bytes: int) -> None:
        self._max_lines, self._max_bytes = max_lines, max_bytes
        self._lines: deque[str] = deque()
        self._bytes = 0

    def add(self, line: str) -> None:
        """Append a line. If the line alone exceeds the maximum size, keep only its end."""
        line = line.encode(errors="replace")[-self._max_bytes :].decode(errors="ignore")
        self._lines.append(line)
        self._bytes += _size(line)
        while len(self._lines) > self._max_lines or self._bytes > self._max_bytes:
            self._bytes -= _size(self._lines.popleft())

    @property
    def lines(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines)


def _size(line: str) -> int:
    return len(line.encode(errors="replace"))


class LogStreams:
    """Streams of container logs, with the last lines of each log and their timestamps."""

    def __init__(self, connect: Callable[[], AsyncClient], max_lines: int, max_bytes: int) -> None:
        self._connect, self._max_lines, self._max_bytes = connect, max_lines, max_bytes
        self._client = connect()
        self._connections: list[tuple[AsyncClient, asyncio.Semaphore]] = []
        self._tails: dict[Attempt, Tail] = {}
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}

    def follow(self, attempt: Attempt) -> None:
        """Start streaming the log of a running container, unless it is already being streamed.

        A stream may end while the container is running, for example if the kubelet restarts.
        """
        if (task := self._tasks.get(attempt)) is None or task.done():
            self._tasks[attempt] = asyncio.create_task(self._read(attempt))

    async def last_lines(self, attempt: Attempt, restarted: bool = False) -> list[str]:
        """Return a terminated container's last log lines. Request them if none were streamed.

        If the container has been restarted since, its log from before the restart is requested.
        """
        task = self._tasks.get(attempt)
        if task is not None:
            await asyncio.wait({task}, timeout=END_SECONDS)
        tail = self._tails.get(attempt)
        if tail is None or not tail.lines:
            with contextlib.suppress(HTTPError):  # the pod no longer exists
                return await self._request(attempt, restarted)
        return [] if tail is None else tail.lines

    def drop(self, attempt: Attempt) -> None:
        """Stop a container's stream and drop its lines."""
        if (task := self._tasks.pop(attempt, None)) is not None:
            task.cancel()
        self._tails.pop(attempt, None)

    def forget(self, uid: str) -> None:
        """Stop the streams and drop the lines of a deleted pod."""
        for attempt in {*self._tasks, *self._tails}:
            if attempt.uid == uid:
                self.drop(attempt)

    async def _request(self, attempt: Attempt, previous: bool) -> list[str]:
        # lightkube cannot request the log from before a restart, and reads whole logs at once.
        url = f"/api/v1/namespaces/{self._client.namespace}/pods/{attempt.pod}/log"
        parameters: dict[str, str | int] = {
            "container": attempt.container,
            "tailLines": self._max_lines,
            "timestamps": True,
            "previous": previous,
        }
        tail = Tail(self._max_lines, self._max_bytes)
        async with self._client._client._client.stream("GET", url, params=parameters) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                tail.add(line)
        return tail.lines

    async def _read(self, attempt: Attempt) -> None:
        """Stream a container's log into its tail until the log ends."""
        # A restarted stream receives the last lines again, so it starts with an empty tail. If it
        # receives nothing, for example because the node is lost, the earlier lines are kept.
        tail = Tail(self._max_lines, self._max_bytes)
        client, slots = self._connection()
        try:
            async with slots:
                lines = client.log(
                    attempt.pod,
                    container=attempt.container,
                    follow=True,
                    tail_lines=self._max_lines,
                    timestamps=True,
                    newlines=False,
                )
                async for line in lines:
                    tail.add(line)
                    self._tails[attempt] = tail
        except HTTPError as error:
            _log.warning("log stream of %s interrupted: %s", attempt.pod, type(error).__name__)
            # The lines received so far are kept. The next update of the pod restarts the stream.

    def _connection(self) -> tuple[AsyncClient, asyncio.Semaphore]:
        """Return a connection that has capacity for another stream."""
        for connection in self._connections:
            if not connection[1].locked():
                return connection
        client = self._connect()
        client._client._client.event_hooks["response"].append(_read_error)
        self._connections.append((client, asyncio.Semaphore(MAX_STREAMS)))
        return self._connections[-1]


async def _read_error(response: Response) -> None:
    """Read an error response, so that it is closed.

    lightkube does not close error responses to log requests. Each open response occupies one of the
    connection's HTTP/2 streams, so eventually no log could be streamed.
    """
    if response.is_error:
        await response.aread()
