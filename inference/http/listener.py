"""Granian on the event loop of the server: listen, and end without a lost request."""

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

OTHERS: Final = 256
"""Files that are open beside the connections, at most: sockets and memory of the workers."""

_TLS = {"1.2": SSLProtocols.tls12, "1.3": SSLProtocols.tls13}


class Listener:
    """Takes connections between `start` and `stop`."""

    def __init__(self, config: InferenceConfig, application: Application) -> None:
        """Raises ConfigurationError when certificate and key cannot be used."""
        self._config, self._application = config, application
        application.watch.most = connections(config.max_connections)
        self._server = _granian(config, application)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ConfigurationError when the address cannot be had."""
        self._check_free()
        self._application.watch.start()
        self._serving = asyncio.create_task(self._server.serve())
        # It listens after its first steps, or has failed in them.
        await asyncio.sleep(0.01)
        if self._serving.done():
            raise self._cannot_listen(self._serving.exception())

    def _check_free(self) -> None:
        """Granian would share a port with another server, and nobody would notice."""
        host, port = self._config.host, self._config.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            raise self._cannot_listen(error.strerror) from None

    def _cannot_listen(self, why: object) -> ConfigurationError:
        host, port = self._config.host, self._config.port
        return ConfigurationError(
            f"INFERENCE_HOST and INFERENCE_PORT: cannot listen on {host}:{port}: {why}"
        )

    async def stop(self, seconds: float) -> bool:
        """Take no more connections, and wait for what is in flight.

        False when that took longer than `seconds`.
        """
        if self._serving is None:
            return True
        self._server.stop()  # type: ignore[no-untyped-call]
        done, _ = await asyncio.wait([self._serving], timeout=seconds)
        self._application.watch.stop()
        return bool(done)


def connections(wanted: int) -> int:
    """As many as there may be open files for: one more would neither be accepted nor left to wait.

    The limit of this process is raised as far as it may be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, allowed - OTHERS)


def _granian(config: InferenceConfig, application: Application) -> Server:
    # What it would say is told in our own lines.
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
            # It counts connections, also idle ones.
            backpressure=application.watch.most,
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
