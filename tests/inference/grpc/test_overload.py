"""What a server does when more calls come than it can compute, and at its end."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.inference.engine.exports import write_probe
from tests.inference.engine.probes import FINE, SLEEP
from tests.inference.grpc.calls import SERVICE, channel_to, probe, raw
from tests.inference.serving import Server, serving, value
from tests.training.programs import until

MOST = 3
"""Calls: two that are with the worker, and one that waits."""
BODY = 1_000_000
ARRIVAL = 6
"""Seconds for a message."""
PROBE = {"name": "probe", "handler": "tests.inference.engine.probes:Probe", "max_batch": 1}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for few at a time; two of its largest messages may arrive at once."""
    folder = tmp_path_factory.mktemp("overload")
    write_probe(folder / "export")
    bounds = {"max_body_bytes": BODY, "max_buffered_bytes": 2_200_000, "body_seconds": ARRIVAL}
    with serving(folder, folder / "export", max_queue=1, **bounds, **PROBE) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
def channel(small: Server) -> Iterator[grpc.Channel]:
    with channel_to(small) as open_one:
        yield open_one


def sleeping(channel: grpc.Channel, seconds: float, padding: int = 0) -> Any:
    return raw(channel, "ModelInfer").future(probe(SLEEP, seconds, padding), timeout=60)


def unsent(channel: grpc.Channel, until_then: threading.Event) -> Any:
    """A call whose message does not come."""

    def nothing() -> Iterator[bytes]:
        until_then.wait(60)
        yield from ()

    return channel.stream_unary(SERVICE + "ModelInfer").future(nothing(), timeout=60)


def code_of(call: Any) -> str:
    name: str = call.code().name
    return name


def test_too_many_calls_are_refused_before_their_messages_are_read_and_probes_are_answered(
    small: Server, channel: grpc.Channel
) -> None:
    refusals = 'inference_requests_total{code="429",protocol="grpc"}'
    before = value(small.metrics, refusals)
    answered = threading.Event()
    taken = [sleeping(channel, 1.5) for _ in range(MOST)]
    until(lambda: small.in_flight == MOST)
    refused = unsent(channel, answered)
    assert code_of(refused) == "RESOURCE_EXHAUSTED"
    answered.set()
    assert "3 calls are being answered already" in refused.details()
    assert int(dict(refused.trailing_metadata())["retry-after"]) >= 1
    assert value(small.metrics, refusals) == before + 1
    for method in ("ServerLive", "ServerReady", "ModelReady"):
        message = b"\n\x05probe" if method == "ModelReady" else b""
        assert raw(channel, method)(message, timeout=30) == b"\x08\x01"
    assert [code_of(one) for one in taken] == ["OK"] * MOST
    assert raw(channel, "ModelInfer")(probe(FINE), timeout=30)


def test_messages_together_are_not_larger_than_told(small: Server, channel: grpc.Channel) -> None:
    taken = [sleeping(channel, 1, padding=BODY) for _ in range(2)]
    until(lambda: value(small.metrics, "inference_buffered_bytes") > 2 * BODY)
    with pytest.raises(grpc.RpcError) as refused:
        raw(channel, "ModelInfer")(probe(FINE, padding=BODY), timeout=30)
    assert code_of(refused.value) == "RESOURCE_EXHAUSTED"
    assert "bodies of all requests" in refused.value.details()
    assert [code_of(one) for one in taken] == ["OK"] * 2
    until(lambda: value(small.metrics, "inference_buffered_bytes") == 0)


@pytest.fixture
def slow(small: Server, channel: grpc.Channel) -> Iterator[list[Any]]:
    """Two calls whose messages do not come, and half of the time for them has passed."""
    ended = threading.Event()
    calls = [unsent(channel, ended) for _ in range(2)]
    until(lambda: small.in_flight == 2)
    time.sleep(ARRIVAL / 2)
    yield calls
    ended.set()


def test_a_message_that_does_not_arrive_ends_its_call_and_others_have_their_turn(
    channel: grpc.Channel, slow: list[Any]
) -> None:
    assert raw(channel, "ModelInfer")(probe(FINE), timeout=30)
    assert {code_of(one) for one in slow} == {"DEADLINE_EXCEEDED"}
    assert "did not arrive in time" in slow[0].details()


def test_a_call_whose_turn_does_not_come_is_told_to_try_again(
    small: Server, channel: grpc.Channel, slow: list[Any]
) -> None:
    ended = threading.Event()
    others = [unsent(channel, ended) for _ in range(2)]
    until(lambda: small.in_flight == 4)
    with pytest.raises(grpc.RpcError) as refused:
        raw(channel, "ModelInfer")(probe(FINE), timeout=30)
    assert code_of(refused.value) == "RESOURCE_EXHAUSTED"
    assert "slow to arrive" in refused.value.details()
    assert {code_of(one) for one in slow + others} == {"DEADLINE_EXCEEDED"}
    ended.set()


def test_a_call_without_a_message_is_told_so(channel: grpc.Channel) -> None:
    empty = channel.stream_unary(SERVICE + "ModelInfer").future(iter(()), timeout=30)
    assert (code_of(empty), empty.details()) == ("INVALID_ARGUMENT", "the call has no message")


@pytest.mark.parametrize(
    ("seconds", "drain", "code", "event"),
    [(2, 20, "OK", '"event": "stopped"'), (30, 1, "UNAVAILABLE", '"event": "cut"')],
    ids=["within", "beyond"],
)
def test_at_sigterm_calls_in_flight_end_within_the_time_for_them(
    tmp_path: Path, seconds: float, drain: int, code: str, event: str
) -> None:
    write_probe(tmp_path / "export")
    times = {"notice_seconds": 0.2, "drain_seconds": drain}
    with serving(tmp_path, tmp_path / "export", **times, **PROBE) as server:
        server.wait_until_ready()
        with channel_to(server) as channel:
            call = sleeping(channel, seconds)
            until(lambda: server.in_flight == 1)
            server.program.signal(signal.SIGTERM)
            assert code_of(call) == code
        assert server.program.exit_code() == 0
        assert event in server.program.text
        assert ('"in_flight": 1' in server.program.text) == (code != "OK")
