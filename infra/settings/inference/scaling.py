"""Replicas of a service: autoscaling, canary and update strategy."""

import re
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field, model_validator

from infra.settings.inference.models import ExportUrl, RunName, SourceSettings
from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    HttpUrl,
    MemoryQuantity,
    PortNumber,
    PositiveInt,
    Settings,
    Sha256,
)
from workload.promotion import parse_condition


def _comparison(text: str) -> str:
    parse_condition(text)
    return text


Comparison = Annotated[str, AfterValidator(_comparison)]
"""Comparison of a metric with a number or with the stable version's metric (`incumbent`)."""


def _metric(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.-]{0,99}", text):
        raise ValueError("must be the name of a metric, such as accuracy")
    return text


MetricName = Annotated[str, AfterValidator(_metric)]
"""Name of a metric in a manifest."""

DEFAULT_CPU_PERCENT: Final = 70


class KedaSettings(Settings):
    """Autoscaling with KEDA, which queries Prometheus and can scale to zero."""

    prometheus: HttpUrl = Field(
        description="URL of Prometheus, such as http://prometheus.monitoring:9090."
    )
    cooldown_seconds: PositiveInt = Field(
        default=300, description="Time (s) without requests after which the last pod is removed."
    )
    activation_query: str | None = Field(
        default=None,
        min_length=1,
        description="PromQL query whose value is above 0 while requests arrive, such as the "
        "gateway's request rate. With no pods running, the service itself reports nothing.",
    )


class AutoscalingSettings(Settings):
    """Load-based autoscaling of the replicas."""

    min: int = Field(default=1, ge=0, description="Minimum number of replicas. 0 requires keda.")
    max: PositiveInt = Field(description="Maximum number of replicas.")
    cpu_percent: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Target utilization of the CPU request, in percent. null means "
        f"{DEFAULT_CPU_PERCENT}, or no CPU target if requests_in_flight is set.",
    )
    requests_in_flight: PositiveInt | None = Field(
        default=None,
        description="Target number of requests in flight (queued or being processed) per pod. KEDA "
        "reads the average over a minute. Without keda, this setting requires an adapter that "
        "serves the inference_requests_in_flight metric.",
    )
    keda: KedaSettings | None = Field(
        default=None, description="Use KEDA instead of a HorizontalPodAutoscaler."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min > self.max:
            raise ValueError(
                f"sets min to {self.min}, more than max ({self.max}): set min to at most max"
            )
        if self.keda is not None and self.requests_in_flight is None:
            raise ValueError(
                "sets keda, but not requests_in_flight, which KEDA needs as its target: set "
                "requests_in_flight"
            )
        if self.min == 0 and (self.keda is None or self.keda.activation_query is None):
            raise ValueError(
                "sets min to 0, which requires keda.activation_query: with no pods running, "
                "this query is the only signal that requests are arriving"
            )
        return self

    @property
    def cpu_target(self) -> int | None:
        """Target CPU utilization, as a percentage of the request. If None, CPU is ignored."""
        if self.cpu_percent is None and self.requests_in_flight is None:
            return DEFAULT_CPU_PERCENT
        return self.cpu_percent


class RollbackSettings(Settings):
    """Limits of a canary, compared with the metrics of its pods in Prometheus.

    A program in the namespace evaluates the limits. If one is exceeded, or if no pod of the canary
    is ready, the program sends all requests to the stable version. Changing the canary, its image
    or its limits resets the rollback: the canary receives its configured weight again.
    """

    prometheus: HttpUrl = Field(
        description="URL of Prometheus, such as http://prometheus.monitoring:9090."
    )
    error_share: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="Maximum amount by which the canary's error rate (share of responses with "
        "status 5xx or 400) may exceed that of the stable version.",
    )
    latency_seconds: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Maximum p99 latency (s) of the canary. If null, there is no limit.",
    )
    min_requests: PositiveInt = Field(
        default=20,
        description="Minimum number of requests in window_seconds. With fewer requests, "
        "error_share and latency_seconds are not evaluated.",
    )
    window_seconds: int = Field(
        default=30, ge=10, le=3600, description="Time (s) over which requests are evaluated."
    )
    interval_seconds: PositiveInt = Field(
        default=5,
        le=300,
        description="Interval (s) between evaluations. Services are scraped at least as often.",
    )
    image: DnsLabel = Field(
        default="recorder", description="Key of the image, which is built from recorder/."
    )
    cpu: CpuQuantity = Field(default="20m", description="CPU request of the program.")
    memory: MemoryQuantity = Field(
        default="128Mi", description="Memory request and limit of the program."
    )
    api_ports: list[PortNumber] = Field(
        default=[443, 6443],
        min_length=1,
        description="Ports of the API server. With network isolation, the program may connect only "
        "to these ports, DNS and the port in the URL of Prometheus. If the pods of Prometheus "
        "use a different port than its Service, add the pods' port.",
    )

    @model_validator(mode="after")
    def _window_has_several_samples(self) -> Self:
        if self.window_seconds < 3 * self.interval_seconds:
            raise ValueError(
                f"window_seconds is {self.window_seconds}, less than three times interval_seconds "
                f"({self.interval_seconds}): set it to at least {3 * self.interval_seconds}"
            )
        return self


class CanarySettings(Settings):
    """A second version of the service that receives a share of the requests."""

    weight: int = Field(
        ge=0,
        le=100,
        description="Percentage of the requests. 0 sends all of them to the stable version.",
    )
    run: RunName | None = Field(
        default=None,
        description="Run to serve. If run, url and source are null, the service's model is served.",
    )
    url: ExportUrl | None = Field(default=None, description="URL of the export to serve.")
    source: SourceSettings | None = Field(
        default=None,
        description="Model to serve from a claim, the Hugging Face Hub, an OCI artifact or the "
        "image.",
    )
    digest: Sha256 | None = Field(default=None, description="Expected SHA-256 of the weights.")
    image: DnsLabel | None = Field(
        default=None, description="Key of the image. Defaults to the service's image."
    )
    server: dict[str, Any] = Field(
        default={},
        description="Settings of the server program, which override those of the service.",
    )
    replicas: PositiveInt = Field(default=1, le=1000, description="Number of replicas.")
    rollback: RollbackSettings | None = Field(
        default=None,
        description="Limits of the canary; if one is exceeded, all requests go to the stable "
        "version. null disables automatic rollback.",
    )
    promote_if: dict[MetricName, Comparison] = Field(
        default={},
        description="Conditions on metrics in the run's manifest, such as accuracy: "
        '">= incumbent - 0.002", where incumbent is the metric of the stable version. If a '
        "condition does not hold, the canary does not start.",
    )

    @model_validator(mode="after")
    def _differs_from_service(self) -> Self:
        keys = [name for name in ("run", "url", "source") if getattr(self, name) is not None]
        if len(keys) > 1:
            raise ValueError(f"sets {' and '.join(keys)}: keep one of them")
        if not any((keys, self.image, self.server)):
            raise ValueError("is the same as the service: set run, url, source, image or server")
        return self


class RolloutSettings(Settings):
    """Update strategy: a rolling update, with or without surge replicas, or re-creation of pods."""

    surge: int = Field(
        default=1,
        ge=0,
        le=100,
        description="Additional replicas during an update. With 0, an old replica is removed "
        "before its replacement starts, for clusters without a spare GPU; the other replicas keep "
        "serving.",
    )
    recreate: bool = Field(
        default=False,
        description="Remove all pods before the first new one starts. The service does not answer "
        "during that time.",
    )

    @model_validator(mode="after")
    def _has_one_strategy(self) -> Self:
        if self.recreate and "surge" in self.model_fields_set:
            raise ValueError("sets both recreate and surge: keep one of them")
        return self

    @property
    def additional_replicas(self) -> int:
        """Maximum number of additional replicas during an update."""
        return 0 if self.recreate else self.surge
