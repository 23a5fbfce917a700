"""Serves the provider over gRPC, as Pulumi's engine expects of a plugin."""

import argparse
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
from pulumi.provider.experimental.server import ProviderServicer
from pulumi.runtime.proto import provider_pb2_grpc

from devcluster.docker_plugin.engine_log import EngineLog
from devcluster.docker_plugin.errors import ImageError
from devcluster.docker_plugin.install import VERSION
from devcluster.docker_plugin.provider import ImageProvider

MAXIMUM_MESSAGE_BYTES = 400 * 1024 * 1024


class Servicer(ProviderServicer):
    """Answers a mistake of the user's with its sentence instead of a traceback.

    The status is one that the engine takes for an orderly refusal; others leave a pending
    operation in the stack's state.
    """

    async def Configure(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Takes the provider's own settings."""
        return await _plainly(super().Configure, request, context)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Validates inputs and adds defaults."""
        return await _plainly(super().Check, request, context)

    async def Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Builds and pushes."""
        return await _plainly(super().Create, request, context)

    async def Update(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Builds and pushes again."""
        return await _plainly(super().Update, request, context)


async def _plainly(method: Callable[[Any, Any], Awaitable[Any]], request: Any, context: Any) -> Any:
    try:
        return await method(request, context)
    except ImageError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


async def serve(arguments: list[str] | None = None) -> None:
    """Serves until the engine ends the process; the port is the first line of standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", help="address of Pulumi's engine, for log lines")
    engine, _ = parser.parse_known_args(arguments)
    async with grpc.aio.insecure_channel(engine.engine) as channel:
        server, port = await start(ImageProvider(EngineLog.on(channel)), engine.engine)
        print(port, flush=True)
        await server.wait_for_termination()


async def start(provider: ImageProvider, engine: str) -> tuple[grpc.aio.Server, int]:
    """Starts serving on a free port of this machine alone; returns the server and the port."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAXIMUM_MESSAGE_BYTES)])
    servicer = Servicer([], VERSION, provider, engine)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port
