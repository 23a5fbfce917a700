"""One HTTP request: its answer, the reading of its body, and the limits on requests in flight."""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

# Granian does not export these types in a way that mypy follows.
from granian.rsgi import HTTPProtocol, Scope  # type: ignore[attr-defined]

from inference.engine.interface import (
    DeadlineError,
    InputError,
    OverloadedError,
    RefusedError,
    UnavailableError,
)
from inference.service import NotServedError, Service

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Headers = Sequence[tuple[str, str]]

JSON: Final = "application/json"
CLIENT_GONE: Final = 499
"""nginx's code for a client that closed the connection: counted in metrics, never sent."""

DISCARDED_BYTES: Final = 4096
"""Size of a body that arrives with its headers: Granian discards it and keeps the connection."""

READ_BYTES: Final = 1 << 16
"""Size of a body that is cheaper to read than a new connection would be."""

CHECK_SECONDS: Final = 0.1
"""Interval of `InFlight`'s checks."""

CHECKS_PER_KEYS: Final = 50
"""Checks between two readings of the API keys."""

CHECKS_PER_CONNECTIONS: Final = 10
"""Checks between two counts of open connections."""

CROWDED: Final = 0.9
"""Share of `max_connections` above which answers close their connections."""

REFUSAL_STATUS: Final = {OverloadedError: 429, DeadlineError: 504, UnavailableError: 503}


class Target(NamedTuple):
    """The model and version in a path; None where the path has none."""

    model: str | None = None
    version: str | None = None


class Response(NamedTuple):
    """An answer; the request ID is added when it is sent."""

    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: Headers = ()


class HttpError(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Exchange:
    """A request in flight."""

    __slots__ = (
        "admitted",
        "body_bytes",
        "code",
        "consumed",
        "headers",
        "method",
        "path",
        "protocol",
        "reading",
        "request_id",
        "span",
        "started",
        "task",
        "timed_out",
        "watcher",
    )

    def __init__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        self.started = time.monotonic()
        self.protocol = protocol
        self.method = scope.method
        self.path = scope.path
        # Read once: each access copies all of them.
        self.headers = scope.headers
        self.request_id = ""
        self.code = 500
        self.body_bytes = 0
        self.admitted = False
        self.consumed = False
        self.reading = False
        self.timed_out = False
        self.task: asyncio.Task[None] | None = None
        self.watcher: asyncio.Task[None] | None = None
        self.span: Span | None = None

    @property
    def unread(self) -> bool:
        """Whether it has a body that was not read, so that the connection must be closed."""
        if self.consumed:
            return False
        length = self.header("content-length")
        return length not in (None, "0") or self.header("transfer-encoding") is not None

    def header(self, name: str) -> str | None:
        """Return the value of a header by its lower-case name."""
        value: str | None = self.headers.get(name)
        return value

    def announces_at_most(self, size: int) -> bool:
        """Return whether the body is announced as at most `size` bytes, without Expect."""
        length = self.header("content-length")
        return length is not None and int(length) <= size and self.header("expect") is None


def json_response(document: object, status: int = 200, headers: Headers = ()) -> Response:
    """Return an answer with a JSON document."""
    return Response(orjson.dumps(document, default=str), status, headers=headers)


def error_response(error: Exception) -> Response:
    """Convert an error to the protocol's form: an object with the key `error`.

    Raises errors that no client can cause again.
    """
    headers: Headers = ()
    if isinstance(error, HttpError):
        status, headers = error.status, error.headers
    elif isinstance(error, InputError):
        status = 400
    elif isinstance(error, NotServedError):
        status = 404
    elif isinstance(error, RefusedError):
        status = REFUSAL_STATUS.get(type(error), 503)
        headers = (("retry-after", str(max(1, math.ceil(error.retry_after)))),)
    else:
        raise error
    return json_response({"error": str(error)}, status, headers)


async def read_body(service: Service, exchange: Exchange) -> bytes:
    """Return the whole body, within the limits on one body and on all bodies together.

    Its memory counts as used until `release_body`. Raises HttpError or OverloadedError, before
    reading if the size is announced.
    """
    if exchange.header("content-encoding") not in (None, "", "identity"):
        raise HttpError(415, "Content-Encoding is not supported: send the body uncompressed")
    announced = exchange.header("content-length")
    if announced is not None:
        # Granian refuses values that are not numbers, and ends the body at this length.
        length = int(announced)
        _check_length(service, length)
        if length == 0:
            return b""
        _count_body(service, exchange, length)
        exchange.reading = True
        body = await exchange.protocol()
    elif exchange.header("transfer-encoding") is not None:
        exchange.reading = True
        chunks = bytearray()
        async for chunk in exchange.protocol:
            _check_length(service, len(chunks) + len(chunk))
            _count_body(service, exchange, len(chunk))
            chunks += chunk
        body = bytes(chunks)
    else:
        return b""
    exchange.reading = False
    exchange.consumed = True
    return body


def release_body(service: Service, exchange: Exchange) -> None:
    """Stop counting the body of an answered request."""
    service.metrics.buffered -= exchange.body_bytes
    exchange.body_bytes = 0


def _check_length(service: Service, length: int) -> None:
    limit = service.config.max_body_bytes
    if length > limit:
        raise HttpError(413, f"the body is larger than {limit} bytes: send fewer samples")


def _count_body(service: Service, exchange: Exchange, size: int) -> None:
    limit = service.config.max_buffered_bytes
    if service.metrics.buffered + size > limit:
        raise OverloadedError(f"the bodies of all requests exceed {limit} bytes: try again")
    service.metrics.buffered += size
    exchange.body_bytes += size


class InFlight:
    """The requests in flight: limits their number, and cancels them if the client is gone.

    The engine's queue sees a request only after it was read and parsed. If requests arrive faster
    than that can be done, they would pile up in the event loop and all wait longer and longer, so
    they are counted and refused before their body is read.

    All requests are checked together every tenth of a second, instead of a timer and a task for
    each: short requests cost nothing. If nearly all connections are in use, answers close theirs:
    connections waiting to be accepted would otherwise wait for idle ones.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.max_connections = service.config.max_connections
        """Maximum number of open connections."""
        self.crowded = False
        """Whether answers should close their connections."""
        self._admitted = 0
        self._exchanges: set[Exchange] = set()
        self._checking: asyncio.Task[None] | None = None
        self._open_files = 0

    def start(self) -> None:
        """Start the checks on the running event loop."""
        self._open_files = _open_files()
        self._checking = asyncio.create_task(self._check_all())

    def stop(self) -> None:
        """Stop the checks; requests continue."""
        if self._checking is not None:
            self._checking.cancel()

    def admit(self, exchange: Exchange) -> bool:
        """Count a request until `release`; return False if there are too many."""
        # The engine could not take more even if all of them had one sample.
        if self._admitted > self._service.config.max_queue and self._admitted >= (
            self._service.engine.max_in_flight
        ):
            return False
        self._admitted += 1
        exchange.admitted = True
        return True

    def release(self, exchange: Exchange) -> None:
        """Stop counting a request, if it is counted."""
        if exchange.admitted:
            exchange.admitted = False
            self._admitted -= 1

    @property
    def refusal(self) -> OverloadedError:
        """The error for a request that was not admitted."""
        return OverloadedError(
            f"{self._admitted} requests are in flight already",
            self._service.engine.estimated_wait,
        )

    async def refuse(self, service: Service, exchange: Exchange, _: Target) -> Response:
        """Raise OverloadedError, after reading a small body so that the connection stays open."""
        refusal = self.refusal
        if exchange.announces_at_most(READ_BYTES):
            await read_body(service, exchange)
        raise refusal

    def add(self, exchange: Exchange) -> None:
        """Watch a request that the current task answers."""
        exchange.task = asyncio.current_task()
        self._exchanges.add(exchange)

    def remove(self, exchange: Exchange) -> None:
        """Stop watching an answered request."""
        self._exchanges.discard(exchange)
        if exchange.watcher is not None:
            exchange.watcher.cancel()

    async def _check_all(self) -> None:
        checks = 0
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = time.monotonic()
            for exchange in tuple(self._exchanges):
                self._check(exchange, now - exchange.started)
            checks += 1
            if checks % CHECKS_PER_CONNECTIONS == 0:
                connections = _open_files() - self._open_files
                self.crowded = connections > CROWDED * self.max_connections
            if checks % CHECKS_PER_KEYS == 0:
                self._service.access.refresh()

    def _check(self, exchange: Exchange, age: float) -> None:
        if exchange.reading:
            if age > CHECK_SECONDS:
                # Slow uploads must not keep other requests out.
                self.release(exchange)
            # If the client disconnects now, the reading itself fails.
            if age > self._service.config.body_seconds and exchange.task is not None:
                exchange.timed_out = True
                exchange.task.cancel()
        elif exchange.watcher is None and age > CHECK_SECONDS:
            exchange.watcher = asyncio.create_task(_cancel_when_gone(exchange))


def _open_files() -> int:
    """Return the number of open files, 0 if unknown. Later ones are connections."""
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  only the names are needed
    return 0


async def _cancel_when_gone(exchange: Exchange) -> None:
    await exchange.protocol.client_disconnect()
    if exchange.task is not None:
        exchange.task.cancel()
