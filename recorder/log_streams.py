"""Streams of container logs.

Logs are streamed while the containers run, because logs of deleted pods are not available.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from httpx2 import HTTPError, HTTPStatusError, Timeout, codes
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Pod
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random_exponential

from recorder.pods import Attempt

END_SECONDS: Final = 5.0
"""Time (s) to wait for the remaining log lines after a container has terminated."""

MAX_STREAMS: Final = 90
"""Maximum number of log streams per HTTP/2 connection. API servers allow at least 100. A stream
above the server's limit would block until another stream ends."""

RETRY_SECONDS: Final = 60.0
"""Time (s) for which a request is retried, for example while the API server restarts."""

_REQUEST_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)


def _is_temporary(error: BaseException) -> bool:
    """Return whether a request may succeed later; False, for example, if the pod does not exist."""
    if isinstance(error, HTTPStatusError):
        code = error.response.status_code
        return code >= codes.INTERNAL_SERVER_ERROR or code == codes.TOO_MANY_REQUESTS
    return isinstance(error, HTTPError)


def _is_attempt(pod: Pod, attempt: Attempt, previous: bool) -> bool:
    """Return whether a pod's log, requested with or without `previous`, belongs to an attempt."""
    statuses = (pod.status and pod.status.containerStatuses) or []
    counts = [each.restartCount for each in statuses if each.name == attempt.container]
    has_restarted = any(count > attempt.restarts + previous for count in counts)
    return pod.metadata is not None and pod.metadata.uid == attempt.uid and not has_restarted


class Tail:
    """The last lines of a stream, bounded in number and in bytes.

    The first of these lines may be incomplete.
    """

    def __init__(self, max_lines: int, max_bytes: int) -> None:
        self._max_lines, self._max_bytes = max_lines, max_bytes
        self._content = bytearray()

    def add(self, content: bytes) -> None:
        """Append content, which may end anywhere in a line."""
        self._content += content
        if len(self._content) > 2 * self._max_bytes:
            del self._content[: -self._max_bytes - 1]  # a final line break is not counted

    @property
    def lines(self) -> list[str]:
        """The last lines, oldest first."""
        content = self._content.removesuffix(b"\n")[-self._max_bytes :]
        lines = content.decode(errors="replace").split("\n")[-self._max_lines :]
        return lines if content else []


class LogStreams:
    """Streams of container logs, with the last lines of each log and their timestamps."""

    def __init__(self, connect: Callable[[], AsyncClient], max_lines: int, max_bytes: int) -> None:
        self._connect, self._max_lines, self._max_bytes = connect, max_lines, max_bytes
        self._client = connect()
        self._connections: list[tuple[AsyncClient, asyncio.Semaphore]] = []
        self._tails: dict[Attempt, Tail] = {}
        self._interrupted: set[Attempt] = set()
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}

    def follow(self, attempt: Attempt) -> None:
        """Start streaming the log of a running container, unless it is already being streamed.

        A stream may end while the container is running, for example if the kubelet restarts.
        """
        if (task := self._tasks.get(attempt)) is None or task.done():
            self._tasks[attempt] = asyncio.create_task(self._read(attempt))

    async def last_lines(self, attempt: Attempt, restarted: bool = False) -> list[str]:
        """Return a terminated container's last log lines.

        Request them if none were streamed, or if the stream was interrupted. If the container has
        been `restarted` since, request its log from before the restart.
        """
        task = self._tasks.get(attempt)
        if task is not None:
            await asyncio.wait({task}, timeout=END_SECONDS)
        tail = self._tails.get(attempt)
        lines = [] if tail is None else tail.lines
        if not lines or attempt in self._interrupted:
            with contextlib.suppress(HTTPError):  # the pod may no longer exist
                return await self._request(attempt, restarted) or lines
        return lines

    def drop(self, attempt: Attempt) -> None:
        """Stop a container's stream and drop its lines."""
        if (task := self._tasks.pop(attempt, None)) is not None:
            task.cancel()
        self._tails.pop(attempt, None)
        self._interrupted.discard(attempt)

    def forget(self, uid: str) -> None:
        """Stop the streams and drop the lines of a deleted pod."""
        for attempt in {*self._tasks, *self._tails}:
            if attempt.uid == uid:
                self.drop(attempt)

    @retry(
        wait=wait_random_exponential(multiplier=0.5, max=10),
        stop=stop_after_delay(RETRY_SECONDS),
        retry=retry_if_exception(_is_temporary),
        reraise=True,
    )
    async def _request(self, attempt: Attempt, previous: bool) -> list[str]:
        tail = Tail(self._max_lines, self._max_bytes)
        async for content in self._content(self._client, attempt, previous=previous):
            tail.add(content)
        # The log may belong to a pod that was created later under the same name, or, after a retry,
        # to a container that has restarted.
        pods = self._client.list(Pod, fields={"metadata.name": attempt.pod})
        is_same = [_is_attempt(pod, attempt, previous) async for pod in pods]
        return tail.lines if any(is_same) else []

    async def _read(self, attempt: Attempt) -> None:
        """Stream a container's log into its tail until the log ends."""
        # A restarted stream receives the last lines again, so it starts with an empty tail. If it
        # receives nothing, for example because the node is lost, the earlier lines are kept.
        tail = Tail(self._max_lines, self._max_bytes)
        client, slots = self._connection()
        try:
            async with slots:
                async for content in self._content(client, attempt, follow=True):
                    tail.add(content)
                    self._tails[attempt] = tail
        except HTTPError as error:
            _log.warning("log stream of %s interrupted: %s", attempt.pod, type(error).__name__)
            # The lines received so far are kept. The next update of the pod restarts the stream.
            self._interrupted.add(attempt)
        else:
            self._interrupted.discard(attempt)

    async def _content(
        self, client: AsyncClient, attempt: Attempt, *, follow: bool = False, previous: bool = False
    ) -> AsyncIterator[bytes]:
        # lightkube's method is not used, because it keeps whole lines in memory and cannot request
        # the log from before a restart.
        url = f"/api/v1/namespaces/{client.namespace}/pods/{attempt.pod}/log"
        parameters: dict[str, str | int] = {
            "container": attempt.container,
            "tailLines": self._max_lines,
            "timestamps": True,
            "follow": follow,
            "previous": previous,
        }
        # A container may run for days without output.
        timeout = Timeout(_REQUEST_SECONDS, read=None if follow else _REQUEST_SECONDS)
        http = client._client._client
        async with http.stream("GET", url, params=parameters, timeout=timeout) as response:
            response.raise_for_status()
            async for content in response.aiter_bytes():
                yield content

    def _connection(self) -> tuple[AsyncClient, asyncio.Semaphore]:
        """Return a connection that has capacity for another stream."""
        for connection in self._connections:
            if not connection[1].locked():
                return connection
        client = self._connect()
        self._connections.append((client, asyncio.Semaphore(MAX_STREAMS)))
        return self._connections[-1]
