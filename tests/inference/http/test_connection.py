"""Limits on the memory and time of one connection, without a network."""

import asyncio
import time

import pytest

from inference.http.application import Pending
from inference.http.connection import PIECE_BYTES
from inference.http.messages import Request, Response
from tests.inference.http.connections import (
    INFER,
    connected,
    disconnect,
    receive,
)


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


@pytest.mark.parametrize("length", [b"0" * 5000, b"0" * 5000 + b"1"])
async def test_content_length_may_have_thousands_of_leading_zeros(length: bytes) -> None:
    connection, transport, application = connected()
    body = b"x" * int(length[-1:])
    receive(connection, INFER + b"Content-Length: " + length + b"\r\n\r\n" + body)
    assert len(application.computations) == 1
    assert not transport.written


async def test_head_is_rejected_once_it_is_larger_than_16_kib() -> None:
    for size, status in ((15_000, b"200"), (18_000, b"431")):
        connection, transport, _ = connected()
        receive(connection, b"GET /now HTTP/1.1\r\nHost: a\r\nA: " + b"x" * size + b"\r\n\r\n")
        assert transport.written.startswith(b"HTTP/1.1 " + status)


async def test_long_head_is_charged_until_it_is_answered_or_dropped() -> None:
    for arrived, status in ((b"\r\n\r\n", b"200"), (b"", b"503")):
        connection, transport, _ = connected()
        receive(connection, b"GET /now HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 12_000)
        assert connection.charged >= 12_000
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


async def test_body_has_a_time_limit_even_if_it_never_stalls() -> None:
    connection, transport, _ = connected()
    receive(connection, INFER + b"Content-Length: 1000000\r\n\r\n")
    start = time.monotonic()
    for seconds in range(2, 31, 2):
        assert not transport.written
        receive(connection, b"x" * 10_000)
        # Large bodies are received in turns.
        while not transport.reading:
            await asyncio.sleep(0)
        connection.check(start + seconds)
    connection.check(start + 32)
    assert transport.written.startswith(b"HTTP/1.1 408")


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


async def test_unparsed_pipeline_is_dropped_to_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.http.connection.TURN_SECONDS", 0.0)
    connection, transport, _ = connected()
    # A piece ends between two requests.
    connection.data_received(b"GET /now HTTP/1.1\r\nHost: abc\r\n\r\n" * 1000)
    assert connection.charged > 10_000
    assert connection.sheddable
    connection.shed()
    assert (connection.charged, transport.aborted) == (0, True)
    await asyncio.sleep(0.01)


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


async def test_data_that_has_just_arrived_gets_less_time_than_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.http.connection.ARRIVAL_SECONDS", 0.0)
    monkeypatch.setattr("inference.http.connection.TURN_SECONDS", 10.0)
    connection, transport, _ = connected()
    connection.data_received(b"\r\n" * PIECE_BYTES)
    assert (transport.reading, connection.charged) == (False, PIECE_BYTES)
    while connection.charged:
        await asyncio.sleep(0)
    assert transport.reading


async def test_only_one_request_that_has_just_arrived_is_answered_at_once() -> None:
    connection, transport, _ = connected()
    connection.data_received(b"GET /now HTTP/1.1\r\n\r\n" * 10)
    assert transport.written.count(b"HTTP/1.1 200") == 1
    assert connection.charged > 0
    while not transport.reading:
        await asyncio.sleep(0)
    assert transport.written.count(b"HTTP/1.1 200") == 10
    assert connection.charged == 0


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


@pytest.mark.parametrize("disconnects", [False, True])
async def test_outputs_are_converted_to_large_json_in_the_turn_of_their_connection(
    disconnects: bool,
) -> None:
    connection, transport, application = connected()
    future = asyncio.get_running_loop().create_future()
    pending = Pending(future, lambda _: Response(b"{}"), is_slow=True)
    application.answer = lambda *_: pending
    receive(connection, INFER + b"Content-Length: 1\r\n\r\nx")
    # Such requests are not small ones, for which others have to wait.
    assert application.limits.small_requests == 0
    future.set_result(None)
    await asyncio.sleep(0)
    assert (transport.written, transport.reading) == (b"", False)
    if disconnects:
        disconnect(connection)
    while not application.ended:
        await asyncio.sleep(0)
    assert application.ended == ["/infer"]
    assert transport.written.count(b"HTTP/1.1 200") == (not disconnects)
    assert transport.reading or disconnects
    assert connection.charged == 0


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
