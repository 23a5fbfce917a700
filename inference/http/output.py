"""Output side of a connection: sends responses, and measures how fast the client receives them."""

import asyncio
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final

from inference.config import InferenceConfig
from inference.http.limits import Progress

HIGH_WATER: Final = 1 << 16
"""Size (bytes) of the write buffer above which a response counts as unsent, and the next request
waits."""

SEND_BUFFER_BYTES: Final = 1 << 14
"""Maximum size (bytes) of a response that always fits into the kernel's send buffer."""

TCP_INFO: Final = struct.Struct("=24xI92xQ16xI")
"""`tcpi_unacked`, `tcpi_bytes_acked` and `tcpi_notsent_bytes` in Linux's `struct tcp_info`."""


class Output:
    """Responses that a transport sends to a client."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        self.paused = False
        """True while the client reads more slowly than responses are written."""
        self._must_deliver = False
        """True if the connection is to be closed once its client has received the response."""
        self._rest = memoryview(b"")
        """Bytes of a response that have not been passed to the transport yet."""
        self._sending, self._delivering = Progress(), Progress()

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send the parts. All earlier data must have been passed to the transport."""
        if self._is_encrypted:
            self._rest = memoryview(b"".join(parts))
            self.resume()
        else:
            self._transport.writelines(parts)
        if self.unsent_bytes:
            self._measure()

    def finish(self, size: int) -> None:
        """Prepare to close the connection after the last response, which has `size` bytes."""
        # With TLS, `close` discards data that has not reached the kernel after a second.
        if self._is_encrypted and size > SEND_BUFFER_BYTES:
            self._must_deliver = True
            self._measure()

    def _measure(self) -> None:
        """Measure the client's rate from now on."""
        now = time.monotonic()
        self._sending.restart(now, -self.unsent_bytes)
        self._delivering.restart(now, self._delivered[0])

    def resume(self) -> None:
        """Continue until the transport pauses writing or all data has been passed to it."""
        # With TLS, the write buffer excludes encrypted bytes, and `write` encrypts everything.
        while self._rest and not self.paused:
            piece, self._rest = self._rest[:HIGH_WATER], self._rest[HIGH_WATER:]
            self._transport.write(piece)

    def discard(self) -> None:
        """Discard data that has not been passed to the transport."""
        self._rest = memoryview(b"")

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that have not been passed to the kernel yet."""
        return self._transport.get_write_buffer_size() + len(self._rest)

    @property
    def awaits_delivery(self) -> bool:
        """True if the connection must stay open until the client has received the response."""
        return self._must_deliver and not self._delivered[1]

    @property
    def awaits_client(self) -> bool:
        """True if the client has to receive data before the connection can continue or close."""
        return self.paused or self.awaits_delivery

    def is_too_slow(self, now: float, config: InferenceConfig) -> bool:
        """Return whether the client receives data more slowly than the minimum rate."""
        # The buffers of the kernel and of TLS accept a response in large pieces, so also measure
        # what has reached the client.
        size = self.unsent_bytes
        writes_slowly = not size or self._sending.is_too_slow(now, -size, config)
        return self._delivering.is_too_slow(now, self._delivered[0], config) and writes_slowly

    @property
    def _delivered(self) -> tuple[int, bool]:
        """Number of bytes acknowledged by the client's kernel, and True if none are outstanding.

        If the number is unknown, the values are 0 and True.
        """
        connected = self._transport.get_extra_info("socket")
        if connected is None:
            return 0, True
        try:
            info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
            in_flight, acknowledged, unsent = TCP_INFO.unpack(info)
        except (OSError, ValueError, struct.error):
            # The connection is closed, or the kernel is too old.
            return 0, True
        return acknowledged, not (in_flight or unsent)
