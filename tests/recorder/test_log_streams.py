"""Log tails and interrupted log streams."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from httpx2 import AsyncByteStream, MockTransport, ReadError, Request, Response
from lightkube import AsyncClient

from recorder.log_streams import LogStreams, Tail
from recorder.pods import Attempt
from tests.recorder.examples import CONFIG, pod_manifest

ATTEMPT = Attempt("uid", "pod", "training", 0)
ERROR = b'{"apiVersion": "v1", "kind": "Status", "code": 404, "message": "no such pod"}'


def kept_lines(lines: int, size: int, content: Iterable[str]) -> list[str]:
    tail = Tail(lines, size)
    for line in content:
        tail.add(f"{line}\n".encode())
    return tail.lines


def test_tail_keeps_the_last_lines() -> None:
    assert kept_lines(3, 1000, map(str, range(10))) == ["7", "8", "9"]


def test_tail_is_limited_in_bytes() -> None:
    lines = kept_lines(1000, 100, ("x" * 30 for _ in range(50)))
    assert sum(map(len, lines)) <= 100
    assert list(map(len, lines)) == [7, 30, 30, 30]


def test_tail_keeps_the_end_of_an_oversized_line() -> None:
    assert kept_lines(10, 5, ["beginning and end"]) == ["d end"]


def test_truncated_character_is_replaced() -> None:
    [line] = kept_lines(10, 5, ["äöü"])
    assert line.endswith("öü")


class Body(AsyncByteStream):
    """A response body. If `lost` is true, the connection breaks after the content."""

    def __init__(self, content: bytes, *, lost: bool = False) -> None:
        self.content, self.lost, self.closed = content, lost, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content
        if self.lost:
            raise ReadError("connection reset")

    async def aclose(self) -> None:
        self.closed = True


def streams(
    respond: Callable[[Request], Response], uid: str = ATTEMPT.uid, **pod: Any
) -> LogStreams:
    """Return log streams from an API server whose pod has the given UID and fields."""

    def handler(request: Request) -> Response:
        if request.url.path.endswith("/log"):
            return respond(request)
        assert request.url.params["fieldSelector"] == "metadata.name=pod"
        return Response(200, json={"metadata": {}, "items": [{"metadata": {"uid": uid}, **pod}]})

    return LogStreams(lambda: AsyncClient(CONFIG, transport=MockTransport(handler)), 10, 1000)


def streams_with(*responses: tuple[int, Body], uid: str = ATTEMPT.uid, **pod: Any) -> LogStreams:
    """Return log streams whose requests receive the given responses in order."""
    remaining = iter(responses)

    def respond(_: Request) -> Response:
        status, body = next(remaining)
        return Response(status, headers={"Content-Type": "application/json"}, stream=body)

    return streams(respond, uid, **pod)


async def test_failed_reconnection_keeps_the_lines_received_before() -> None:
    lines, error = Body(b"the last line\n", lost=True), Body(ERROR)
    logs = streams_with((200, lines), (502, error), (404, Body(ERROR)))
    for body in (lines, error):
        logs.follow(ATTEMPT)
        await asyncio.sleep(0.05)
        assert body.closed
    assert await logs.last_lines(ATTEMPT) == ["the last line"]


async def test_log_is_requested_if_its_stream_was_interrupted() -> None:
    logs = streams_with((200, Body(b"one\n", lost=True)), (200, Body(b"one\ntraceback\n")))
    logs.follow(ATTEMPT)
    assert await logs.last_lines(ATTEMPT) == ["one", "traceback"]


async def test_log_is_requested_again_if_the_api_server_fails() -> None:
    unavailable, lines = (503, Body(ERROR)), (200, Body(b"traceback\n"))
    assert await streams_with(unavailable, lines).last_lines(ATTEMPT) == ["traceback"]


async def test_log_of_a_later_attempt_is_ignored_after_a_retry() -> None:
    status = pod_manifest(restarts=1)["status"]
    unavailable, lines = (503, Body(ERROR)), (200, Body(b"of the next attempt\n"))
    assert await streams_with(unavailable, lines, status=status).last_lines(ATTEMPT) == []


async def test_log_of_a_later_pod_with_the_same_name_is_ignored() -> None:
    logs = streams_with((200, Body(b"of the next pod\n")), uid="another")
    assert await logs.last_lines(ATTEMPT) == []


async def test_stream_that_ends_while_its_container_runs_is_restarted() -> None:
    logs = streams_with((200, Body(b"first\n")), (200, Body(b"first\nsecond\n")))
    for _ in range(2):
        logs.follow(ATTEMPT)
        await asyncio.sleep(0.05)
    assert await logs.last_lines(ATTEMPT) == ["first", "second"]


async def test_previous_log_of_a_restarted_container_is_requested() -> None:
    def respond(request: Request) -> Response:
        assert request.url.path == "/api/v1/namespaces/ml/pods/pod/log"
        previous = request.url.params.get("previous") == "true"
        return Response(200, text="the failure\n" if previous else "the next attempt\n")

    logs = streams(respond)
    assert await logs.last_lines(ATTEMPT, restarted=True) == ["the failure"]
    assert await logs.last_lines(ATTEMPT) == ["the next attempt"]


class LongLine(AsyncByteStream):
    """A body of one line of 64 MiB."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(1024):
            yield b"x" * 2**16


@pytest.mark.parametrize("followed", [True, False])
async def test_lines_are_never_held_in_memory_completely(followed: bool) -> None:
    logs = streams(lambda _: Response(200, stream=LongLine()))
    tracemalloc.start()
    try:
        if followed:
            logs.follow(ATTEMPT)
        [line] = await logs.last_lines(ATTEMPT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(line) == 1000
    assert peak < 16 * 2**20


async def test_error_responses_are_closed() -> None:
    errors = [Body(ERROR) for _ in range(3)]
    logs = streams_with(*((404, body) for body in errors))
    for body in errors:
        logs.follow(ATTEMPT)
        await asyncio.sleep(0.05)
        assert body.closed
