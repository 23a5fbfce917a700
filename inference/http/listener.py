"""Listeners for the client port and, in a separate thread, for the administration port."""

import asyncio
import resource
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final

import uvloop

from inference.config import InferenceConfig
from inference.http.application import Application, Routes
from inference.http.connection import Connection
from inference.http.limits import Limits
from inference.service import Service
from workload.configuration import ConfigurationError
from workload.files import stamp_of
from workload.report import emit

RESERVED_FILES: Final = 1024
"""Number of file descriptors reserved for uses other than client connections: the workers' sockets
and shared memory, TLS handshakes, and connections to the administration port."""

ADMIN_CONNECTIONS: Final = 128
BACKLOG: Final = 4096
_TLS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

MIN_HANDSHAKES: Final = 16
MAX_HANDSHAKES: Final = 512
"""Upper bound of the limit on concurrent TLS handshakes. The limit is an eighth of the maximum
number of connections, but at least `MIN_HANDSHAKES` and at most `MAX_HANDSHAKES`."""

ACCEPT_SECONDS: Final = 0.1
"""Time (s) until connections are accepted again after the limit on open files was reached."""

TLS_CLOSE_SECONDS: Final = 1.0
"""Time (s) to wait for the answer to TLS's close_notify alert, which idle clients do not read."""


class Certificate:
    """The TLS certificate. `refresh` reads its files again if they have changed."""

    context: ssl.SSLContext
    """Context for new connections, which `refresh` replaces."""

    def __init__(self, config: InferenceConfig) -> None:
        """Raise ConfigurationError if the certificate and key cannot be used."""
        self._chain, self._key = Path(config.tls_certificate), Path(config.tls_key)
        self._minimum = _TLS[config.tls_minimum]
        self._reported = ""
        try:
            self.context = self._read()
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"INFERENCE_TLS_CERTIFICATE and INFERENCE_TLS_KEY: {self._chain} with "
                f"{self._key} cannot be used: {error}"
            ) from None

    def refresh(self) -> None:
        """Use a renewed certificate for new connections. If it is invalid, keep the current one."""
        try:
            if self._stamps() != self._read_stamps:
                self.context = self._read()
                emit("certificate_reloaded", file=str(self._chain))
            self._reported = ""
        except (OSError, ValueError) as error:
            reason, reported = str(error), self._reported
            self._reported = reason
            if reason != reported:
                emit("certificate_kept", file=str(self._chain), reason=reason)

    def _stamps(self) -> tuple[object, object]:
        return stamp_of(self._chain), stamp_of(self._key)

    def _read(self) -> ssl.SSLContext:
        stamps = self._stamps()
        # Create a new context for each read. A context keeps one certificate per key type, so
        # reusing it could keep an old certificate, and a failed load would make it unusable.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = self._minimum
        context.load_cert_chain(self._chain, self._key, self._reject_encrypted_key)
        self._read_stamps = stamps
        return context

    def _reject_encrypted_key(self) -> str:
        """Raise ValueError for an encrypted key. By default, OpenSSL would prompt on a terminal."""
        raise ValueError(f"{self._key} is encrypted: use a key without a passphrase")


class Handshakes:
    """TLS connections that are not established yet; `Limits` counts established ones."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._peers: dict[asyncio.Task[None], str] = {}

    def begin(self, peer: str, handshake: Coroutine[None, None, None]) -> None:
        """Run a handshake.

        If the limit has been reached, first cancel the oldest handshake of the peer with the most
        handshakes.
        """
        if len(self._peers) >= self._maximum:
            ((most, _),) = Counter(self._peers.values()).most_common(1)
            oldest = next(task for task, owner in self._peers.items() if owner == most)
            oldest.cancel()
            del self._peers[oldest]
        task = asyncio.get_running_loop().create_task(handshake)
        self._peers[task] = peer
        task.add_done_callback(lambda ended: self._peers.pop(ended, None))

    def stop(self) -> None:
        """Cancel all handshakes."""
        for task in self._peers:
            task.cancel()


class Listener:
    """Listener that accepts connections on one port, in the event loop in which it is started."""

    def __init__(
        self, service: Service, routes: Routes, setting: str, port: int, max_connections: int
    ) -> None:
        self._setting, self._host, self._port = setting, service.config.host, port
        self.limits = Limits(service.config, max_connections)
        self._application = Application(service, routes, self.limits)
        handshakes = min(MAX_HANDSHAKES, max(MIN_HANDSHAKES, max_connections // 8))
        self._handshakes = Handshakes(handshakes)
        self._listening: asyncio.Server | asyncio.Task[None] | None = None

    async def start(self, certificate: Certificate | None, *callbacks: Callable[[], None]) -> None:
        """Listen, and call the `callbacks` in each sweep over the connections.

        Raise ConfigurationError if the address cannot be bound.
        """
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            listening = socket.create_server(
                (self._host, self._port), family=family, backlog=BACKLOG
            )
        except OSError as error:
            raise ConfigurationError(
                f"INFERENCE_HOST and {self._setting}: cannot listen on "
                f"{self._host}:{self._port}: {error.strerror}"
            ) from None
        loop = asyncio.get_running_loop()
        if certificate is not None:
            listening.setblocking(False)
            self._listening = loop.create_task(self._accept(listening, certificate))
        else:
            self._listening = await loop.create_server(
                lambda: Connection(self._application), sock=listening, backlog=BACKLOG
            )
        self.limits.start(*callbacks)

    async def _accept(self, listening: socket.socket, certificate: Certificate) -> None:
        """Accept TLS connections and limit their handshakes, which asyncio's server cannot do."""
        with listening:
            while True:
                try:
                    client, address = await asyncio.get_running_loop().sock_accept(listening)
                except OSError:
                    await asyncio.sleep(ACCEPT_SECONDS)
                else:
                    self._handshakes.begin(address[0], self._secure(client, certificate.context))

    async def _secure(self, client: socket.socket, context: ssl.SSLContext) -> None:
        """Perform a TLS handshake, and then pass the connection to a `Connection`."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self._application),
                client,
                ssl=context,
                ssl_handshake_timeout=self.limits.config.header_seconds,
                ssl_shutdown_timeout=TLS_CLOSE_SECONDS,
            )
        except (OSError, asyncio.CancelledError):
            client.close()

    async def drain(self, seconds: float) -> bool:
        """Close the listening socket and wait until all requests are answered.

        Return False if this takes longer than `seconds`.
        """
        if isinstance(self._listening, asyncio.Task):
            self._listening.cancel()
        elif self._listening is not None:
            self._listening.close()
        return await self.limits.drain(seconds)

    def stop(self) -> None:
        """Close all connections."""
        self._handshakes.stop()
        self.limits.stop()


class AdminListener:
    """Listener for the administration port, in a separate thread so that it responds under load."""

    def __init__(self, service: Service, routes: Routes) -> None:
        port = service.config.admin_port
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # If the limit on open files is low, leave most descriptors to workers and clients.
        limit = files // 8 if files != resource.RLIM_INFINITY else ADMIN_CONNECTIONS
        allowed = min(ADMIN_CONNECTIONS, limit)
        self._listener = Listener(service, routes, "INFERENCE_ADMIN_PORT", port, allowed)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="admin", daemon=True)

    async def start(self, certificate: Certificate | None) -> None:
        """Listen. Raise ConfigurationError if the address cannot be bound."""
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(self._listener.start(certificate), self._loop)
        await asyncio.wrap_future(starting)

    def stop(self) -> None:
        """Stop the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1)


def allow_connections(wanted: int) -> int:
    """Raise the limit on open files as needed; return the number of client connections it allows.

    At most half of the file descriptors are reserved for other uses. If no descriptor is free, new
    connections are closed immediately, including connections to the administration port.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return min(wanted, max(allowed // 2, allowed - RESERVED_FILES))
