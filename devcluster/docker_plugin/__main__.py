"""Server of the stand-in for the Docker plugin. Its first argument is the engine's address."""

import argparse
import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
from pulumi.provider.experimental.server import ProviderServicer
from pulumi.runtime.proto import provider_pb2_grpc

from devcluster.docker_plugin import VERSION
from devcluster.docker_plugin.inputs import ImageError
from devcluster.docker_plugin.provider import EngineLog, ImageProvider

MAX_MESSAGE_BYTES = 400 * 1024 * 1024


class Servicer(ProviderServicer):
    """Servicer that reports user errors without a traceback.

    The engine treats the gRPC status of these errors, FAILED_PRECONDITION, as a clean failure. Any
    other status would leave a pending operation in the stack's state.
    """

    async def Configure(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Store the provider's settings."""
        return await _without_traceback(super().Configure, request, context)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Validate inputs and add defaults."""
        return await _without_traceback(super().Check, request, context)

    async def Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Build and push an image."""
        return await _without_traceback(super().Create, request, context)

    async def Update(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Build and push an image again."""
        return await _without_traceback(super().Update, request, context)


async def _without_traceback(
    method: Callable[[Any, Any], Awaitable[Any]], request: Any, context: Any
) -> Any:
    try:
        return await method(request, context)
    except ImageError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


async def serve(arguments: list[str] | None = None) -> None:
    """Print the port as the first line, then serve until the engine terminates the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", help="address of Pulumi's engine, which receives the log lines")
    engine, _ = parser.parse_known_args(arguments)
    async with grpc.aio.insecure_channel(engine.engine) as channel:
        server, port = await start(ImageProvider(EngineLog.on(channel)), engine.engine)
        print(port, flush=True)
        await server.wait_for_termination()


async def start(provider: ImageProvider, engine: str) -> tuple[grpc.aio.Server, int]:
    """Start a server on a free loopback port; return the server and the port."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
    servicer = Servicer([], VERSION, provider, engine)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
