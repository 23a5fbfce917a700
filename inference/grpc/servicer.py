"""The protocol's calls, over grpc.aio."""

import asyncio
import math
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
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
from inference.grpc.intake import Context, Intake
from inference.protocol.metadata import EXTENSIONS, SERVER, VERSION
from inference.service import NotServedError, Service
from training.report import emit

Asked = TypeVar("Asked", bound=Message)
Answered = TypeVar("Answered", bound=Message)
Call = Callable[[object, Context], Awaitable[Answered]]
"""As grpc.aio calls it: with an iterator of messages, which nobody needs."""

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
        self._intake = Intake(service)

    def handlers(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """All calls, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        calls: dict[str, tuple[Any, type[Message]]] = {
            "ServerLive": (self.live, pb.ServerLiveResponse),
            "ServerReady": (self.ready, pb.ServerReadyResponse),
            "ModelReady": (
                self._read(self.model_ready, pb.ModelReadyRequest, unguarded=True),
                pb.ModelReadyResponse,
            ),
            "ServerMetadata": (
                self._read(self.metadata, pb.ServerMetadataRequest),
                pb.ServerMetadataResponse,
            ),
            "ModelMetadata": (
                self._read(self.model_metadata, pb.ModelMetadataRequest),
                pb.ModelMetadataResponse,
            ),
            "ModelInfer": (self.infer, pb.ModelInferResponse),
            "RepositoryModelLoad": (
                self._read(self.load, pb.RepositoryModelLoadRequest),
                pb.RepositoryModelLoadResponse,
            ),
        }
        return grpc.method_handlers_generic_handler(
            "inference.GRPCInferenceService",
            {
                name: grpc.stream_unary_rpc_method_handler(
                    call, response_serializer=answered.SerializeToString
                )
                for name, (call, answered) in calls.items()
            },
        )

    async def live(self, _: object, __: Context) -> pb.ServerLiveResponse:
        """The event loop answers, so the process is alive. The message is not even read."""
        return pb.ServerLiveResponse(live=True)

    async def ready(self, _: object, __: Context) -> pb.ServerReadyResponse:
        """Whether requests should come. The message is not even read."""
        return pb.ServerReadyResponse(ready=not self._service.engine.reason)

    async def model_ready(self, message: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """Whether requests for this model should come."""
        service = self._service
        service.check_name(message.name)
        if service.engine.served is not None:
            service.served(message.name, message.version)
        return pb.ModelReadyResponse(ready=not service.engine.reason)

    async def metadata(self, _: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        """Name, version and extensions."""
        return pb.ServerMetadataResponse(name=SERVER, version=VERSION, extensions=EXTENSIONS)

    async def model_metadata(self, message: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """The model's tensors."""
        return messages.metadata(self._service.served(message.name, message.version))

    async def load(self, message: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Serve what the model's folder holds now."""
        self._service.check_name(message.model_name)
        await asyncio.shield(asyncio.ensure_future(self._service.reload()))
        return pb.RepositoryModelLoadResponse()

    async def infer(self, _: object, context: Context) -> pb.ModelInferResponse:
        """Read, compute, count, log and trace."""
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
            async with self._intake.admitted(context) as content:
                message = _parsed(pb.ModelInferRequest, content)
                served = service.served(message.model_name, message.model_version)
                request = messages.read_request(message, served)
                deadline = self._deadline(started, request.timeout, context)
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

    def _deadline(self, started: float, timeout: float | None, context: Context) -> float:
        """The first of the deadlines of the call and of the message, or the default."""
        left = context.time_remaining()
        told = []
        if left is not None:
            told.append(time.monotonic() + left)
        if timeout is not None:
            told.append(started + timeout)
        return min(told, default=started + self._service.config.request_seconds)

    def _check_access(self, headers: dict[str, str]) -> None:
        if not self._service.access.allows(headers.get("authorization"), headers.get("x-api-key")):
            raise PermissionError(
                "an API key is needed: send it as metadata `authorization: Bearer KEY` or "
                "`x-api-key: KEY`"
            )

    def _read(
        self,
        call: Callable[[Asked], Awaitable[Answered]],
        kind: type[Asked],
        unguarded: bool = False,
    ) -> Call[Answered]:
        """The call with its message, behind the API keys or `unguarded`, errors as statuses."""

        async def answered(_: object, context: Context) -> Answered:
            try:
                if not unguarded:
                    self._check_access(_headers(context))
                return await call(_parsed(kind, await self._intake.read(context)))
            except Exception as error:
                code, said = _status(error, "a call")
                await context.abort(code, said)

        return answered


def _parsed(kind: type[Asked], content: bytes) -> Asked:
    """Raises InputError for bytes that are no such message."""
    try:
        return kind.FromString(content)
    except DecodeError:
        raise InputError(f"the message cannot be read as a {kind.DESCRIPTOR.name}") from None


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
    """As HTTP has it, in whole seconds."""
    if isinstance(error, RefusedError):
        return (("retry-after", str(max(1, math.ceil(error.retry_after)))),)
    return ()
