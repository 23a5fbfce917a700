"""The protocol's calls, over grpc.aio."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from grpc import StatusCode

from inference.engine.interface import (
    DeadlineError,
    InputError,
    OverloadedError,
    RefusedError,
    ReloadError,
)
from inference.grpc import messages
from inference.grpc import open_inference_pb2 as pb
from inference.protocol.metadata import EXTENSIONS, SERVER, VERSION
from inference.service import NotServedError, Service
from training.report import emit

Context = grpc.aio.ServicerContext[Any, Any]
Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

_HTTP = {
    StatusCode.OK: 200,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.NOT_FOUND: 404,
    StatusCode.FAILED_PRECONDITION: 409,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.CANCELLED: 499,
    StatusCode.INTERNAL: 500,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}
"""Codes of HTTP for metrics and logs, so that all protocols are counted alike."""


class Servicer:
    """Answers the calls of GRPCInferenceService."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def handlers(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """All calls, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        calls: dict[str, tuple[Any, Any, Any]] = {
            "ServerLive": (self.live, pb.ServerLiveRequest, pb.ServerLiveResponse),
            "ServerReady": (self.ready, pb.ServerReadyRequest, pb.ServerReadyResponse),
            "ModelReady": (self.model_ready, pb.ModelReadyRequest, pb.ModelReadyResponse),
            "ServerMetadata": (
                self._guarded(self.metadata),
                pb.ServerMetadataRequest,
                pb.ServerMetadataResponse,
            ),
            "ModelMetadata": (
                self._guarded(self.model_metadata),
                pb.ModelMetadataRequest,
                pb.ModelMetadataResponse,
            ),
            "ModelInfer": (self.infer, pb.ModelInferRequest, pb.ModelInferResponse),
            "RepositoryModelLoad": (
                self._guarded(self.load),
                pb.RepositoryModelLoadRequest,
                pb.RepositoryModelLoadResponse,
            ),
        }
        return grpc.method_handlers_generic_handler(
            "inference.GRPCInferenceService",
            {
                name: grpc.unary_unary_rpc_method_handler(
                    call,
                    request_deserializer=asked.FromString,
                    response_serializer=answered.SerializeToString,
                )
                for name, (call, asked, answered) in calls.items()
            },
        )

    async def live(self, _: pb.ServerLiveRequest, __: Context) -> pb.ServerLiveResponse:
        """The event loop answers, so the process is alive."""
        return pb.ServerLiveResponse(live=True)

    async def ready(self, _: pb.ServerReadyRequest, __: Context) -> pb.ServerReadyResponse:
        """Whether requests should come."""
        return pb.ServerReadyResponse(ready=not self._service.engine.reason)

    async def model_ready(
        self, message: pb.ModelReadyRequest, context: Context
    ) -> pb.ModelReadyResponse:
        """Whether requests for this model should come."""
        service = self._service
        try:
            service.check_name(message.name)
            if service.engine.served is not None:
                service.served(message.name, message.version)
        except NotServedError as error:
            await context.abort(StatusCode.NOT_FOUND, str(error))
        return pb.ModelReadyResponse(ready=not service.engine.reason)

    async def metadata(self, _: pb.ServerMetadataRequest, __: Context) -> pb.ServerMetadataResponse:
        """Name, version and extensions."""
        return pb.ServerMetadataResponse(name=SERVER, version=VERSION, extensions=EXTENSIONS)

    async def model_metadata(
        self, message: pb.ModelMetadataRequest, _: Context
    ) -> pb.ModelMetadataResponse:
        """The model's tensors."""
        return messages.metadata(self._service.served(message.name, message.version))

    async def load(
        self, message: pb.RepositoryModelLoadRequest, _: Context
    ) -> pb.RepositoryModelLoadResponse:
        """Serve what the model's folder holds now."""
        self._service.check_name(message.model_name)
        await asyncio.shield(asyncio.ensure_future(self._service.reload()))
        return pb.RepositoryModelLoadResponse()

    async def infer(self, message: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        """Compute, count, log and trace."""
        service = self._service
        started = time.monotonic()
        headers = _headers(context)
        name = service.request_id(headers.get("x-request-id"))
        code = StatusCode.CANCELLED
        span = None
        if service.tracing is not None:
            span = service.tracing.begin(
                f"grpc {service.config.model_name}", headers.get, {"rpc.method": "ModelInfer"}
            )
        service.metrics.in_flight += 1
        try:
            self._check_access(headers)
            served = service.served(message.model_name, message.model_version)
            request = messages.read_request(message, served)
            deadline = started + self._seconds(request.timeout, context)
            if time.monotonic() >= deadline:
                raise DeadlineError("the deadline passed while the request arrived")
            answer = await service.engine.infer(request.inputs, deadline)
            service.metrics.answered(answer, len(next(iter(request.inputs.values()))))
            if span is not None and service.tracing is not None:
                service.tracing.answered(span, answer)
            response = messages.write_answer(request, answer)
            code = StatusCode.OK
            return response
        except asyncio.CancelledError:
            raise
        except Exception as error:
            code, said = _status(error, name)
            await context.abort(code, said, (("x-request-id", name), *_retry_after(error)))
        finally:
            service.metrics.in_flight -= 1
            if span is not None and service.tracing is not None:
                service.tracing.end(span, _HTTP[code])
            service.finished("grpc", _HTTP[code], started, name)

    def _seconds(self, timeout: float | None, context: Context) -> float:
        """The shortest of the deadlines of the call, of the message, and the default."""
        left = context.time_remaining()
        told = [seconds for seconds in (left, timeout) if seconds is not None]
        return min(told) if told else self._service.config.request_seconds

    def _check_access(self, headers: dict[str, str]) -> None:
        if not self._service.access.allows(headers.get("authorization"), headers.get("x-api-key")):
            raise PermissionError(
                "an API key is needed: send it as metadata `authorization: Bearer KEY` or "
                "`x-api-key: KEY`"
            )

    def _guarded(
        self, call: Callable[[Asked, Context], Awaitable[Answered]]
    ) -> Callable[[Asked, Context], Awaitable[Answered]]:
        """The call behind the API keys, with its errors as statuses."""

        async def guarded(message: Asked, context: Context) -> Answered:
            try:
                self._check_access(_headers(context))
                return await call(message, context)
            except Exception as error:
                code, said = _status(error, "a call")
                await context.abort(code, said)

        return guarded


def _headers(context: Context) -> dict[str, str]:
    metadata = context.invocation_metadata() or ()
    return {key: value for key, value in metadata if isinstance(value, str)}


def _status(error: Exception, name: str) -> tuple[StatusCode, str]:
    kinds: tuple[tuple[type[Exception], StatusCode], ...] = (
        (InputError, StatusCode.INVALID_ARGUMENT),
        (NotServedError, StatusCode.NOT_FOUND),
        (PermissionError, StatusCode.UNAUTHENTICATED),
        (ReloadError, StatusCode.FAILED_PRECONDITION),
        (OverloadedError, StatusCode.RESOURCE_EXHAUSTED),
        (DeadlineError, StatusCode.DEADLINE_EXCEEDED),
        (RefusedError, StatusCode.UNAVAILABLE),
    )
    for kind, code in kinds:
        if isinstance(error, kind):
            return code, str(error)
    emit("error", id=name, trace="".join(traceback.format_exception(error)))
    return StatusCode.INTERNAL, f"the server has made a mistake; its log tells more of {name}"


def _retry_after(error: Exception) -> tuple[tuple[str, str], ...]:
    """As HTTP has it, in seconds."""
    if isinstance(error, RefusedError):
        return (("retry-after", f"{error.retry_after:g}"),)
    return ()
