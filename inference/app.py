"""The HTTP side: Open Inference Protocol V2 over REST, probes, and metrics."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inference.model import Model
from inference.protocol import BadRequestError, answer, metadata, read_request
from inference.service import Service


def build_app(service: Service) -> Starlette:
    """The application of one server; loads the model in the background while it runs."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(service.load())
        yield
        loading.cancel()

    app = Starlette(
        routes=[
            Route("/v2", server_metadata),
            Route("/v2/health/live", live),
            Route("/v2/health/ready", ready),
            Route("/v2/models/{model}", model_metadata),
            Route("/v2/models/{model}/ready", model_ready),
            Route("/v2/models/{model}/infer", infer, methods=["POST"]),
            Route("/v2/models/{model}/versions/{version}", model_metadata),
            Route("/v2/models/{model}/versions/{version}/ready", model_ready),
            Route("/v2/models/{model}/versions/{version}/infer", infer, methods=["POST"]),
            Route("/metrics", metrics),
        ],
        exception_handlers={HTTPException: http_error},
        lifespan=lifespan,
    )
    app.state.service = service
    return app


async def server_metadata(_: Request) -> Response:
    """GET /v2."""
    return JSONResponse({"name": "gpu-platform-inference", "version": "0.1.0", "extensions": []})


async def live(_: Request) -> Response:
    """GET /v2/health/live: the event loop answers, so the process is alive."""
    return JSONResponse({"live": True})


async def ready(request: Request) -> Response:
    """GET /v2/health/ready."""
    service = service_of(request)
    if service.ready:
        return JSONResponse({"ready": True})
    return JSONResponse({"ready": False, "reason": service.reason}, status_code=503)


async def model_ready(request: Request) -> Response:
    """GET /v2/models/{model}[/versions/{version}]/ready."""
    check_name(request)
    return await ready(request)


async def model_metadata(request: Request) -> Response:
    """GET /v2/models/{model}[/versions/{version}]."""
    return JSONResponse(metadata(service_of(request).config.model_name, model_of(request).manifest))


async def metrics(request: Request) -> Response:
    """GET /metrics in Prometheus' text format."""
    return Response(
        generate_latest(service_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST
    )


async def infer(request: Request) -> Response:
    """POST /v2/models/{model}[/versions/{version}]/infer: count, measure, and answer."""
    numbers = service_of(request).metrics
    started = time.perf_counter()
    code = 500
    with numbers.in_flight.track_inprogress():
        try:
            response = await predictions(request)
            code = response.status_code
        except HTTPException as error:
            code = error.status_code
            raise
        except ClientDisconnect:
            code = 499
            return Response(status_code=400)
        finally:
            numbers.requests.labels(code).inc()
            numbers.latency.observe(time.perf_counter() - started)
    return response


async def predictions(request: Request) -> Response:
    """Read, compute and answer, all but the reading of the body away from the event loop."""
    service = service_of(request)
    model = model_of(request)
    if "inference-header-content-length" in request.headers:
        raise HTTPException(400, "the binary tensor extension is not offered: send JSON")
    body = await read_body(request, service.config.max_body_bytes)

    def work() -> bytes:
        wanted = read_request(body, model.manifest)
        probabilities = model.predict(wanted.images)
        service.metrics.samples.inc(len(probabilities))
        document = answer(wanted, service.config.model_name, model.manifest, probabilities)
        return json.dumps(document).encode()

    try:
        return Response(await service.compute(work), media_type="application/json")
    except BadRequestError as error:
        raise HTTPException(400, str(error)) from None


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body; 413 as soon as it is known to be larger than `limit` bytes."""
    too_large = HTTPException(413, f"the body is larger than {limit} bytes: send fewer samples")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large
    return bytes(body)


def service_of(request: Request) -> Service:
    """The server's state."""
    service: Service = request.app.state.service
    return service


def check_name(request: Request) -> None:
    """404 when the path names a model that is not served here."""
    name, served = request.path_params["model"], service_of(request).config.model_name
    if name != served:
        raise HTTPException(404, f"model {name!r} is not served here, only {served!r}")


def model_of(request: Request) -> Model:
    """The model that the path names; 404 when it is another, 503 when it is not loaded."""
    check_name(request)
    service = service_of(request)
    if service.model is None:
        raise HTTPException(503, service.reason, {"Retry-After": "5"})
    version, served = request.path_params.get("version"), service.model.manifest.version
    if version not in (None, served):
        raise HTTPException(404, f"version {version!r} is not served here, only {served!r}")
    return service.model


async def http_error(_: Request, error: Exception) -> Response:
    """Every error is answered as the protocol says: an object with one key, error."""
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse(
        {"error": error.detail}, status_code=error.status_code, headers=error.headers
    )
