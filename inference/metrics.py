"""What Prometheus can ask a model server."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from training.manifest import Manifest


class Metrics:
    """The numbers of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "inference_requests", "Infer requests by status code", ["code"], registry=self.registry
        )
        self.samples = Counter(
            "inference_samples", "Samples for which predictions were made", registry=self.registry
        )
        self.latency = Histogram(
            "inference_request_seconds",
            "From a request's arrival to its answer",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "inference_requests_in_flight", "Requests being answered", registry=self.registry
        )
        self.ready = Gauge(
            "inference_ready", "1 when requests should be sent here", registry=self.registry
        )
        self._model = Gauge(
            "inference_model_info",
            "The loaded model; always 1",
            ["model", "version", "sha256", "run"],
            registry=self.registry,
        )

    def loaded(self, name: str, manifest: Manifest) -> None:
        """Tell which model is served from now on."""
        self._model.clear()
        self._model.labels(name, manifest.version, manifest.weights.sha256, manifest.run).set(1)
