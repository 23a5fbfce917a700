"""Sweeps over the connections, and limits on the memory and connections of each address."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from inference.config import InferenceConfig
from inference.http import limits
from inference.http.connection import Connection
from inference.http.limits import Limits, Turns


class Broken:
    """A connection whose check fails."""

    peer = "127.0.0.1"
    aborted = False

    def check(self, _: float) -> None:
        raise RuntimeError("unexpected")

    def abort(self) -> None:
        self.aborted = True


async def test_connection_whose_check_fails_is_closed_and_sweeps_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.001)
    config = InferenceConfig(model_name="digits", model_path="/none")
    swept, broken, next_check = Limits(config, 10), Broken(), asyncio.Event()
    assert swept.add(cast(Connection, broken))
    swept.start(next_check.set)
    for _ in range(2):
        next_check.clear()
        await asyncio.wait_for(next_check.wait(), 60)
    swept.stop()
    assert broken.aborted
    assert "RuntimeError('unexpected')" in capsys.readouterr().out


async def test_free_memory_is_returned_when_many_buffered_bytes_have_been_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = InferenceConfig(model_name="digits", model_path="/none")
    swept, next_check, returned = Limits(config, 10), asyncio.Event(), list[int]()
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.001)
    monkeypatch.setattr(limits, "return_free_memory", lambda: returned.append(swept.buffered))
    swept.start(next_check.set)
    for swept.buffered in (limits.RETURNED_BYTES, limits.RETURNED_BYTES + 2, 2, 1, 0):
        next_check.clear()
        await asyncio.wait_for(next_check.wait(), 60)
    swept.stop()
    assert returned == [1]


class Uploading:
    """A connection that is receiving a body."""

    sheddable = True

    def __init__(self, limits: Limits, peer: str) -> None:
        self.peer, self.charged, self.limits, self.lost = peer, 0, limits, False
        assert limits.add(self.connection)

    @property
    def connection(self) -> Connection:
        return cast(Connection, self)

    def charge(self, size: int) -> bool:
        return self.limits.charge(self.connection, size)

    def shed(self) -> None:
        self.limits.release(self.connection, self.charged)
        self.lost = True


def limits_with_share(share: float) -> Limits:
    config = InferenceConfig(
        model_name="digits",
        model_path="/none",
        max_body_bytes=1024,
        max_buffered_bytes=4096,
        max_share_per_peer=share,
    )
    return Limits(config, 10)


def test_address_holds_at_most_its_share_of_buffered_bytes() -> None:
    limits = limits_with_share(0.5)
    first, second, other_address = (Uploading(limits, peer) for peer in ("a", "a", "b"))
    assert first.charge(1500)
    assert second.charge(500)
    assert not first.charge(1000)
    assert second.charge(1000)
    assert first.lost
    assert other_address.charge(2048)
    assert (limits.buffered, other_address.lost) == (3548, False)


def test_request_in_computation_counts_against_the_share_of_its_address() -> None:
    limits = limits_with_share(0.5)
    computing, other_address = Uploading(limits, "a"), Uploading(limits, "b")
    computing.sheddable = False
    assert computing.charge(2048)
    assert not computing.charge(1)
    assert not Uploading(limits, "a").charge(1)
    assert other_address.charge(2048)
    limits.release(computing.connection, 2048)
    assert computing.charge(1)


def test_address_with_a_share_of_one_may_use_the_whole_buffer() -> None:
    limits = limits_with_share(1)
    assert Uploading(limits, "gateway").charge(4096)


@pytest.mark.parametrize(("share", "allowed"), [(0.5, 5), (1.0, 10), (0.26, 2)])
def test_an_address_has_at_most_its_share_of_connections(share: float, allowed: int) -> None:
    limits = limits_with_share(share)

    class Busy:
        peer, evictable, sheddable = "a", False, False

    assert [limits.add(cast(Connection, Busy())) for _ in range(11)].count(True) == allowed


@pytest.mark.parametrize("peers", [1, 10])
def test_connection_with_an_unfinished_body_is_closed_to_accept_a_new_one(peers: int) -> None:
    limits = limits_with_share(1)

    class Body:
        evictable, sheddable, lost = False, True, False

        def __init__(self, peer: int) -> None:
            self.peer = str(peer)

        def abort(self) -> None:
            # The transport reports the loss later, so the victim must not be chosen again.
            assert not self.lost
            self.lost = True

    bodies = [Body(number % peers) for number in range(10)]
    assert all(limits.add(cast(Connection, body)) for body in bodies)
    assert all(limits.add(cast(Connection, Body(99))) for _ in range(2))
    assert [body.lost for body in bodies] == [True] * 2 + [False] * 8


class Idle:
    """An idle connection."""

    evictable, lost = True, False

    def __init__(self, limits: Limits, peer: str, answered: int = 0) -> None:
        self.peer = peer
        assert limits.add(cast(Connection, self))
        for _ in range(answered):
            limits.succeeded(cast(Connection, self))

    def abort(self) -> None:
        self.lost = True


class Examined:
    """A connection with an unfinished body that records when its state is examined."""

    charged, evictable = 0, False

    def __init__(self, limits: Limits, peer: str, examined: list[str]) -> None:
        self.peer, self.limits, self.examined = peer, limits, examined
        assert limits.add(cast(Connection, self))

    @property
    def sheddable(self) -> bool:
        self.examined.append(self.peer)
        return True

    def shed(self) -> None:
        self.limits.release(cast(Connection, self), self.charged)

    def abort(self) -> None:
        self.limits.remove(cast(Connection, self))


@pytest.mark.parametrize("peers", [100, 1000])
def test_few_connections_are_examined_to_free_memory_or_accept_a_connection(peers: int) -> None:
    limits, examined = Limits(limits_with_share(1).config, 1000), list[str]()
    bodies = [Examined(limits, str(number % peers), examined) for number in range(1000)]
    for body in bodies:
        assert limits.charge(cast(Connection, body), 4)
    assert limits.charge(cast(Connection, bodies[-1]), 97)
    assert len(set(examined)) == 1
    assert len(examined) <= 1000 / peers
    examined.clear()
    Examined(limits, "new", examined)
    assert len(examined) == 1


@pytest.mark.parametrize("peers", [1, 200])
def test_connections_without_a_successful_request_are_closed_first(peers: int) -> None:
    limits = Limits(limits_with_share(1).config, 200)
    client = [Idle(limits, "client", answered=1) for _ in range(10)]
    attackers = [Idle(limits, f"attacker {number % peers}") for number in range(400)]
    assert not any(each.lost for each in client)
    assert [each.lost for each in attackers] == [True] * 210 + [False] * 190


def test_least_recently_used_connection_is_closed_if_no_address_has_many() -> None:
    limits = Limits(limits_with_share(1).config, 200)
    client = [Idle(limits, "client", answered=1) for _ in range(3)]
    attackers = [Idle(limits, f"attacker {number}", answered=1) for number in range(197)]
    for each in client:
        limits.succeeded(cast(Connection, each))
    others = [Idle(limits, f"attacker {number}", answered=1) for number in range(197, 300)]
    assert not any(each.lost for each in client)
    assert [each.lost for each in attackers] == [True] * 103 + [False] * 94
    # A larger share of one address is reduced first.
    client += [Idle(limits, "client", answered=1) for _ in range(2)]
    assert [each.lost for each in client] == [True, False, False, False, False]
    assert not any(each.lost for each in others)


class Waiting:
    """A connection that always has more to receive or to parse."""

    def __init__(self, turns: Turns, clock: "Clock | None" = None) -> None:
        self.turns, self.queued, self.clock = 0, turns, clock

    def take_turn(self) -> None:
        self.turns += 1
        if self.clock is not None:
            self.clock.now += 0.001
        self.queued.queue(cast(Connection, self))


async def test_large_bodies_are_received_in_turns() -> None:
    turns = limits_with_share(1).receiving
    connections = [Waiting(turns) for _ in range(3)]
    for connection in connections:
        turns.queue(cast(Connection, connection))
    for turn in range(1, 10):
        await asyncio.sleep(0)
        assert sum(connection.turns for connection in connections) == turn
    assert [connection.turns for connection in connections] == [3, 3, 3]


class Clock:
    """A clock that advances only during turns and pauses; it replaces the event loop's clock."""

    now = 100.0

    def time(self) -> float:
        return self.now


async def test_turns_do_not_pause_if_there_are_no_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, loop, others = Clock(), asyncio.get_running_loop(), 0
    pauses: list[float] = []

    def advance_clock(delay: float, call: Callable[[], None]) -> None:
        pauses.append(delay)
        clock.now += delay
        loop.call_soon(call)

    monkeypatch.setattr("inference.http.limits.time.monotonic", clock.time)
    monkeypatch.setattr(loop, "call_later", advance_clock)
    turns = Turns(0.1, lambda: others)
    connection = Waiting(turns, clock)
    turns.queue(cast(Connection, connection))
    while connection.turns < 100:
        await asyncio.sleep(0)
    assert pauses == []
    others += 1
    while connection.turns < 101:
        await asyncio.sleep(0)
    assert pauses == [pytest.approx(0.009)]


async def test_turns_take_only_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, loop = Clock(), asyncio.get_running_loop()

    def advance_clock(delay: float, call: Callable[[], None]) -> None:
        clock.now += delay
        loop.call_soon(call)

    monkeypatch.setattr("inference.http.limits.time.monotonic", clock.time)
    monkeypatch.setattr(loop, "call_later", advance_clock)
    turns = Turns(0.1)
    connections = [Waiting(turns, clock) for _ in range(2)]
    for connection in connections:
        turns.queue(cast(Connection, connection))
    began = clock.now
    while sum(connection.turns for connection in connections) < 100:
        await asyncio.sleep(0)
    assert clock.now - began == pytest.approx(0.1 / 0.1, rel=0.02)
    assert [connection.turns for connection in connections] == [50, 50]
