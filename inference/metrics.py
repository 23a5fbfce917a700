"""Prometheus metrics of a model server.

The values are plain attributes that the event loop updates. They become metrics only when they are
scraped, so requests neither take locks nor look up labels.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from inference.engine.engine import ModelEngine
from inference.engine.interface import Answer, Observer
from inference.http.limits import Limits

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds (s) of the buckets of duration histograms."""
SAMPLES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds of the buckets of the batch size histogram."""


class Histogram:
    """Histogram of observed values. The upper bound of each bucket is inclusive."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name, self._documentation, self._bounds = name, documentation, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def metric(self) -> Metric:
        """Return the current state as a metric."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        return HistogramMetricFamily(
            f"inference_{self._name}", self._documentation, buckets=buckets, sum_value=self._sum
        )


class Metrics(Collector, Observer):
    """The metrics of one server, with their registry."""

    engine: ModelEngine
    """Engine whose state is read at each scrape."""
    limits: Limits
    """Limits whose number of buffered bytes is read at each scrape."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.by_key: Counter[tuple[str, int]] = Counter()
        self.in_flight = 0
        self.samples = 0
        self.worker_deaths = 0
        latency, queue = "Time from arrival to the response", "Time from arrival to the first batch"
        self._latency = Histogram("request_seconds", latency, SECONDS)
        self._queue = Histogram("queue_seconds", queue, SECONDS)
        self._model = Histogram("model_seconds", "Compute time of a batch", SECONDS)
        self._batch = Histogram("batch_samples", "Samples per batch", SAMPLES)
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def finished(self, protocol: str, code: int, seconds: float, key: str) -> None:
        """Count a request that was answered, or whose client disconnected (499)."""
        self.requests[protocol, code] += 1
        if key:
            self.by_key[key, code] += 1
        self._latency.observe(seconds)

    def answered(self, answer: Answer, samples: int) -> None:
        """Count a request that the engine has answered."""
        self.samples += samples
        self._queue.observe(answer.queue_seconds)

    def batch(self, samples: int, seconds: float) -> None:
        """Count a batch that a worker has computed."""
        self._batch.observe(samples)
        self._model.observe(seconds)

    def worker_ended(self, reason: str) -> None:
        """Count a worker that died and is replaced."""
        del reason
        self.worker_deaths += 1

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        yield _counter_family(
            "requests", "Requests by protocol and status code", "protocol", self.requests
        )
        yield _counter_family(
            "key_requests", "Requests by API key name and status code", "key", self.by_key
        )
        for histogram in (self._latency, self._queue, self._model, self._batch):
            yield histogram.metric()
        engine, buffered = self.engine, self.limits.buffered
        for name, text, count in (
            ("samples", "Samples predicted", self.samples),
            ("worker_deaths", "Workers that died and were replaced", self.worker_deaths),
            ("reload_failures", "Failed reloads of the model", engine.reload_failures),
        ):
            yield CounterMetricFamily(f"inference_{name}", text, count)
        for name, text, value in (
            ("requests_in_flight", "Requests in flight", self.in_flight),
            ("buffered_bytes", "Size of requests and unsent responses in memory", buffered),
            ("queue_depth", "Samples queued for a worker", engine.queued),
            ("ready", "1 if the server is ready for requests", int(not engine.reason)),
        ):
            yield GaugeMetricFamily(f"inference_{name}", text, value)
        info = GaugeMetricFamily(
            "inference_model_info",
            "The loaded model; always 1",
            labels=("model", "version", "sha256", "run", "backend"),
        )
        if (served := engine.served) is not None:
            sha256, run = served.manifest.weights.sha256, served.manifest.run
            info.add_metric((served.name, served.version, sha256, run, served.backend), 1)
        yield info


def _counter_family(
    name: str, text: str, label: str, counts: Counter[tuple[str, int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"inference_{name}", text, labels=(label, "code"))
    # Copy the counts, which the main thread may change while the administration thread reads them.
    for (value, code), count in counts.copy().items():
        family.add_metric((value, str(code)), count)
    return family
