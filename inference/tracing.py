"""OpenTelemetry spans of requests, exported with OTLP over HTTP.

This module is imported only if tracing is enabled.
"""

import threading
import time
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from inference.engine.interface import Answer
from inference.protocol.v2_json import SERVER_NAME, SERVER_VERSION


class Tracing:
    """Tracer with one server span per request: a child of the caller's span, if there is one."""

    def __init__(self, endpoint: str, ratio: float, model: str) -> None:
        """Export spans to the `endpoint` URL in a separate thread."""
        resource = Resource.create(
            {
                SERVICE_NAME: SERVER_NAME,
                SERVICE_VERSION: SERVER_VERSION,
                "gen_ai.request.model": model,
            }
        )
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)), resource=resource
        )
        exporter = OTLPSpanExporter(endpoint=endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(SERVER_NAME, SERVER_VERSION)
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, str | int]
    ) -> Span:
        """Start the span of a request. Header names must be in lower case."""
        parent = self._propagator.extract(headers)
        return self._tracer.start_span(name, parent, SpanKind.SERVER, attributes)

    def answered(self, span: Span, answer: Answer) -> None:
        """Add child spans for queueing and computation."""
        if not span.is_recording():
            return
        span.set_attribute("inference.batch_samples", answer.batch)
        span.set_attribute("inference.model_version", answer.served.version)
        context = set_span_in_context(span)
        end = time.time_ns()
        started = end - int(answer.compute_seconds * 1e9)
        queued = started - int(answer.queue_seconds * 1e9)
        for name, since, until in (("queue", queued, started), ("compute", started, end)):
            self._tracer.start_span(name, context, start_time=since).end(until)

    def end(self, span: Span, code: int) -> None:
        """End the span of an answered request."""
        span.set_attribute("http.response.status_code", code)
        if code >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def close(self, seconds: float) -> None:
        """Export the remaining spans. Block for at most `seconds`, and then discard the rest."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(seconds)
