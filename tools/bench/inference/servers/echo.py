"""Minimal echo servers: RSGI and ASGI applications, an aiohttp server, and our listener."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

HEADERS = [("content-type", "application/octet-stream")]


async def rsgi_app(_: Any, protocol: Any) -> None:
    """Echo the body through RSGI, Granian's interface."""
    body = await protocol()
    protocol.response_bytes(200, HEADERS, body)


async def lifespan(receive: Receive, send: Send) -> None:
    """Acknowledge the startup and the shutdown of an ASGI server."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def asgi_app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Echo the body through ASGI, without a framework."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(key.encode(), value.encode()) for key, value in HEADERS]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _aiohttp(port: int) -> None:
    from aiohttp import web

    async def echo(request: web.BaseRequest) -> web.Response:
        return web.Response(body=await request.read())

    runner = web.ServerRunner(web.Server(echo))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def _listener(port: int) -> None:
    """Echo through the listener of our server, with its limits. The engine is not started."""
    from inference.config import InferenceConfig
    from inference.engine.engine import ModelEngine
    from inference.http.application import Route
    from inference.http.listener import Listener
    from inference.http.messages import Response
    from inference.metrics import Metrics
    from inference.service import Service

    def echo(_: Service, request: Any, __: Any) -> Response:
        return Response(bytes(request.body), media_type="application/octet-stream")

    config = InferenceConfig(model_name="echo", model_path="/none", host="127.0.0.1", port=port)
    metrics = Metrics()
    service = Service(config, ModelEngine(config, metrics), metrics)
    routes = {"/": Route(echo, "Echo", "Object", method="POST", scope=None)}
    await Listener(service, routes, "INFERENCE_PORT", port, config.max_connections).start(None)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    servers = {"aiohttp": _aiohttp, "ours": _listener}
    uvloop.run(servers[sys.argv[1]](int(sys.argv[2])))
