"""Routing of HTTP requests, access control, and conversion of errors to responses."""

import asyncio
import os
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

from inference.access import Access, Scope
from inference.engine.interface import OverloadedError
from inference.http.limits import Limits
from inference.http.messages import (
    CLIENT_GONE,
    JSON_LENGTH,
    HttpError,
    Request,
    Response,
    error_response,
)
from inference.service import Service
from workload.report import emit

Reserve = Callable[[int], bool]
"""Function that counts bytes against the limits until the response is sent.

It returns False if a limit would be exceeded.
"""


class Pending(NamedTuple):
    """A response that is being computed: a future, and the conversion of its result."""

    future: "asyncio.Future[Any]"
    finish: Callable[["asyncio.Future[Any]"], Response]
    is_slow: bool = False
    """True if the conversion may delay other requests."""


Endpoint = Callable[[Service, Request, Reserve], "Response | Pending"]


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint with its description."""

    endpoint: Endpoint
    summary: str
    schema: str
    """Name of the response's schema in `inference.http.openapi`."""
    errors: tuple[int, ...] = ()
    """Status codes of errors, other than those of access control."""
    method: str = "GET"
    scope: Scope | None = "infer"
    """Scope that the API key needs; None if no key is required."""
    counted: str = ""
    """Protocol under which requests are counted in metrics; empty if they are not counted."""


Routes = Mapping[str, Route]
"""Routes by path. `{model}` stands for a model name. In paths below `/v2/models/`, the name may be
followed by `/versions/<version>`."""

# Limit the length of names, because paths are logged and traced.
_MODEL_PATTERN: Final = "(?P<model>[^/]{1,80})"
_VERSIONED_PATTERN: Final = f"/v2/models/{_MODEL_PATTERN}(?:/versions/(?P<version>[^/]{{1,80}}))?"

_MIN_LOGGED_STATUS: Final = {"none": 1000, "failures": 500, "all": 0}
"""Maps `request_log` to the lowest status code that is logged."""

_KEY_REQUIRED: Final = "API key required: send `Authorization: Bearer KEY` or `X-API-Key: KEY`"


def _pattern(path: str) -> str:
    versioned = path.replace("/v2/models/{model}", _VERSIONED_PATTERN)
    return versioned.replace("{model}", _MODEL_PATTERN)


class Application:
    """HTTP application that answers the requests of one port."""

    def __init__(self, service: Service, routes: Routes, limits: Limits) -> None:
        self.limits = limits
        self._service = service
        self._model = service.config.model_name
        # Most requests have one of these paths, which need no parsing.
        self._known = {
            path.replace("{model}", self._model): (route, self._model, None)
            for path, route in routes.items()
        }
        self._patterns = [(_pattern(path), routes[path]) for path in routes if "{model}" in path]
        self._min_logged_status = _MIN_LOGGED_STATUS[service.config.request_log]
        self._id_prefix, self._id_numbers = os.urandom(6).hex(), count(1)
        self._computing = 0
        self._by_peer: Counter[str] = Counter()
        """Number of requests that are being computed, by client."""

    @property
    def draining(self) -> bool:
        """True if clients should send their next request to another server."""
        return self._service.engine.draining

    @property
    def memory_limit_error(self) -> OverloadedError:
        """Error for a request that exceeds the memory limit of its client or of all clients."""
        limit = self._service.config.max_buffered_bytes
        return OverloadedError(
            f"buffered requests and responses exceed the limit of {limit} bytes or this client's "
            "share of it: try again later"
        )

    def assign_id(self, request: Request) -> None:
        """Assign the client's request ID, or a new unique one."""
        sent = request.headers.get("x-request-id", "")
        new = not 0 < len(sent) <= 128
        request.request_id = f"{self._id_prefix}-{next(self._id_numbers):x}" if new else sent

    def begin(self, request: Request, version: str) -> Response | None:
        """Check everything except the body; return a response if the request is rejected."""
        self.assign_id(request)
        try:
            self._check_head(request, version)
            route, model, request.version = self._find(request.path)
            if request.method != route.method and (request.method, route.method) != ("HEAD", "GET"):
                allowed = "GET, HEAD" if route.method == "GET" else route.method
                raise HttpError(405, f"this path supports only {allowed}", (("allow", allowed),))
            request.route = route
            if route.scope is not None and self._service.access is not None:
                self._check_access(request, route.scope, self._service.access)
            # Check the model after the key, so that callers without a key do not learn
            # the model's name.
            if model != self._model:
                text = f"model {model!r} is not served here, only {self._model!r}"
                raise HttpError(404, text)
            if route.counted:
                self._begin_counted(request, route)
            config = self._service.config
            request.limit = config.max_body_bytes
            if JSON_LENGTH not in request.headers:
                request.limit = min(request.limit, config.max_json_bytes)
            if (request.length or 0) > request.limit:
                raise request.too_large_error
        except Exception as error:
            return self._error(request, error)
        return None

    def answer(self, request: Request, reserve: Reserve) -> Response | Pending:
        """Return the response, or a pending one that `respond` completes later."""
        route = request.route
        assert route is not None  # noqa: S101  without a route, `begin` returns a response
        try:
            if route.counted:
                self._check_capacity(request)
            found = route.endpoint(self._service, request, reserve)
        except Exception as error:
            return self._error(request, error)
        if isinstance(found, Pending):
            self._computing += 1
            self._by_peer[request.peer] += 1
        return found

    def respond(self, request: Request, pending: Pending) -> Response | None:
        """Return the response for a computed result, or None if the client has disconnected."""
        self._computing -= 1
        self._by_peer[request.peer] -= 1
        if not self._by_peer[request.peer]:
            del self._by_peer[request.peer]
        try:
            return pending.finish(pending.future)
        except asyncio.CancelledError:
            return None
        except Exception as error:
            response = self._error(request, error)
            # The future refers to the error. The reference cycle through the traceback would keep
            # the inputs in memory for a long time.
            error.__traceback__ = None
            return response

    def finished(self, request: Request, code: int = CLIENT_GONE) -> None:
        """Count, trace and log a request that was answered or whose client has disconnected."""
        route, service = request.route, self._service
        if route is None or not route.counted:
            return
        if request.counted:
            request.counted = False
            service.metrics.in_flight -= 1
        if request.span is not None and service.tracing is not None:
            service.tracing.end(request.span, code)
        seconds = time.monotonic() - request.started
        service.metrics.finished(route.counted, code, seconds, request.key)
        if code >= self._min_logged_status:
            emit(
                "request",
                id=request.request_id,
                protocol=route.counted,
                code=code,
                seconds=round(seconds, 6),
                method=request.method,
                path=request.path,
                **({"key": request.key} if request.key else {}),
            )

    def _find(self, path: str) -> tuple[Route, str, str | None]:
        """Return the route, the model name and the version in a path. Raise HttpError 404."""
        if known := self._known.get(path):
            return known
        for pattern, route in self._patterns:
            if found := re.fullmatch(pattern, path):
                return route, found["model"], found.groupdict().get("version")
        raise HttpError(404, "no such path: /openapi.json lists the paths")

    def _begin_counted(self, request: Request, route: Route) -> None:
        service = self._service
        service.metrics.in_flight += 1
        request.counted = True
        if service.tracing is not None:
            request.span = service.tracing.begin(
                f"{route.counted} {service.config.model_name}",
                request.headers,
                {"http.request.method": request.method, "url.path": request.path},
            )
        if request.headers.get("content-encoding", "").lower() not in ("", "identity"):
            raise HttpError(415, "Content-Encoding is not supported: send the body uncompressed")
        pool = service.engine.pool
        request.reads_strings = pool is not None and pool.reads_strings
        self._check_capacity(request)

    def _check_capacity(self, request: Request) -> None:
        """Raise OverloadedError if the engine is at its maximum number of in-flight requests.

        Each request counts as one sample. A client with less than an equal share of the requests
        is not rejected, because its request may evict queued ones.
        """
        pool = self._service.engine.pool
        if self._computing <= self._service.config.max_queue or pool is None:
            return
        share = self._by_peer[request.peer] * len(self._by_peer)
        if min(self._computing, share) >= pool.max_in_flight:
            raise OverloadedError(
                f"{self._computing} requests are already in flight",
                pool.estimated_wait(pool.queued),
            )

    @staticmethod
    def _check_access(request: Request, scope: Scope, access: Access) -> None:
        sent = request.headers
        key = access.find(sent.get("authorization"), sent.get("x-api-key"))
        if key is None:
            raise HttpError(401, _KEY_REQUIRED, (("www-authenticate", "Bearer"),))
        request.key = key.name
        request.peer = f"key {key.name}"
        if scope not in key.scopes:
            raise HttpError(403, f"API key {key.name!r} lacks the {scope!r} scope")
        if not key.take():
            raise HttpError(
                429,
                f"API key {key.name!r} is limited to {key.quota:g} requests per second",
                (("retry-after", str(key.retry_after)),),
            )

    @staticmethod
    def _check_head(request: Request, version: str) -> None:
        if version not in ("1.0", "1.1"):
            raise HttpError(505, f"HTTP/{version} is not supported: use HTTP/1.1")
        if version == "1.1" and "host" not in request.headers:
            raise HttpError(400, "the Host header is missing")
        encoding = request.headers.get("transfer-encoding")
        if encoding is not None and (
            encoding.lower() != "chunked" or "content-length" in request.headers
        ):
            raise HttpError(400, "Transfer-Encoding must be chunked, without Content-Length")

    @staticmethod
    def _error(request: Request, error: Exception) -> Response:
        try:
            return error_response(error)
        except Exception:
            emit("error", id=request.request_id, path=request.path, trace=traceback.format_exc())
            message = f"internal server error, request {request.request_id}; see the server log"
            return error_response(HttpError(500, message))
