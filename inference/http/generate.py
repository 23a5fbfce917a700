"""POST …/generate and …/generate_stream."""

import contextlib
from collections.abc import AsyncGenerator
from typing import cast

from inference.engine.interface import InputError, RefusedError
from inference.http.body import read_body
from inference.http.exchange import Exchange, Response
from inference.http.infer import requested_seconds
from inference.http.routes import Target
from inference.http.rsgi import ProtocolClosed, ProtocolError
from inference.protocol import generate as protocol
from inference.service import Service

_End = object()


async def generate(service: Service, exchange: Exchange, target: Target) -> Response:
    """All tokens in one answer."""
    request, tokens = await _begin(service, exchange, target)
    async with contextlib.aclosing(tokens):
        found = [token async for token in tokens]
    return Response(protocol.answer(request, service.served(), found))


async def generate_stream(service: Service, exchange: Exchange, target: Target) -> None:
    """Each token as a server-sent event, as soon as it is there.

    What goes wrong before the first token is answered as usual, and what does later is the last
    event: {"error": …}.
    """
    request, tokens = await _begin(service, exchange, target)
    served = service.served()
    async with contextlib.aclosing(tokens):
        token: object = await anext(tokens, _End)
        stream = exchange.protocol.response_stream(
            200,
            [
                ("content-type", "text/event-stream"),
                ("cache-control", "no-store"),
                # Otherwise nginx would collect the events.
                ("x-accel-buffering", "no"),
                ("x-request-id", exchange.request_id),
            ],
        )
        exchange.code = 200
        with contextlib.suppress(ProtocolClosed, ProtocolError):
            index = 0
            try:
                while token is not _End:
                    content = protocol.event(request, served, index, cast(int, token))
                    await stream.send_bytes(content)
                    index += 1
                    token = await anext(tokens, _End)
            except (InputError, RefusedError) as error:
                await stream.send_bytes(protocol.sse({"error": str(error)}))


async def _begin(
    service: Service, exchange: Exchange, target: Target
) -> tuple[protocol.GenerateRequest, AsyncGenerator[int, None]]:
    _check_generates(service, target)
    body = await read_body(service, exchange)
    _check_generates(service, target)
    request = protocol.read_request(body)
    deadline = exchange.started + requested_seconds(service, exchange)
    tokens = service.engine.generate(request.tokens, request.sampling, deadline)
    return request, cast(AsyncGenerator[int, None], tokens)


def _check_generates(service: Service, target: Target) -> None:
    served = service.served(target.model, target.version)
    if not served.generates:
        raise InputError(f"model {served.name!r} generates no tokens: ask …/infer")
