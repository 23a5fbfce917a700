"""Tails of logs, and streams that are interrupted."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from httpx2 import ReadError

from recorder.log_streams import LogStreams, Tail
from recorder.pods import Attempt


def test_the_last_lines_are_kept() -> None:
    assert Tail(3, 1000, map(str, range(10))).lines == ["7", "8", "9"]


def test_records_are_limited_in_bytes() -> None:
    kept = Tail(1000, 100, ("x" * 30 for _ in range(50))).lines
    assert sum(map(len, kept)) <= 100
    assert len(kept) == 3


def test_the_end_of_an_oversized_line_is_kept() -> None:
    assert Tail(10, 5, ["beginning and end"]).lines == ["d end"]


def test_a_truncated_character_is_replaced() -> None:
    [line] = Tail(10, 5, ["äöü"]).lines
    assert line.endswith("öü")


class LostNode:
    """A client whose first stream is interrupted after a line; later requests fail."""

    def __init__(self) -> None:
        self.requests = 0

    async def log(self, pod: str, **_: Any) -> AsyncIterator[str]:
        self.requests += 1
        if self.requests == 1:
            yield "the last line"
        raise ReadError("the node is lost")


async def test_a_restarted_stream_that_fails_keeps_the_earlier_lines() -> None:
    client: Any = LostNode()
    streams = LogStreams(lambda: client, 10, 1000)
    attempt = Attempt("uid", "pod", "training", 0)
    for requests in (1, 2):
        streams.follow(attempt)
        await asyncio.sleep(0.01)
        assert client.requests == requests
    assert await streams.last_lines(attempt) == ["the last line"]
