"""Lines in the output of `pulumi up`."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import cast

import grpc.aio
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc


@dataclass(frozen=True)
class EngineLog:
    """Log of Pulumi's engine. A line that cannot be delivered is dropped."""

    stub: engine_pb2_grpc.EngineStub

    @classmethod
    def on(cls, channel: grpc.aio.Channel) -> "EngineLog":
        """The log at the other end of a channel."""
        return cls(engine_pb2_grpc.EngineStub(channel))

    async def say(self, message: str, urn: str = "", *, passing: bool = False) -> None:
        """Shows a line for a resource; a passing one disappears when the operation is done."""
        line = engine_pb2.LogRequest(
            severity=engine_pb2.INFO, message=message, urn=urn, ephemeral=passing
        )
        # The stub's types are those of a channel without asyncio.
        call = cast(Awaitable[object], self.stub.Log(line, timeout=5))
        try:
            await call
        except grpc.RpcError:
            return
