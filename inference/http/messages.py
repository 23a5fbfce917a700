"""HTTP requests and responses, independent of connections."""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import orjson

from inference.engine.interface import (
    DeadlineError,
    InputError,
    OverloadedError,
    RejectedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from inference.http.application import Pending, Route

Headers = Sequence[tuple[str, str]]

JSON: Final = "application/json"
JSON_LENGTH: Final = "inference-header-content-length"
"""Header with the length of the JSON in requests and responses that also have binary tensors."""
LARGE_JSON: Final = 1 << 16
"""Size (bytes) of JSON, or of values to write as JSON, above which the conversion may delay other
requests, so connections take turns."""
LARGE_STRINGS: Final = 1 << 13
"""Size (bytes) of a body above which the same applies if the model reads strings, because each
string takes about 0.3 µs."""
CLIENT_GONE: Final = 499
"""nginx's status code for a client that disconnected. It is counted in metrics and never sent."""

MAX_ENCODED_PATH: Final = 1 << 10
"""Maximum length of a path that is decoded. Longer ones match no route, and decoding 16 KiB would
block the event loop for up to 2 ms."""

MAX_JOINED_BYTES: Final = 1 << 14
"""Maximum size (bytes) of a body that is sent together with its head, which requires a copy."""

_ORIGIN: Final = re.compile(r"^https?://[^/]*", re.IGNORECASE)
"""Scheme and authority of a request target in absolute form (RFC 9112, section 3.2.2)."""

_STATUS: Final[dict[type[BaseException], int]] = {
    InputError: 400,
    OverloadedError: 429,
    UnavailableError: 503,
    DeadlineError: 504,
}

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}


class HttpError(Exception):
    """A response with an error status."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Response(NamedTuple):
    """A response without its request ID, which `encode` adds."""

    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: Headers = ()
    values: Sequence[memoryview] = ()
    """Binary values that follow `body`."""

    @property
    def size(self) -> int:
        """Size (bytes) of the body with the binary values."""
        return len(self.body) + sum([value.nbytes for value in self.values])

    def encode(self, request: "Request", close: bool) -> "Sequence[bytes | memoryview]":
        """Return the parts to send. The parts of a large body are not copied."""
        size = self.size
        lines = "connection: close\r\n" if close else ""
        for name, value in self.headers:
            lines += f"{name}: {value}\r\n"
        head = (
            f"{_STATUS_LINES[self.status]}content-type: {self.media_type}\r\ncontent-length: "
            f"{size}\r\nx-request-id: {request.request_id}\r\n{lines}\r\n"
        ).encode("latin-1")
        parts: list[bytes | memoryview] = [head]
        if request.method != "HEAD":
            parts += self.body, *self.values
        if size <= MAX_JOINED_BYTES:
            return [b"".join(parts)]
        return [part for part in parts if part]


@dataclass(slots=True, eq=False)
class Request:
    """A request, from its first header to its response."""

    started: float = field(default_factory=time.monotonic)
    method: str = ""
    path: str = ""
    request_id: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | bytearray = b""
    charged: int = 0
    """Bytes of the body and the response that count against `max_buffered_bytes`."""
    close: bool = False
    """True if the connection is closed after the response."""
    counted: bool = False
    limit: int = 0
    """Maximum size (bytes) of the body."""
    key: str = ""
    """Name of the caller's API key."""
    reads_strings: bool = False
    """True if the body contains strings, which are read one by one, even in binary form."""
    peer: str = ""
    """Client, for fair sharing: the name of its API key, or its address."""
    response: Response | None = None
    """The response, if it is known before the body has arrived."""
    pending: "Pending | None" = None
    """The response that is being computed."""
    route: "Route | None" = None
    version: str | None = None
    """Version in the path; None if the path has none."""
    span: "Span | None" = None

    def decode_path(self) -> None:
        """Remove the origin and the query from the path, and decode its segments.

        Encoded slashes stay encoded. Otherwise, they would separate segments here, but not in a
        proxy that restricts access by path.
        """
        path = self.path.partition("?")[0]
        path = path if path.startswith("/") else _ORIGIN.sub("", path)
        encoded = "%" in path and len(path) <= MAX_ENCODED_PATH
        self.path = unquote(re.sub("(?i)%(?=2f)", "%25", path)) if encoded else path

    def append(self, data: bytes) -> None:
        """Append a part of the body."""
        if not self.body:
            self.body = data
        elif isinstance(self.body, bytearray):
            self.body += data
        else:
            self.body = bytearray(self.body) + data

    @property
    def length(self) -> int | None:
        """The declared size of the body; None if it is sent in chunks."""
        if "transfer-encoding" in self.headers:
            return None
        # Python refuses to convert thousands of digits, even if they are zeros.
        return int(self.headers.get("content-length", "").lstrip("0") or 0)

    @property
    def is_slow(self) -> bool:
        """True if parsing the body may delay other requests."""
        large = LARGE_STRINGS if self.reads_strings else LARGE_JSON
        if len(self.body) <= large or self.response is not None:
            return False
        length = "" if self.reads_strings else self.headers.get(JSON_LENGTH, "")
        return not length.isdecimal() or len(length) > 9 or int(length) > LARGE_JSON

    @property
    def too_large_error(self) -> HttpError:
        """The error for a body that exceeds the limit."""
        if JSON_LENGTH in self.headers:
            return HttpError(413, f"the body is larger than {self.limit} bytes: send fewer samples")
        return HttpError(
            413, f"the JSON is larger than {self.limit} bytes: send the values as binary tensors"
        )


def json_response(document: object, status: int = 200, headers: Headers = ()) -> Response:
    """Return a response with a JSON document."""
    return Response(orjson.dumps(document, default=str), status, headers=headers)


def error_response(error: BaseException) -> Response:
    """Convert an error to the protocol's format, an object with an `error` key.

    Re-raise unexpected errors, to which the application responds with status 500.
    """
    if isinstance(error, HttpError):
        return json_response({"error": str(error)}, error.status, error.headers)
    if type(error) not in _STATUS:
        raise error
    headers: Headers = ()
    if isinstance(error, RejectedError):
        headers = (("retry-after", str(max(1, math.ceil(error.retry_after)))),)
    return json_response({"error": str(error)}, _STATUS[type(error)], headers)
