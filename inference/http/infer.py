"""POST …/infer."""

import math
import time

from inference.engine.interface import Answer, DeadlineError, InputError, UnavailableError
from inference.http.body import read_body
from inference.http.exchange import Exchange, Response
from inference.http.routes import Target
from inference.protocol import v2_json
from inference.protocol.request import InferRequest
from inference.service import Service

HEADER_LENGTH = "inference-header-content-length"
TIMEOUT = "x-request-timeout"


async def infer(service: Service, exchange: Exchange, target: Target) -> Response:
    """POST /v2/models/{model}[/versions/{version}]/infer."""
    served = service.served(target.model, target.version)
    body = await read_body(service, exchange)
    if served is not service.engine.served:
        # Another version has come while the body did.
        served = service.served(target.model, target.version)
    request = v2_json.read_request(body, served, exchange.header(HEADER_LENGTH))
    answer = await _compute(service, exchange, request)
    try:
        content, json_length = v2_json.write_answer(request, answer)
    except KeyError:
        raise _replaced() from None
    if json_length is None:
        return Response(content)
    return Response(
        content,
        media_type="application/octet-stream",
        headers=((HEADER_LENGTH, str(json_length)),),
    )


async def _compute(service: Service, exchange: Exchange, request: InferRequest) -> Answer:
    """Ask the engine within the request's deadline, and tell what that took."""
    seconds = request.timeout
    if seconds is None:
        seconds = _requested_seconds(service, exchange)
    deadline = exchange.started + seconds
    if time.monotonic() >= deadline:
        raise DeadlineError("the deadline passed while the request arrived")
    answer = await service.engine.infer(request.inputs, deadline)
    samples = len(next(iter(request.inputs.values())))
    service.metrics.answered(answer, samples)
    if exchange.span is not None and service.tracing is not None:
        service.tracing.answered(exchange.span, answer)
    return answer


def _requested_seconds(service: Service, exchange: Exchange) -> float:
    """How long the client waits: the header X-Request-Timeout in seconds, or the default.

    Raises InputError.
    """
    text = exchange.header(TIMEOUT)
    if text is None:
        return service.config.request_seconds
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 86_400:
        raise InputError(f"X-Request-Timeout is {text[:80]!r}: it must be seconds, such as 0.5")
    return seconds


def _replaced() -> UnavailableError:
    return UnavailableError("the model was replaced meanwhile by one with other outputs", 0)
