"""Short messages between the server and a worker: JSON in packets that keep their borders."""

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

LARGEST: Final = 1 << 17
"""Bytes of one message; arrays go through an arena."""

Message = dict[str, Any]


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends; the other one's end of life is an empty packet."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class WorkerEnd:
    """Blocks: the worker has nothing else to do."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(True)

    def send(self, message: Message) -> None:
        """Raises OSError when the server is gone."""
        self._end.send(json.dumps(message, separators=(",", ":")).encode())

    def receive(self) -> Message:
        """Wait for the next message and return it. Raises EOFError at the end."""
        try:
            packet = self._end.recv(LARGEST)
        except ConnectionError:
            raise EOFError from None
        if not packet:
            raise EOFError
        message: Message = json.loads(packet)
        return message


class ServerEnd:
    """Never blocks: belongs to an event loop. `received` gets each message."""

    def __init__(self, end: socket.socket, received: Callable[[Message], None]) -> None:
        self._end = end
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[bytes] = deque()
        end.setblocking(False)
        self._loop.add_reader(end, self.read)

    def send(self, message: Message) -> None:
        """Now or as soon as there is room. Nothing happens when the worker is gone."""
        packet = json.dumps(message, separators=(",", ":")).encode()
        if self._outbox:
            self._outbox.append(packet)
            return
        try:
            self._end.send(packet)
        except BlockingIOError:
            self._outbox.append(packet)
            self._loop.add_writer(self._end, self._write)
        except OSError:
            # Its death is told by the process itself.
            return

    def read(self) -> None:
        """Hand over all messages that are there."""
        while self._end.fileno() >= 0:
            try:
                packet = self._end.recv(LARGEST)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._loop.remove_reader(self._end)
                return
            self._received(json.loads(packet))

    def close(self) -> None:
        """The worker ends when it notices."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._loop.remove_writer(self._end)
            self._end.close()
        self._outbox.clear()

    def _write(self) -> None:
        try:
            while self._outbox:
                self._end.send(self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._outbox.clear()
        self._loop.remove_writer(self._end)
