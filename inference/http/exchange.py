"""One request and its answer."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from inference.engine.interface import (
    DeadlineError,
    InputError,
    OverloadedError,
    RefusedError,
    UnavailableError,
)
from inference.http.rsgi import HTTPProtocol, Scope
from inference.service import NotServedError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Headers = Sequence[tuple[str, str]]

JSON: Final = "application/json"
CLIENT_GONE: Final = 499
"""nginx's code for a client that did not wait; it is counted, and nobody reads it."""


class Response(NamedTuple):
    """What is answered; the request's id is added."""

    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: Headers = ()


class HttpError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Exchange:
    """A request that is being answered."""

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
        # Once: each access copies all of them.
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
        """Whether there is a body that nobody has read, so that the connection has to end."""
        if self.consumed:
            return False
        length = self.header("content-length")
        return length not in (None, "0") or self.header("transfer-encoding") is not None

    def header(self, name: str) -> str | None:
        """The value of a header, or None; names are lower case."""
        value: str | None = self.headers.get(name)
        return value


def json_response(document: object, status: int = 200, headers: Headers = ()) -> Response:
    """A JSON document as an answer."""
    return Response(orjson.dumps(document, default=str), status, headers=headers)


def error_response(error: Exception) -> Response:
    """What an error becomes: as the protocol says, an object with one key, error.

    Raises errors again that no client can cause.
    """
    headers: Headers = ()
    if isinstance(error, HttpError):
        status, headers = error.status, error.headers
    elif isinstance(error, InputError):
        status = 400
    elif isinstance(error, NotServedError):
        status = 404
    elif isinstance(error, RefusedError):
        status = status_of(error)
        headers = (("retry-after", str(max(1, math.ceil(error.retry_after)))),)
    else:
        raise error
    return json_response({"error": str(error)}, status, headers)


def status_of(error: RefusedError) -> int:
    """The code of a refusal; 503 for a kind that is not known here."""
    for kind, status in ((OverloadedError, 429), (DeadlineError, 504), (UnavailableError, 503)):
        if isinstance(error, kind):
            return status
    return 503
