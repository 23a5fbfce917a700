"""Limits on the memory and time of one connection, without a network."""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from inference.config import InferenceConfig
from inference.http.application import Application, Pending
from inference.http.connection import PIECE_BYTES, Connection
from inference.http.limits import Limits
from inference.http.messages import CLIENT_GONE, HttpError, Request, Response
from inference.http.output import HIGH_WATER, TCP_INFO

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


@pytest.mark.parametrize("trailer", [b"A: " + b"x" * 200_000, b"A: x\r\n" * 20_000])
async def test_trailers_are_limited_like_headers_and_not_stored(trailer: bytes) -> None:
    connection, transport, _ = connected()
    receive(connection, INFER + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + trailer)
    assert transport.written.startswith(b"HTTP/1.1 431")
    assert connection.charged == 0


async def test_chunk_extensions_do_not_count_as_headers() -> None:
    connection, transport, application = connected()
    receive(
        connection,
        INFER + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;e=1\r\nx\r\n" * 20_000 + b"0\r\n\r\n",
    )
    assert len(application.computations) == 1
    assert not transport.written


async def test_long_head_is_charged_until_it_is_answered_or_dropped() -> None:
    for arrived, status in ((b"\r\n\r\n", b"200"), (b"", b"503")):
        connection, transport, _ = connected()
        receive(connection, b"GET /now HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 50_000)
        assert connection.charged >= 50_000
        assert connection.sheddable
        if arrived:
            receive(connection, arrived)
        else:
            connection.shed()
        assert transport.written.startswith(b"HTTP/1.1 " + status)
        assert connection.charged == 0


async def test_body_timeout_excludes_the_time_of_earlier_requests() -> None:
    connection, transport, application = connected()
    receive(connection, INFER + b"Content-Length: 1\r\n\r\nx")
    receive(connection, INFER + b"Content-Length: 100000\r\n\r\n" + b"x" * 50_000)
    for seconds in (6, 12, 60):
        connection.check(time.monotonic() + seconds)
    assert not transport.written
    application.computations[0].set_result(None)
    await asyncio.sleep(0)
    assert transport.written.startswith(b"HTTP/1.1 200")
    while not transport.reading:
        await asyncio.sleep(0)
    receive(connection, b"x" * 50_000)
    while len(application.computations) < 2:
        await asyncio.sleep(0)


async def test_large_json_waiting_for_its_turn_is_dropped_to_free_memory() -> None:
    connection, transport, application = connected()
    large = INFER + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000
    receive(connection, large)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(application.computations) == 1
    application.computations[0].set_result(None)
    while not transport.written:
        await asyncio.sleep(0)
    receive(connection, large)
    assert connection.sheddable
    assert connection.charged >= 100_000
    connection.shed()
    assert connection.charged == 0
    assert transport.written.endswith(b'{"error":"busy"}')
    assert len(application.computations) == 1


async def test_no_memory_is_charged_to_a_closed_connection() -> None:
    connection, _, application = connected()
    disconnect(connection)
    assert not connection.reserve(Request(), 1000)
    assert (connection.charged, application.limits.buffered) == (0, 0)


async def test_pipelined_requests_that_wait_are_charged_to_their_connection() -> None:
    connection, transport, _ = connected()
    receive(connection, INFER + b"Content-Length: 1\r\n\r\nx" + b"GET /now HTTP/1.1\r\n\r\n" * 40)
    assert connection.charged >= 40 * 1000
    assert not transport.reading
    disconnect(connection)
    assert connection.charged == 0


async def test_pipelined_requests_are_parsed_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.http.connection.TURN_SECONDS", 0.0)
    connection, transport, _ = connected()
    pipeline = b"GET /now HTTP/1.1\r\n\r\n" * 1000
    connection.data_received(pipeline)
    assert not transport.reading
    answered = transport.written.count(b"HTTP/1.1 200")
    assert 0 < answered < 1000
    connection.data_received(pipeline)
    assert transport.written.count(b"HTTP/1.1 200") == answered
    while not transport.reading:
        await asyncio.sleep(0)
    assert transport.written.count(b"HTTP/1.1 200") == 2000
    assert connection.charged == 0


async def test_requests_queued_behind_a_computation_are_answered_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.http.connection.TURN_SECONDS", 0.0)
    connection, transport, application = connected()
    receive(connection, INFER + b"Content-Length: 1\r\n\r\nx" + b"GET /now HTTP/1.1\r\n\r\n" * 20)
    application.computations[0].set_result(None)
    answered = 0
    while answered < 21:
        await asyncio.sleep(0)
        previous, answered = answered, transport.written.count(b"HTTP/1.1 200")
        assert answered - previous <= 2
    assert connection.charged == 0
    assert transport.reading


async def test_requests_of_a_client_that_has_closed_its_connection_are_not_answered() -> None:
    connection, transport, application = connected(ssl_object=object())
    receive(connection, INFER + b"Content-Length: 1\r\n\r\nx" + b"GET /now HTTP/1.1\r\n\r\n" * 20)
    # With TLS, the connection is lost up to a second later.
    transport.close()
    application.computations[0].set_result(None)
    while not application.ended:
        await asyncio.sleep(0)
    disconnect(connection)
    assert application.ended == ["/infer", *["/now"] * 20]
    assert (transport.written, connection.charged) == (b"", 0)


async def test_number_of_requests_answered_in_one_turn_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.http.connection.TURN_SECONDS", 0.0)
    connection, transport, _ = connected()
    connection.data_received(b"GET /now HTTP/1.1\r\n\r\n" * 400)
    assert transport.written.count(b"HTTP/1.1 200") < 60


async def test_remainder_of_a_body_is_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.http.connection.TURN_SECONDS", 1.0)
    connection, _, application = connected()
    calls: list[int] = []
    monkeypatch.setattr(
        connection,
        "_feed",
        lambda data, feed=connection._feed: (calls.append(len(data)), feed(data)),
    )
    head = INFER + b"Inference-Header-Content-Length: 2\r\nContent-Length: 100000\r\n\r\n"
    connection.data_received(head + b"x" * 100_000)
    assert len(application.computations) == 1
    assert len(calls) == 2


@pytest.mark.parametrize("length", ["", "100000", "x", "²", "9" * 5000])
async def test_large_json_waits_for_the_turn_of_its_connection(length: str) -> None:
    connection, transport, application = connected()
    line = f"Inference-Header-Content-Length: {length}\r\n".encode("latin-1")
    head = INFER + (line if length else b"") + b"Content-Length: 100000\r\n\r\n"
    receive(connection, INFER + b"Content-Length: 1\r\n\r\nx" + head + b"x" * 100_000)
    application.computations[0].set_result(None)
    await asyncio.sleep(0)
    assert not transport.reading
    assert len(application.computations) == 1
    while len(application.computations) < 2:
        await asyncio.sleep(0)
    application.computations[1].set_result(None)
    while connection.charged:
        await asyncio.sleep(0)
    connection.data_received(head + b"x" * 100_000)
    assert len(application.computations) == 2
    disconnect(connection)


async def test_outputs_are_released_when_the_response_is_written() -> None:
    connection, transport, application = connected()
    receive(connection, INFER + b"Content-Length: 1\r\n\r\nx")
    gc.disable()
    try:
        application.computations.pop().set_result(None)
        while not transport.written:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert application.outputs[0]() is None
    finally:
        gc.enable()


def answer_large(close: bool = False) -> tuple[Connection, Transport]:
    """Return a connection whose client has not received a response of 10 MB."""
    connection, transport, _ = connected()

    def write(_: object) -> None:
        transport.unsent = 10_000_000
        connection.pause_writing()

    transport.write = write  # type: ignore[assignment]
    receive(
        connection, b"GET /now HTTP/1.1\r\nHost: a\r\n" + b"Connection: close\r\n" * close + b"\r\n"
    )
    return connection, transport


@pytest.mark.parametrize("close", [False, True])
async def test_large_response_is_sent_as_long_as_the_client_reads_it(close: bool) -> None:
    connection, transport = answer_large(close)
    now = time.monotonic()
    for seconds in (3, 6, 12, 18):
        transport.unsent -= 1_000_000
        connection.check(now + seconds)
        assert not transport.aborted
    connection.check(now + 24)
    assert transport.aborted


async def test_response_that_the_kernel_delivers_from_its_buffer_makes_progress() -> None:
    connection, transport = answer_large()
    now = time.monotonic()
    for seconds in (6, 12, 18):
        transport.delivered += 50_000
        connection.check(now + seconds)
        assert not transport.aborted
    connection.check(now + 24)
    assert transport.aborted


@pytest.mark.parametrize("stalls", [False, True])
async def test_encrypted_connection_is_closed_when_its_client_has_received_the_response(
    stalls: bool,
) -> None:
    connection, transport, application = connected(ssl_object=object())
    application.answer = lambda *_: Response(b"x" * HIGH_WATER)
    transport.in_flight = 1
    receive(connection, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    now = time.monotonic()
    for seconds in (6, 12, 18):
        transport.delivered += 50_000
        connection.check(now + seconds)
        assert not transport.closed
        assert not connection.idle
        assert connection.sheddable
    if stalls:
        connection.check(now + 24)
    else:
        transport.in_flight = 0
        while not transport.closed:
            await asyncio.sleep(0.001)
    assert transport.closed
    assert transport.aborted == stalls


async def test_response_to_a_client_that_has_just_disconnected_causes_no_error() -> None:
    connection, transport, application = connected(ssl_object=object())
    receive(connection, INFER + b"Content-Length: 1\r\n\r\nx")
    transport.get_extra_info = lambda *_: None
    transport.unsent = 1000
    application.computations[0].set_result(None)
    while not application.ended:
        await asyncio.sleep(0)
    assert application.ended == ["/infer"]


async def test_connection_lingers_after_its_response_is_sent() -> None:
    connection, transport = answer_large(close=True)
    now = time.monotonic()
    transport.unsent = 1
    connection.check(now + 4)
    transport.unsent = 0
    connection.check(now + 5)
    assert not transport.aborted
    connection.check(now + 7)
    assert transport.aborted


async def test_time_of_the_computation_does_not_count_as_time_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, transport, application = connected()
    receive(connection, INFER + b"Content-Length: 1\r\n\r\nx")
    later = time.monotonic() + 20
    monkeypatch.setattr(time, "monotonic", lambda: later)
    transport.unsent = 1000
    application.computations[0].set_result(None)
    while not transport.written:
        await asyncio.sleep(0)
    connection.check(later)
    assert not transport.aborted


@pytest.mark.parametrize("close", [False, True])
async def test_response_is_encrypted_piece_by_piece_as_the_client_reads_it(close: bool) -> None:
    connection, transport, application = connected(ssl_object=object())
    body = b"x" * (2 * HIGH_WATER)

    def answer(_: Request, reserve: Callable[[int], bool]) -> Response:
        reserve(len(body))
        return Response(body)

    def write(piece: bytes) -> None:
        transport.written += piece
        connection.pause_writing()

    application.answer = answer  # type: ignore[assignment]
    transport.write = write  # type: ignore[assignment]
    closing = b"Connection: close\r\n" * close
    receive(connection, b"GET / HTTP/1.1\r\nHost: a\r\n" + closing + b"\r\n")
    for pieces in (1, 2):
        assert len(transport.written) == pieces * HIGH_WATER
        assert connection.charged == len(body)
        connection.resume_writing()
    assert transport.written.endswith(b"\r\n\r\n" + body)
    assert not transport.closed
    connection.resume_writing()
    assert connection.charged == 0
    assert transport.closed == close


async def test_response_is_released_when_its_client_disconnects() -> None:
    connection, transport, application = connected(ssl_object=object())
    application.answer = lambda *_: Response(b"x" * 2 * HIGH_WATER)
    transport.write = lambda _: connection.pause_writing()  # type: ignore[assignment]
    receive(connection, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(connection._output._rest) > HIGH_WATER
    disconnect(connection)
    assert not connection._output._rest


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 5\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, PIECE_BYTES])
async def test_offer_to_upgrade_to_http_2_is_ignored(rest: bytes, size: int) -> None:
    connection, transport, application = connected()
    bodies = []

    def answer(request: Request, _: object) -> Response:
        bodies.append(bytes(request.body))
        return Response(b"{}")

    application.answer = answer  # type: ignore[assignment]
    data = INFER + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + rest + b"GET /"
    for start in range(0, len(data), size):
        connection.data_received(data[start : start + size])
    assert bodies == [b"hello"]
    assert b"\r\nconnection: close\r\n" in transport.written
    assert transport.closed


@pytest.mark.parametrize("value", [b"100-continue", b"100-Continue", b" \t100-continue\t "])
async def test_client_that_waits_before_it_sends_a_body_is_asked_to_continue(value: bytes) -> None:
    connection, transport, _ = connected()
    receive(connection, INFER + b"Content-Length: 1\r\nExpect: " + value + b"\r\n\r\n")
    assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("origin", [b"http://a", b"HTTPS://a:8080"])
async def test_request_target_may_have_the_absolute_form(origin: bytes) -> None:
    connection, _, application = connected()
    receive(connection, b"GET " + origin + b"/now?at=http://b/ HTTP/1.1\r\nHost: a\r\n\r\n")
    assert application.ended == ["/now"]


@pytest.mark.parametrize(("length", "decoded"), [(300, True), (20_000, False)])
def test_only_paths_that_may_match_a_route_are_decoded(length: int, decoded: bool) -> None:
    request = Request(path="/" + "%61" * length)
    request.decode_path()
    assert request.path == "/" + ("a" if decoded else "%61") * length


async def test_error_for_a_head_request_has_no_body() -> None:
    connection, transport, _ = connected()
    receive(connection, b"HEAD /now HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert transport.written.endswith(b"\r\n\r\n")


async def test_http_1_0_client_is_not_asked_to_continue() -> None:
    connection, transport, _ = connected()
    receive(connection, b"POST /now HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
    assert transport.written == b""
    receive(connection, b"x")
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_connection_of_an_http_1_0_client_is_closed() -> None:
    connection, transport, _ = connected()
    receive(connection, b"GET /now HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert b"\r\nconnection: close\r\n" in transport.written
    assert transport.closed


async def test_pipelined_requests_that_a_closing_server_does_not_answer_are_counted() -> None:
    connection, transport, application = connected()
    receive(connection, INFER + b"\r\n" + b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
    application.draining = True
    application.computations[0].set_result(None)
    while not transport.closed:
        await asyncio.sleep(0)
    assert application.ended == ["/infer", "/now", "/now"]
