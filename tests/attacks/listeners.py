"""A small ASGI application, and the commands of other HTTP servers that run it during attacks.

The application reads bodies up to the same limit as our server and parses their JSON, so that only
the HTTP servers differ. Limits on clients are configured if the HTTP server has such options.
"""

import json
from typing import Any, Final

from tools.bench.inference.servers.echo import Receive, Send, lifespan
from tools.environments import environment

HEALTH: Final = "/v2/health/ready"
MAX_BODY: Final = 16 * 2**20
LARGE_BYTES: Final = 2**20
"""Size of a sample's large output, as in `tests.attacks.model`."""

OTHERS: Final[dict[str, tuple[str, ...]]] = {
    "uvicorn": (
        *("uvicorn", "--loop=uvloop", "--http=httptools", "--limit-concurrency=4096"),
        *("--no-access-log", "--log-level=critical"),
    ),
    "granian": (
        *("granian", "--interface=asgi", "--loop=uvloop", "--http=1", "--no-ws"),
        *("--http1-header-read-timeout=5000", "--backpressure=4096", "--log-level=critical"),
    ),
}
"""Modules and options by name."""


def command(name: str, port: int) -> list[str]:
    """Return the command that serves the application with one of `OTHERS`."""
    module, *options = OTHERS[name]
    application = f"{__name__}:application"
    address = ["--host=127.0.0.1", f"--port={port}"]
    python = str(environment("bench-http", inherits=True))
    return [python, "-m", module, *options, *address, application]


async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answer health checks, and inference requests with the requested outputs."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    status, body = 200, b"{}"
    if scope["path"] not in (HEALTH, "/v2"):
        status, body = await _infer(scope, receive)
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


async def _infer(scope: dict[str, Any], receive: Receive) -> tuple[int, bytes]:
    body, is_incomplete = bytearray(), True
    while is_incomplete:
        message = await receive()
        if message["type"] == "http.disconnect":
            return 499, b""
        body += message.get("body", b"")
        is_incomplete = message.get("more_body", False)
        if len(body) > MAX_BODY:
            return 413, b"{}"
    json_length = dict(scope["headers"]).get(b"inference-header-content-length")
    try:
        document = json.loads(body[: int(json_length)] if json_length else body)
        (tensor,), (output,) = document["inputs"], document["outputs"]
        samples, large = int(tensor["shape"][0]), output["name"] == "large"
    except (ValueError, LookupError, TypeError):
        return 400, b"{}"
    # The character "0", not zero bytes: pages of zero bytes would use no memory.
    return 200, b"0" * (samples * LARGE_BYTES) if large else b"{}"
