"""Connections without a network, and an application whose answers a test controls."""

import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from inference.config import InferenceConfig
from inference.http.application import Application, Pending
from inference.http.connection import PIECE_BYTES, Connection
from inference.http.limits import Limits
from inference.http.messages import CLIENT_GONE, HttpError, Request, Response
from inference.http.output import TCP_INFO

INFER = b"POST /infer HTTP/1.1\r\nHost: a\r\n"


class Outputs:
    """A model's outputs, which the tests observe through weak references."""


def empty_response(_: Request, __: Outputs, ___: object) -> Response:
    return Response(b"{}")


class Computing:
    """An application that answers when the test sets the result."""

    draining = False
    memory_limit_error = HttpError(503, "busy")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.computations: list[asyncio.Future[object]] = []
        self.outputs: list[weakref.ref[Outputs]] = []
        self.ended: list[str] = []
        """Paths of the requests that were answered or abandoned."""

    def begin(self, request: Request, version: str) -> Response | None:
        request.limit = 1 << 20
        return None

    def assign_id(self, request: Request) -> None:
        request.request_id = "1"

    def answer(self, request: Request, reserve: Callable[[int], bool]) -> Pending | Response:
        if request.path == "/now":
            return Response(b"{}")
        self.computations.append(asyncio.get_running_loop().create_future())
        outputs = Outputs()
        self.outputs.append(weakref.ref(outputs))
        return Pending(self.computations[-1], partial(empty_response, request, outputs))

    def respond(self, request: Request, pending: Pending) -> Response:
        return Response(b"{}")

    def finished(self, request: Request, code: int = CLIENT_GONE) -> None:
        self.ended.append(request.path)


class Transport(asyncio.Transport):
    """A transport that records written bytes and whether reading is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.closed = self.aborted = False
        self.unsent = 0
        self.in_flight = self.delivered = 0
        self.ssl_object: object = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = {"peername": ("10.0.0.1", 1), "ssl_object": self.ssl_object, "socket": self}
        return found.get(name, default)

    def getsockopt(self, *_: int) -> bytes:
        return TCP_INFO.pack(self.in_flight, self.delivered, 0)

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = self.closed = True

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def connected(ssl_object: object = None) -> tuple[Connection, Transport, Computing]:
    limits = Limits(InferenceConfig(model_name="digits", model_path="/none"), 10)
    application, transport = Computing(limits), Transport()
    transport.ssl_object = ssl_object
    connection = Connection(cast(Application, application))
    connection.connection_made(transport)
    return connection, transport, application


def disconnect(connection: Connection) -> None:
    connection.transport.abort()
    connection.connection_lost(None)


def receive(connection: Connection, data: bytes) -> None:
    for start in range(0, len(data), PIECE_BYTES):
        connection.data_received(data[start : start + PIECE_BYTES])
