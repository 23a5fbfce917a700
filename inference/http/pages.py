"""Endpoints without inference: health, metadata, metrics, API description and reload."""

import asyncio

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from inference.engine.interface import ReloadError
from inference.http.exchange import Exchange, HttpError, Response, Target, json_response
from inference.http.openapi import description
from inference.protocol.v2_json import model_metadata, server_metadata
from inference.service import Service


async def server(_: Service, __: Exchange, ___: Target) -> Response:
    """GET /v2."""
    return json_response(server_metadata())


async def live(_: Service, __: Exchange, ___: Target) -> Response:
    """GET /v2/health/live: an answer proves that the event loop runs."""
    return json_response({"live": True})


async def ready(service: Service, _: Exchange, __: Target) -> Response:
    """GET /v2/health/ready."""
    reason = service.engine.reason
    if not reason:
        return json_response({"ready": True})
    return json_response({"ready": False, "reason": reason}, 503)


async def model_ready(service: Service, _: Exchange, target: Target) -> Response:
    """GET /v2/models/{model}[/versions/{version}]/ready."""
    service.check_name(target.model)
    if service.engine.pool is not None:
        service.pool(target.model, target.version)
    reason = service.engine.reason
    document = {"name": service.config.model_name, "ready": not reason}
    if not reason:
        return json_response(document)
    return json_response({**document, "reason": reason}, 503)


async def model(service: Service, _: Exchange, target: Target) -> Response:
    """GET /v2/models/{model}[/versions/{version}]."""
    return json_response(model_metadata(service.pool(target.model, target.version).served))


async def metrics(service: Service, _: Exchange, __: Target) -> Response:
    """GET /metrics in Prometheus' text format."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def openapi(service: Service, _: Exchange, __: Target) -> Response:
    """GET /openapi.json."""
    return json_response(description(service.config, service.engine.served))


async def load(service: Service, _: Exchange, target: Target) -> Response:
    """POST /v2/repository/models/{model}/load: serve the current content of the directory."""
    service.check_name(target.model)
    try:
        # A client that disconnects does not cancel it: others may wait for the new version.
        served = await asyncio.shield(asyncio.ensure_future(service.reload()))
    except ReloadError as error:
        raise HttpError(409, f"the new version is not served: {error}") from None
    return json_response({"name": served.name, "version": served.version})


async def index(service: Service, _: Exchange, __: Target) -> Response:
    """POST /v2/repository/index: the model, in the form of Triton's repository extension."""
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
