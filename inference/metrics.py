"""What Prometheus can ask a model server.

The numbers are plain attributes of the event loop, and become metrics when somebody looks: a
request costs no lock and no label look-up.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from inference.engine.interface import Answer, Engine
from inference.engine.observer import Observer

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SAMPLES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Tally:
    """How often values fell into buckets, up to and with each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def metric(self, name: str, documentation: str) -> Metric:
        """The histogram up to now."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=self._sum)


class Metrics(Collector, Observer):
    """The numbers of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        """Asked when somebody looks."""
        self.requests: Counter[tuple[str, int]] = Counter()
        self.in_flight = 0
        self.buffered = 0
        self.samples = 0
        self.worker_deaths = 0
        self.reload_failures = 0
        self._latency = Tally(SECONDS)
        self._queue = Tally(SECONDS)
        self._model = Tally(SECONDS)
        self._batch = Tally(SAMPLES)
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def finished(self, protocol: str, code: int, seconds: float) -> None:
        """A request was answered, or given up by its client (499)."""
        self.requests[protocol, code] += 1
        self._latency.observe(seconds)

    def answered(self, answer: Answer, samples: int) -> None:
        """The engine has answered a request of so many samples."""
        self.samples += samples
        self._queue.observe(answer.queue_seconds)

    def batch(self, samples: int, seconds: float) -> None:
        """A worker has computed a batch."""
        self._batch.observe(samples)
        self._model.observe(seconds)

    def worker_ended(self, reason: str) -> None:
        """A worker ended though nobody told it to, and is replaced."""
        del reason
        self.worker_deaths += 1

    def collect(self) -> Iterator[Metric]:
        """All of them as they are now."""
        requests = CounterMetricFamily(
            "inference_requests",
            "Requests by protocol and status code",
            labels=("protocol", "code"),
        )
        for (protocol, code), count in self.requests.items():
            requests.add_metric((protocol, str(code)), count)
        yield requests
        yield CounterMetricFamily(
            "inference_samples", "Samples for which predictions were made", self.samples
        )
        yield self._latency.metric(
            "inference_request_seconds", "From a request's arrival to its answer"
        )
        yield self._queue.metric("inference_queue_seconds", "From arrival to a worker's batch")
        yield self._model.metric("inference_model_seconds", "Computing of a batch")
        yield self._batch.metric("inference_batch_samples", "Samples computed at once")
        yield GaugeMetricFamily(
            "inference_requests_in_flight", "Requests being answered", self.in_flight
        )
        yield GaugeMetricFamily(
            "inference_buffered_bytes", "Bodies of requests being answered", self.buffered
        )
        yield CounterMetricFamily(
            "inference_worker_deaths", "Workers that ended and were replaced", self.worker_deaths
        )
        yield CounterMetricFamily(
            "inference_reload_failures", "New versions that were not served", self.reload_failures
        )
        if self.engine is not None:
            yield from _of_engine(self.engine)


def _of_engine(engine: Engine) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "inference_queue_depth", "Samples that wait for a worker", engine.waiting
    )
    yield GaugeMetricFamily(
        "inference_ready", "1 when requests should be sent here", int(not engine.reason)
    )
    labels = ("model", "version", "sha256", "run", "backend")
    info = GaugeMetricFamily("inference_model_info", "The loaded model; always 1", labels=labels)
    served = engine.served
    if served is not None:
        manifest = served.manifest
        facts = (
            served.name,
            served.version,
            manifest.weights.sha256,
            manifest.run,
            served.backend,
        )
        info.add_metric(facts, 1)
    yield info
