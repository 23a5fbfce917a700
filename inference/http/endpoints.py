"""Endpoints of the client port and of the administration port."""

import asyncio
import math
import time
from functools import partial
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from inference.engine.interface import Answer, DeadlineError, InputError, OverloadedError, Served
from inference.http.application import Pending, Reserve, Route, Routes
from inference.http.messages import (
    JSON_LENGTH,
    LARGE_JSON,
    HttpError,
    Request,
    Response,
    json_response,
)
from inference.http.openapi import openapi_document
from inference.protocol import v2_json
from inference.service import Service
from workload.manifest import ExportError

TIMEOUT: Final = "x-request-timeout"
MAX_TIMEOUT: Final = 86_400
"""Maximum timeout (s) that a client can request."""

MAX_LOADS: Final = 16
"""Maximum number of load requests that wait for the model. They occupy connections of the
administration port, which probes also need."""

MAX_SILENCE: Final = 30.0
"""Time (s) without an iteration of the main event loop after which the server is not live."""


def _infer(service: Service, request: Request, reserve: Reserve) -> Pending:
    pool = service.pool(request.version)
    limits = service.config
    parsed = v2_json.read_request(
        request.body,
        pool.served,
        request.headers.get(JSON_LENGTH),
        limits.max_json_bytes,
        limits.max_queue,
    )
    request.body = b""
    seconds = parsed.plan.timeout
    if seconds is None:
        seconds = _requested_seconds(service, request)
    deadline = request.started + seconds
    if time.monotonic() >= deadline:
        raise DeadlineError("the deadline passed before the whole request had been read")
    # The body and the outputs count against the same limit. Larger outputs would exceed it even if
    # this were the client's only request.
    max_bytes = min(limits.max_output_bytes, limits.max_bytes_per_peer - request.charged)
    size = v2_json.check_output_size(parsed, max_bytes, limits.max_json_bytes)
    _reserve(reserve, size)
    queued = pool.submit(parsed.inputs, deadline, request.peer, parsed.plan.needed)

    def finish(future: "asyncio.Future[Answer]") -> Response:
        if future.cancelled():
            pool.drop(queued)
        answer = future.result()
        service.metrics.answered(answer, queued.samples)
        if request.span is not None and service.tracing is not None:
            service.tracing.answered(request.span, answer)
        v2_json.check_output_size(parsed, max_bytes, limits.max_json_bytes, answer)
        json, values = v2_json.write_answer(parsed, answer)
        response = Response(json)
        if values:
            headers = ((JSON_LENGTH, str(len(json))),)
            response = Response(json, 200, "application/octet-stream", headers, values)
        # JSON may need several times as many bytes as the values.
        if response.size > size:
            _reserve(reserve, response.size - size)
        return response

    return Pending(queued.future, finish, parsed.plan.output_sizes[1] > LARGE_JSON)


def _reserve(reserve: Reserve, size: int) -> None:
    if not reserve(size):
        raise OverloadedError(
            "the responses of this client or of all clients exceed the memory reserved for them: "
            "try again"
        )


def _requested_seconds(service: Service, request: Request) -> float:
    """Return the timeout in seconds from the X-Request-Timeout header, or the default.

    Raise InputError if the header is invalid.
    """
    text = request.headers.get(TIMEOUT)
    if text is None:
        return service.config.request_seconds
    try:
        # Python also accepts underscores.
        seconds = float(text) if "_" not in text else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_TIMEOUT:
        raise InputError(
            f"X-Request-Timeout is {text[:80]!r}: it must be a number of seconds, such as 0.5"
        )
    return seconds


def _server(_: Service, __: Request, ___: Reserve) -> Response:
    document = {"name": v2_json.SERVER_NAME, "version": v2_json.SERVER_VERSION}
    return json_response({**document, "extensions": ["binary_tensor_data"]})


def _live(service: Service, _: Request, __: Reserve) -> Response:
    """Report whether the main event loop is running."""
    alive = time.monotonic() - service.last_turn < MAX_SILENCE
    return json_response({"live": alive}, 200 if alive else 503)


def _model_ready(service: Service, request: Request, reserve: Reserve) -> Response:
    if service.engine.pool is not None:
        service.pool(request.version)
    return _ready(service, request, reserve, name=service.config.model_name)


def _ready(service: Service, _: Request, __: Reserve, **fields: str) -> Response:
    reason = service.engine.reason
    if not reason:
        return json_response({**fields, "ready": True})
    return json_response({**fields, "ready": False, "reason": reason}, 503)


def _model(service: Service, request: Request, _: Reserve) -> Response:
    return json_response(v2_json.model_metadata(service.pool(request.version).served))


def _metrics(service: Service, _: Request, __: Reserve) -> Response:
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _openapi(service: Service, _: Request, __: Reserve, admin: bool = False) -> Response:
    routes = ADMIN_PATHS if admin else PATHS
    return json_response(openapi_document(service.config, service.engine.served, routes))


def _load(service: Service, request: Request, _: Reserve) -> Pending:
    """Load and serve the current content of the model's directory."""
    if request.body.strip() not in (b"", b"{}"):
        raise HttpError(
            400,
            "the body of a load request must be empty or {}: the server always loads the model's "
            "directory",
        )
    if len(service.loads) >= MAX_LOADS:
        raise OverloadedError(f"{MAX_LOADS} load requests are already waiting for the model")
    # If the client disconnects, loading continues, because other clients may wait for it.
    reload = asyncio.run_coroutine_threadsafe(service.engine.reload(), service.loop)
    loading = asyncio.wrap_future(reload)
    service.loads.add(loading)
    loading.add_done_callback(service.loads.discard)
    # Otherwise, if the client has disconnected, asyncio would log that no one retrieved the error.
    loading.add_done_callback(lambda done: done.cancelled() or done.exception())
    return Pending(asyncio.shield(loading), _load_response)


def _load_response(future: "asyncio.Future[Served]") -> Response:
    try:
        served = future.result()
    except ExportError as error:
        raise HttpError(409, f"the new version is not served: {error}") from None
    return json_response({"name": served.name, "version": served.version})


def _index(service: Service, _: Request, __: Reserve) -> Response:
    """Return the model in the format of Triton's model repository extension."""
    served = service.engine.served
    reason = service.engine.reason
    return json_response(
        [
            {
                "name": service.config.model_name,
                "version": served.version if served else "",
                "state": "UNAVAILABLE" if reason else "READY",
                "reason": reason,
            }
        ]
    )


_HEALTH: Final[Routes] = {
    "/v2/health/live": Route(_live, "Liveness", "Live", scope=None),
    "/v2/health/ready": Route(_ready, "Readiness", "Ready", scope=None),
}
_MODEL: Final = "/v2/models/{model}"
_INFER_ERRORS: Final = (400, 404, 408, 413, 415, 429, 503, 504)
_LOAD: Final = "Serve the current content of the model's directory"

PATHS: Final[Routes] = {
    **_HEALTH,
    "/openapi.json": Route(_openapi, "This description", "Object", scope=None),
    "/v2": Route(_server, "Server metadata", "Server"),
    _MODEL: Route(_model, "Model metadata", "Model", (404, 503)),
    f"{_MODEL}/ready": Route(_model_ready, "Model readiness", "ModelReady", (404,), scope=None),
    f"{_MODEL}/infer": Route(
        _infer, "Inference", "InferResponse", _INFER_ERRORS, "POST", counted="rest"
    ),
}
"""Routes of the client port."""

ADMIN_PATHS: Final[Routes] = {
    **_HEALTH,
    "/openapi.json": Route(partial(_openapi, admin=True), "This description", "Object", scope=None),
    "/metrics": Route(_metrics, "Prometheus metrics", "Text", scope=None),
    "/v2/repository/index": Route(_index, "List the models", "Index", (), "POST", "admin"),
    "/v2/repository/models/{model}/load": Route(
        _load, _LOAD, "Loaded", (404, 409, 429), "POST", "admin"
    ),
}
"""Routes of the administration port, including probes and metrics."""
