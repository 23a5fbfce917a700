"""Responses of one connection, without a network."""

import asyncio
import gc
import time
from collections.abc import Callable

import numpy as np
import pytest

from inference.http.connection import Connection
from inference.http.messages import Request, Response
from inference.http.output import HIGH_WATER
from tests.inference.http.connections import (
    INFER,
    Transport,
    connected,
    disconnect,
    receive,
)


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


def test_large_binary_values_are_sent_without_a_copy() -> None:
    large, empty = np.zeros((50, 100), np.float32).data, memoryview(b"")
    response = Response(b"{}", values=[large, empty])
    head, body, values = response.encode(Request(), close=False)
    assert b"content-length: 20002\r\n" in bytes(head)
    assert body == b"{}"
    assert values is large
    (joined,) = Response(b"{}", values=[memoryview(b"ab"), empty]).encode(Request(), close=False)
    assert bytes(joined).endswith(b"\r\n\r\n{}ab")
    (only_head,) = response.encode(Request(method="HEAD"), close=False)
    assert only_head == head
