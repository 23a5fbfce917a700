"""Routing and answering of HTTP requests.

Granian calls the application for each request (interface: RSGI,
github.com/emmett-framework/granian).
"""

import asyncio
import math
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

# Granian does not export these types in a way that mypy follows.
from granian.rsgi import HTTPProtocol, ProtocolClosed, ProtocolError, Scope  # type: ignore[attr-defined]

from inference.engine.interface import DeadlineError, InputError
from inference.http import pages
from inference.http.exchange import (
    CLIENT_GONE,
    DISCARDED_BYTES,
    Exchange,
    HttpError,
    InFlight,
    Response,
    Target,
    error_response,
    read_body,
    release_body,
)
from inference.protocol import v2_json
from inference.service import Service
from workload.report import emit

Endpoint = Callable[[Service, Exchange, Target], Awaitable[Response]]

HEADER_LENGTH: Final = "inference-header-content-length"
TIMEOUT: Final = "x-request-timeout"
MAX_TIMEOUT: Final = 86_400
"""Seconds."""


async def infer(service: Service, exchange: Exchange, target: Target) -> Response:
    """POST /v2/models/{model}[/versions/{version}]/infer."""
    pool = service.pool(target.model, target.version)
    body = await read_body(service, exchange)
    if pool is not service.engine.pool:
        # The model was replaced while the body arrived.
        pool = service.pool(target.model, target.version)
    request = v2_json.read_request(body, pool.served, exchange.header(HEADER_LENGTH))
    seconds = request.timeout
    if seconds is None:
        seconds = _requested_seconds(service, exchange)
    deadline = exchange.started + seconds
    if time.monotonic() >= deadline:
        raise DeadlineError("the deadline passed while the request arrived")
    answer = await pool.infer(request.inputs, deadline)
    service.metrics.answered(answer, len(next(iter(request.inputs.values()))))
    if exchange.span is not None and service.tracing is not None:
        service.tracing.answered(exchange.span, answer)
    content, json_length = v2_json.write_answer(request, answer)
    if json_length is None:
        return Response(content)
    return Response(
        content,
        media_type="application/octet-stream",
        headers=((HEADER_LENGTH, str(json_length)),),
    )


def _requested_seconds(service: Service, exchange: Exchange) -> float:
    """Return the header X-Request-Timeout in seconds, or the default. Raises InputError."""
    text = exchange.header(TIMEOUT)
    if text is None:
        return service.config.request_seconds
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_TIMEOUT:
        raise InputError(f"X-Request-Timeout is {text[:80]!r}: it must be seconds, such as 0.5")
    return seconds


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint and how its requests are treated."""

    endpoint: Endpoint
    counted: str = ""
    """Protocol under which requests are counted in metrics; empty: not counted."""
    open: bool = False
    """Whether no API key is required."""
    bounded: bool = False
    """Whether requests are refused unread if too many are in flight."""


Methods = Mapping[str, Route]

_LIVE = Route(pages.live, open=True)
_READY = Route(pages.ready, open=True)

SERVER_PATHS: Final[Mapping[str, Methods]] = {
    "/v2": {"GET": Route(pages.server)},
    "/v2/health/live": {"GET": _LIVE},
    "/v2/health/ready": {"GET": _READY},
    "/v2/repository/index": {"POST": Route(pages.index)},
    "/metrics": {"GET": Route(pages.metrics, open=True)},
    "/openapi.json": {"GET": Route(pages.openapi, open=True)},
}
MODEL_PATHS: Final[Mapping[str, Methods]] = {
    "": {"GET": Route(pages.model)},
    "/ready": {"GET": Route(pages.model_ready, open=True)},
    "/infer": {"POST": Route(infer, "rest", bounded=True)},
}
"""Paths below /v2/models/{model}[/versions/{version}]."""

REPOSITORY_PATHS: Final[Mapping[str, Methods]] = {"/load": {"POST": Route(pages.load)}}
"""Paths below /v2/repository/models/{model}."""


class Router:
    """Finds the route of a path."""

    def __init__(self, model: str) -> None:
        # Most requests have one of these paths, which need no parsing.
        self._known = {path: (methods, Target()) for path, methods in SERVER_PATHS.items()}
        for action, methods in MODEL_PATHS.items():
            self._known[f"/v2/models/{model}{action}"] = (methods, Target(model))

    def find(self, method: str, path: str) -> tuple[Route, Target]:
        """Return the route and the model that the path names. Raises HttpError 404 or 405."""
        methods, target = self._known.get(path) or self._parse(path)
        route = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
        if route is None:
            allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
            raise HttpError(405, f"this path supports {allowed}", (("allow", allowed),))
        return route, target

    def _parse(self, path: str) -> tuple[Methods, Target]:
        match path.split("/"):
            case ["", "v2", "models", name, "versions", version, *rest] if name and version:
                paths, target = MODEL_PATHS, Target(name, version)
            case ["", "v2", "models", name, *rest] if name:
                paths, target = MODEL_PATHS, Target(name)
            case ["", "v2", "repository", "models", name, *rest] if name:
                paths, target = REPOSITORY_PATHS, Target(name)
            case rest:
                paths, target = {}, Target()
        found = paths.get("".join(f"/{part}" for part in rest))
        if found is None:
            raise HttpError(404, "no such path: /openapi.json lists the paths")
        return found, target


class Application:
    """Answers requests until the server stops."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._router = Router(service.config.model_name)
        self.in_flight = InFlight(service)

    async def __rsgi__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        """Answer one request."""
        if scope.proto != "http":
            # A WebSocket, although Granian is configured to refuse them.
            protocol.close(404)  # type: ignore[attr-defined]
            return
        exchange = Exchange(scope, protocol)
        exchange.request_id = self._service.request_id(exchange.header("x-request-id"))
        try:
            route, target = self._router.find(exchange.method, exchange.path)
        except HttpError as error:
            self._send(exchange, error_response(error))
            return
        if route.bounded and not self.in_flight.admit(exchange):
            if exchange.announces_at_most(DISCARDED_BYTES):
                # As cheap as possible, since there are many requests now.
                exchange.consumed = True
                self._send(exchange, error_response(self.in_flight.refusal))
                self._finished(exchange, route)
            else:
                await self._counted(exchange, route, self.in_flight.refuse, target)
        elif route.counted:
            await self._counted(exchange, route, route.endpoint, target)
        else:
            response = await self._answer(exchange, route, route.endpoint, target)
            if response is not None:
                self._send(exchange, response)

    async def _counted(
        self, exchange: Exchange, route: Route, endpoint: Endpoint, target: Target
    ) -> None:
        """Answer a request that is counted, watched, traced and logged."""
        service = self._service
        service.metrics.in_flight += 1
        self.in_flight.add(exchange)
        if service.tracing is not None:
            exchange.span = service.tracing.begin(
                f"{route.counted} {service.config.model_name}",
                exchange.header,
                {"http.request.method": exchange.method, "url.path": exchange.path},
            )
        try:
            response = await self._answer(exchange, route, endpoint, target)
            if response is not None:
                self._send(exchange, response)
        finally:
            self.in_flight.release(exchange)
            self.in_flight.remove(exchange)
            release_body(service, exchange)
            service.metrics.in_flight -= 1
            if exchange.span is not None and service.tracing is not None:
                service.tracing.end(exchange.span, exchange.code)
            self._finished(exchange, route)

    def _finished(self, exchange: Exchange, route: Route) -> None:
        self._service.finished(
            route.counted,
            exchange.code,
            exchange.started,
            exchange.request_id,
            exchange.method,
            exchange.path,
        )

    async def _answer(
        self, exchange: Exchange, route: Route, endpoint: Endpoint, target: Target
    ) -> Response | None:
        """Return the answer; None if the client has disconnected."""
        try:
            if not route.open and self._service.access.required:
                self._check_access(exchange)
            return await endpoint(self._service, exchange, target)
        except (ProtocolClosed, ProtocolError):
            exchange.code = CLIENT_GONE
            return None
        except asyncio.CancelledError:
            if exchange.timed_out:
                return error_response(HttpError(408, "the body did not arrive in time"))
            exchange.code = CLIENT_GONE
            return None
        except Exception as error:
            try:
                return error_response(error)
            except Exception:
                return self._internal_error(exchange)

    def _internal_error(self, exchange: Exchange) -> Response:
        """Log the current exception with the request ID, which is all that the client gets."""
        emit("error", id=exchange.request_id, path=exchange.path, trace=traceback.format_exc())
        message = f"internal server error, request {exchange.request_id}; see the server log"
        return error_response(HttpError(500, message))

    def _check_access(self, exchange: Exchange) -> None:
        header = exchange.header
        if not self._service.access.allows(header("authorization"), header("x-api-key")):
            raise HttpError(
                401,
                "API key required: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`",
                (("www-authenticate", "Bearer"),),
            )

    def _send(self, exchange: Exchange, response: Response) -> None:
        headers: list[tuple[str, str]] = [
            ("content-type", response.media_type),
            ("x-request-id", exchange.request_id),
            *response.headers,
        ]
        # While draining, the client's next request should reach another server.
        if (
            self._service.engine.draining
            or self.in_flight.crowded
            or (response.status >= 400 and exchange.unread)
        ):
            headers.append(("connection", "close"))
        exchange.code = response.status
        exchange.protocol.response_bytes(response.status, headers, response.body)
