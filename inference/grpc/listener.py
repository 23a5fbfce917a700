"""The gRPC server's port, from its start to its end."""

import asyncio
from pathlib import Path
from typing import Final

import grpc

from inference.grpc.intake import largest_message
from inference.grpc.servicer import Servicer
from inference.service import Service
from training.config import ConfigurationError

_LATER: Final = 60
"""Seconds after those of `stop` in which `close` is called."""


class GrpcListener:
    """Takes calls between `start` and `stop`; what is not answered then ends with `close`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._server: grpc.aio.Server | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ConfigurationError when the port cannot be had."""
        config = self._service.config
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", largest_message(config)),
                ("grpc.max_send_message_length", -1),
                # Otherwise two servers could share a port without anybody noticing.
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", config.idle_seconds * 1000),
            )
        )
        self._server.add_generic_rpc_handlers((Servicer(self._service).handlers(),))
        host = f"[{config.host}]" if ":" in config.host else config.host
        address = f"{host}:{config.grpc_port}"
        try:
            if config.tls_certificate:
                self._server.add_secure_port(address, self._credentials())
            else:
                self._server.add_insecure_port(address)
        except RuntimeError:
            raise ConfigurationError(f"INFERENCE_GRPC_PORT: cannot listen on {address}") from None
        await self._server.start()

    async def stop(self, seconds: float) -> bool:
        """Take no more calls, and wait for those in flight.

        False when that took longer than `seconds`; `close` has to follow.
        """
        if self._server is None:
            return True
        self._stopping = asyncio.create_task(self._server.stop(seconds + _LATER))
        done, _ = await asyncio.wait([self._stopping], timeout=seconds)
        return bool(done)

    async def close(self) -> None:
        """Cancel the calls that are still in flight."""
        if self._server is not None and self._stopping is not None:
            await self._server.stop(None)
            await self._stopping

    def _credentials(self) -> grpc.ServerCredentials:
        config = self._service.config
        key, certificate = Path(config.tls_key), Path(config.tls_certificate)
        return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
