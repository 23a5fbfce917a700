"""Limits for clients: connections, buffered bytes and time.

A sweep checks all connections twice a second, so that no request needs a timer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from inference.allocator import return_free_memory
from inference.config import InferenceConfig
from workload.report import emit

if TYPE_CHECKING:
    from inference.http.connection import Connection

Peers = dict[str, "dict[Connection, None]"]
"""Connections by address, the oldest first."""

SWEEP_SECONDS: Final = 0.5

UNANSWERED_SHARE: Final = 1 / 8
"""If connections without a successful request exceed this share of max_connections, `Limits.add`
closes one of them first."""

LARGE_SHARE: Final = 1 / 64
"""If one address exceeds this share of max_connections, `Limits.add` closes one of its connections
first."""

MAX_EXAMINED: Final = 128
"""Number of connections in which to look for an `evictable` one before a `sheddable` one is closed.
Otherwise, each new connection would take a millisecond while thousands of bodies are unfinished."""

RETURNED_BYTES: Final = 1 << 25
"""Decrease in buffered bytes after which a sweep returns free memory to the system. This takes
about 1 ms per 15 MiB."""

LINGER_SECONDS: Final = 2.0
"""Time (s) for which a rejected body is still received and discarded. Otherwise, the client might
not receive the response, because closing a socket with unread data resets the connection."""

IDLE_DRAIN_SECONDS: Final = 0.5
"""Time (s) without a request after which a connection is closed at shutdown."""

PIPELINED_SHARE: Final = 0.1
"""Share of the event loop's time for clients that send requests without awaiting responses."""

PARSING_SHARE: Final = 0.1
"""Share of the event loop's time for parsing large JSON while there are other requests. Parsing
2 MiB takes up to 20 ms for numbers, and about 200 ms for short strings."""

MIN_PAUSE_SECONDS: Final = 0.002
"""Minimum pause (s). Shorter ones are skipped, because event loop timers have 1 ms resolution."""


class Progress:
    """Progress of a transfer, which must not fall below the minimum rate."""

    _since = 0.0
    _done = 0

    def restart(self, now: float, done: int) -> None:
        """Measure the rate from now on, after `done` bytes."""
        self._since, self._done = now, done

    def is_too_slow(self, now: float, done: int, config: InferenceConfig) -> bool:
        """Return whether the rate in the last `stall_seconds` was below the minimum."""
        if now - self._since < config.stall_seconds:
            return False
        transferred = done - self._done
        self.restart(now, done)
        return transferred < config.min_bytes_per_second * config.stall_seconds


class Turns:
    """Connections that take turns within a share of the event loop's time.

    Each turn is followed by a pause. Therefore, many of these connections delay small requests no
    more than a single one would. `count` returns the number of requests without large JSON that
    have been handled. If this number has not changed since the last turn, the pause is omitted. By
    default, `count` is the time, so no pause is omitted.
    """

    def __init__(self, share: float, count: Callable[[], float] = time.monotonic) -> None:
        self._count_small_requests, self._last_count = count, 0.0
        self._pause = 1 / share - 1
        """Pause after a turn, per second of its duration."""
        self._waiting: deque[Connection] = deque()
        self._free_at = 0.0

    def queue(self, connection: "Connection") -> None:
        """Queue a connection behind those that are already waiting."""
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            self._schedule()

    def _schedule(self) -> None:
        # Requests that arrived during the last turn are answered before `_begin` runs.
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        if self._count_small_requests() == self._last_count:
            self._free_at = 0.0
        pause = self._free_at - time.monotonic()
        if pause < MIN_PAUSE_SECONDS:
            self._take()
        else:
            asyncio.get_running_loop().call_later(pause, self._take)

    def _take(self) -> None:
        began = time.monotonic()
        # The connection stays first during its turn, so that `queue` does not schedule a second
        # call.
        try:
            self._waiting[0].take_turn()
        finally:
            self._waiting.popleft()
            ended = time.monotonic()
            self._free_at = max(self._free_at, ended) + (ended - began) * self._pause
            self._last_count = self._count_small_requests()
            if self._waiting:
                self._schedule()


class Limits:
    """The connections of one listener, and the limits on them."""

    def __init__(self, config: InferenceConfig, max_connections: int) -> None:
        self.config = config
        self.buffered = 0
        """Bytes of requests and unsent responses."""
        self._max_connections = max_connections
        self._max_per_peer = max(1, int(max_connections * config.max_share_per_peer))
        self._max_bytes_per_peer = config.max_bytes_per_peer
        self._held: dict[str, int] = {}
        """Number of charged bytes per address."""
        self._connections: dict[Connection, None] = {}
        """All connections, the least recently used first."""
        self._peers: Peers = {}
        self._unanswered: Peers = {}
        """Connections on which no request has succeeded yet."""
        self.receiving = Turns(1)
        """Connections that receive a large body."""
        self.small_requests = 0
        """Number of requests without large JSON."""
        self.parsing = Turns(PARSING_SHARE, lambda: self.small_requests)
        """Connections with large JSON that has been received but not parsed."""
        self.pipelined = Turns(PIPELINED_SHARE)
        """Connections with many unanswered requests or unparsed chunks."""
        self._sweeping: asyncio.Task[None] | None = None

    def start(self, *callbacks: Callable[[], None]) -> None:
        """Start the sweeps on the running event loop. Each sweep also calls all `callbacks`."""
        self._sweeping = asyncio.create_task(self._sweep(callbacks))

    def stop(self) -> None:
        """Stop the sweeps and close all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    async def drain(self, seconds: float) -> bool:
        """Close connections once their requests are answered; return False if time runs out."""
        deadline = time.monotonic() + seconds
        while self._connections:
            now = time.monotonic()
            if now > deadline:
                return False
            for connection in tuple(self._connections):
                if connection.idle and now - connection.since > IDLE_DRAIN_SECONDS:
                    connection.close()
            await asyncio.sleep(0.02)
        return True

    def add(self, connection: "Connection") -> bool:
        """Count a connection, and close another one if there are too many.

        If the new connection's peer has reached its limit, close a connection of this peer;
        otherwise, close one of `_candidates`. Choose the first `evictable` connection or, if there
        is none among the first `MAX_EXAMINED`, the first `sheddable` one. Return False if there is
        neither.
        """
        peer = self._peers.get(connection.peer, {})
        if len(peer) >= self._max_per_peer:
            victim = _first_closable(peer)
        elif len(self._connections) >= self._max_connections:
            victim = _first_closable(self._candidates())
        else:
            victim = connection
        if victim is None:
            return False
        for group in (self._peers, self._unanswered):
            group.setdefault(connection.peer, {})[connection] = None
        self._connections[connection] = None
        if victim is not connection:
            # Otherwise, the victim would be selected again until its transport is closed.
            self.remove(victim)
            victim.abort()
        return True

    def remove(self, connection: "Connection") -> None:
        """Stop counting a connection."""
        self._connections.pop(connection, None)
        for group in (self._peers, self._unanswered):
            _discard(group, connection)

    def succeeded(self, connection: "Connection") -> None:
        """Record that a request on the connection has succeeded."""
        if connection in self._connections:
            # Move it to the end.
            del self._connections[connection]
            self._connections[connection] = None
            _discard(self._unanswered, connection)

    def _candidates(self) -> "dict[Connection, None]":
        """Return the connections from which `add` chooses the one to close.

        If there are many connections without a successful request, return only those, because an
        attacker with many addresses may have fewer connections per address than a legitimate
        client.
        """
        count = self._max_connections
        if sum(map(len, self._unanswered.values())) > count * UNANSWERED_SHARE:
            return max(self._unanswered.values(), key=len)
        largest = max(self._peers.values(), key=len)
        return largest if len(largest) > count * LARGE_SHARE else self._connections

    def charge(self, connection: "Connection", size: int) -> bool:
        """Count bytes, after shedding connections if necessary; return False if that is not enough.

        If the address would exceed its limit, shed its `sheddable` connection that holds the most
        bytes. If the total limit would be exceeded, shed such a connection of the address that
        holds the most bytes and has one.
        """
        peer, limit = connection.peer, self.config.max_buffered_bytes
        while (full := self._held.get(peer, 0) + size > self._max_bytes_per_peer) or (
            self.buffered + size > limit
        ):
            victim = self._largest_sheddable([peer] if full else self._held_most_first())
            if victim is None or victim is connection:
                return False
            victim.shed()
        self.release(connection, -size)
        return True

    def release(self, connection: "Connection", size: int) -> None:
        """Stop counting bytes."""
        self.buffered -= size
        connection.charged -= size
        peer = connection.peer
        held = self._held[peer] = self._held.get(peer, 0) - size
        if not held:
            del self._held[peer]

    def _held_most_first(self) -> list[str]:
        return sorted(self._held, key=self._held.__getitem__, reverse=True)

    def _largest_sheddable(self, peers: Iterable[str]) -> "Connection | None":
        """Return the largest sheddable connection of the first of these addresses that has one."""
        # An address usually has few of the connections, and each charge may need another victim.
        for peer in peers:
            found = [one for one in self._peers.get(peer, {}) if one.charged and one.sheddable]
            if found:
                return max(found, key=lambda one: one.charged)
        return None

    async def _sweep(self, callbacks: Iterable[Callable[[], None]]) -> None:
        peak = 0
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            peak = max(peak, self.buffered)
            if peak - self.buffered > RETURNED_BYTES:
                return_free_memory()
                peak = self.buffered
            now = time.monotonic()
            for connection in tuple(self._connections):
                # An error must not end the sweeps, which enforce time limits and reload API keys.
                try:
                    connection.check(now)
                except Exception as error:
                    emit("connection_failed", error=repr(error))
                    connection.abort()
            for callback in callbacks:
                callback()


def _discard(group: Peers, connection: "Connection") -> None:
    connections = group.get(connection.peer)
    if connections is not None:
        connections.pop(connection, None)
        if not connections:
            del group[connection.peer]


def _first_closable(connections: "dict[Connection, None]") -> "Connection | None":
    first = None
    for number, connection in enumerate(connections, 1):
        if connection.evictable:
            return connection
        if first is None and connection.sheddable:
            first = connection
        if first is not None and number >= MAX_EXAMINED:
            break
    return first
