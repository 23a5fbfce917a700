"""The Granian HTTP server on the event loop of the model server."""

import asyncio
import logging
import resource
import socket
from pathlib import Path
from typing import Final

from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.server.embed import Server

from inference.config import InferenceConfig
from inference.http.application import Application
from workload.configuration import ConfigurationError

OTHER_FILES: Final = 256
"""Maximum number of open files other than connections: sockets and memory of the workers."""

_TLS: Final = {"1.2": SSLProtocols.tls12, "1.3": SSLProtocols.tls13}


class Listener:
    """Accepts connections between `start` and `stop`."""

    def __init__(self, config: InferenceConfig, application: Application) -> None:
        """Raise ConfigurationError if the certificate and key cannot be used."""
        self._config, self._in_flight = config, application.in_flight
        self._in_flight.max_connections = allow_connections(config.max_connections)
        self._server = _granian(config, application)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ConfigurationError if the address cannot be bound."""
        self._check_free()
        self._in_flight.start()
        self._serving = asyncio.create_task(self._server.serve())
        # Granian listens after its first steps, or has failed in them.
        await asyncio.sleep(0.01)
        if self._serving.done():
            raise self._cannot_listen(self._serving.exception())

    async def stop(self, seconds: float) -> bool:
        """Close the listening socket and wait for requests in flight.

        Returns False if that took longer than `seconds`.
        """
        if self._serving is None:
            return True
        self._server.stop()  # type: ignore[no-untyped-call]
        done, _ = await asyncio.wait([self._serving], timeout=seconds)
        self._in_flight.stop()
        return bool(done)

    def _check_free(self) -> None:
        """Check the port: Granian would share it with another server without an error."""
        host, port = self._config.host, self._config.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            raise self._cannot_listen(error.strerror) from None

    def _cannot_listen(self, reason: object) -> ConfigurationError:
        host, port = self._config.host, self._config.port
        return ConfigurationError(
            f"INFERENCE_HOST and INFERENCE_PORT: cannot listen on {host}:{port}: {reason}"
        )


def allow_connections(wanted: int) -> int:
    """Raise the limit on open files as far as possible and return the connections it allows.

    A connection beyond the limit would be neither accepted nor left in the backlog.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, allowed - OTHER_FILES)


def _granian(config: InferenceConfig, application: Application) -> Server:
    # Its messages are replaced by our own log lines.
    logging.getLogger("_granian").setLevel(logging.CRITICAL)
    tls = bool(config.tls_certificate)
    try:
        return Server(
            application,
            address=config.host,
            port=config.port,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            websockets=False,
            log_enabled=False,
            backlog=2048,
            # A limit on connections, including idle ones.
            backpressure=application.in_flight.max_connections,
            http1_settings=HTTP1Settings(header_read_timeout=config.idle_seconds * 1000),
            ssl_cert=Path(config.tls_certificate) if tls else None,
            ssl_key=Path(config.tls_key) if tls else None,
            ssl_protocol_min=_TLS[config.tls_minimum],
        )
    except OSError as error:
        raise ConfigurationError(
            f"INFERENCE_TLS_CERTIFICATE and INFERENCE_TLS_KEY: {config.tls_certificate} with "
            f"{config.tls_key} cannot be used: {error.strerror or error}"
        ) from None
