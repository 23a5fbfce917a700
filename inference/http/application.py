"""What Granian calls for each request (interface: RSGI, github.com/emmett-framework/granian)."""

import asyncio
import traceback

from inference.http import infer, pages
from inference.http.admission import Admission
from inference.http.body import release_body
from inference.http.exchange import CLIENT_GONE, Exchange, HttpError, Response, error_response
from inference.http.routes import Handler, Methods, Route, Router, Target
from inference.http.rsgi import HTTPProtocol, ProtocolClosed, ProtocolError, Scope
from inference.http.watch import Watch
from inference.service import Service
from workload.report import emit

_LIVE = Route(pages.live, open=True)
_READY = Route(pages.ready, open=True)

PLAIN: dict[str, Methods] = {
    "/v2": {"GET": Route(pages.server)},
    "/v2/health/live": {"GET": _LIVE},
    "/v2/health/ready": {"GET": _READY},
    "/v2/repository/index": {"POST": Route(pages.index)},
    "/metrics": {"GET": Route(pages.metrics, open=True)},
    "/openapi.json": {"GET": Route(pages.openapi, open=True)},
}
MODEL: dict[str, Methods] = {
    "": {"GET": Route(pages.model)},
    "/ready": {"GET": Route(pages.model_ready, open=True)},
    "/infer": {"POST": Route(infer.infer, "rest", bounded=True)},
}
REPOSITORY: dict[str, Methods] = {"/load": {"POST": Route(pages.load)}}


class Application:
    """Answers requests until the server ends."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._router = Router(PLAIN, MODEL, REPOSITORY, service.config.model_name)
        self._admission = Admission(service)
        self.watch = Watch(service, self._admission)

    async def __rsgi__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        """Answer one request."""
        if scope.proto != "http":
            # A WebSocket, which Granian was told not to take.
            protocol.close(404)  # type: ignore[attr-defined]
            return
        exchange = Exchange(scope, protocol)
        exchange.request_id = self._service.request_id(exchange.header("x-request-id"))
        try:
            route, target = self._router.find(exchange.method, exchange.path)
        except HttpError as error:
            self._send(exchange, error_response(error))
            return
        if route.bounded and not self._admission.enter(exchange):
            if self._admission.passes_over(exchange):
                # The least that a request can cost, since now there are many.
                self._send(exchange, error_response(self._admission.refusal))
                self._finished(exchange, route)
            else:
                await self._counted(exchange, route, self._admission.refuse, target)
        elif route.counted:
            await self._counted(exchange, route, route.handler, target)
        else:
            response = await self._answer(exchange, route, route.handler, target)
            if response is not None:
                self._send(exchange, response)

    async def _counted(
        self, exchange: Exchange, route: Route, handler: Handler, target: Target
    ) -> None:
        service = self._service
        service.metrics.in_flight += 1
        self.watch.add(exchange)
        if service.tracing is not None:
            exchange.span = service.tracing.begin(
                f"{route.counted} {service.config.model_name}",
                exchange.header,
                {"http.request.method": exchange.method, "url.path": exchange.path},
            )
        try:
            response = await self._answer(exchange, route, handler, target)
            if response is not None:
                self._send(exchange, response)
        finally:
            self._admission.leave(exchange)
            self.watch.remove(exchange)
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
        self, exchange: Exchange, route: Route, handler: Handler, target: Target
    ) -> Response | None:
        """Return the answer; None if the client has gone."""
        try:
            if not route.open and self._service.access.needed:
                self._check_access(exchange)
            return await handler(self._service, exchange, target)
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
                return self._failed(exchange)

    def _failed(self, exchange: Exchange) -> Response:
        """A mistake of the server's own: told in its log, not to the client."""
        emit("error", id=exchange.request_id, path=exchange.path, trace=traceback.format_exc())
        said = f"the server has made a mistake; its log tells more of {exchange.request_id}"
        return error_response(HttpError(500, said))

    def _check_access(self, exchange: Exchange) -> None:
        header = exchange.header
        if not self._service.access.allows(header("authorization"), header("x-api-key")):
            raise HttpError(
                401,
                "an API key is needed: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`",
                (("www-authenticate", "Bearer"),),
            )

    def _send(self, exchange: Exchange, response: Response) -> None:
        headers: list[tuple[str, str]] = [
            ("content-type", response.media_type),
            ("x-request-id", exchange.request_id),
            *response.headers,
        ]
        # While draining, the client's next request goes to another server, and not into this end.
        if (
            self._service.engine.draining
            or self.watch.crowded
            or (response.status >= 400 and exchange.unread)
        ):
            headers.append(("connection", "close"))
        exchange.code = response.status
        exchange.protocol.response_bytes(response.status, headers, response.body)
