"""POST …/generate and …/generate_stream."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import cast

from inference.engine.interface import DeadlineError, InputError, RefusedError
from inference.http.body import read_body
from inference.http.exchange import Exchange, Response
from inference.http.infer import requested_seconds
from inference.http.routes import Target
from inference.http.rsgi import Stream
from inference.protocol import generate as protocol
from inference.service import Service


async def generate(service: Service, exchange: Exchange, target: Target) -> Response:
    """All tokens in one answer."""
    request, tokens, seconds = await _begin(service, exchange, target)
    async with contextlib.aclosing(tokens):
        try:
            async with asyncio.timeout(seconds):
                found = [token async for token in tokens]
        except TimeoutError:
            raise _late() from None
    return Response(protocol.answer(request, service.served(), found))


async def generate_stream(service: Service, exchange: Exchange, target: Target) -> None:
    """Each token as a server-sent event, as soon as it is there.

    What goes wrong before the first token is answered as usual, and what does later is the last
    event: {"error": …}.
    """
    request, tokens, seconds = await _begin(service, exchange, target)
    async with contextlib.aclosing(tokens):
        stream: Stream | None = None
        try:
            async with asyncio.timeout(seconds):
                served, index = service.served(), 0
                async for token in tokens:
                    stream = stream or _opened(exchange)
                    await stream.send_bytes(protocol.event(request, served, index, token))
                    index += 1
            if stream is None:
                # The first token was one to stop at: a stream without events.
                _opened(exchange)
        except (InputError, RefusedError, TimeoutError) as error:
            said = _late() if isinstance(error, TimeoutError) else error
            if stream is None:
                raise said from None
            await stream.send_bytes(protocol.sse({"error": str(said)}))


def _opened(exchange: Exchange) -> Stream:
    """The answer begins: from now on its status is 200."""
    exchange.code = 200
    headers = [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-store"),
        # Otherwise nginx would collect the events.
        ("x-accel-buffering", "no"),
        ("x-request-id", exchange.request_id),
    ]
    return exchange.protocol.response_stream(200, headers)


def _late() -> DeadlineError:
    return DeadlineError("the deadline passed before all tokens were computed")


async def _begin(
    service: Service, exchange: Exchange, target: Target
) -> tuple[protocol.GenerateRequest, AsyncGenerator[int, None], float]:
    _check_generates(service, target)
    body = await read_body(service, exchange)
    _check_generates(service, target)
    request = protocol.read_request(body)
    deadline = exchange.started + requested_seconds(service, exchange)
    tokens = service.engine.generate(request.tokens, request.sampling, deadline)
    left = max(0.0, deadline - time.monotonic())
    return request, cast(AsyncGenerator[int, None], tokens), left


def _check_generates(service: Service, target: Target) -> None:
    served = service.served(target.model, target.version)
    if not served.generates:
        raise InputError(f"model {served.name!r} generates no tokens: ask …/infer")
