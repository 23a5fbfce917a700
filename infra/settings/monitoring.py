"""What is measured, what it costs, and from when on somebody is told."""

from typing import Annotated, Literal

from pydantic import Field

from infra.settings.types import (
    DnsLabel,
    LabelValue,
    PositiveInt,
    QualifiedName,
    Settings,
    VersionedImage,
)

Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Thresholds(Settings):
    """From when on somebody is told. Minutes are how long it lasts before."""

    gpu_idle_share: Share = Field(0.05, description="an allocated GPU below this is idle")
    gpu_idle_minutes: PositiveInt = Field(30, description="for so long")
    gpu_memory_share: Share = Field(0.97, description="GPU memory above this is nearly full")
    shm_share: Share = Field(0.9, description="shared memory above this is nearly full")
    claim_share: Share = Field(0.9, description="a claim above this is nearly full")
    memory_share: Share = Field(0.95, description="of its limit; above it a container is killed")
    stalled_minutes: PositiveInt = Field(
        20, description="training without a step; longer than any evaluation, export or save"
    )
    checkpoint_minutes: PositiveInt = Field(
        90, description="oldest that the newest checkpoint may be while training goes on"
    )
    restarts_per_hour: PositiveInt = Field(3, description="more of one job or server are a fault")
    pending_minutes: PositiveInt = Field(60, description="a gang waits for so long")
    latency_seconds: Seconds = Field(1.0, description="99 of 100 requests are answered by then")
    error_share: Share = Field(0.01, description="of requests that end with 5xx")
    refused_share: Share = Field(0.05, description="of requests that a full queue refuses (429)")
    scaled_out_minutes: PositiveInt = Field(15, description="an autoscaler at its maximum")
    rollout_minutes: PositiveInt = Field(
        15, description="in which servers may have different versions of a model"
    )


class DcgmExporterSettings(Settings):
    """NVIDIA's exporter of what GPUs do."""

    install: bool = Field(
        True, description="false where the GPU operator or somebody else has installed one"
    )
    image: VersionedImage = Field(
        "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2-4.7.0-ubuntu22.04", description="the exporter"
    )
    namespace: DnsLabel = Field("gpu-metrics", description="of its own, made by the stack")
    port: PositiveInt = Field(9400, le=65535, description="where it answers")


class GrafanaSettings(Settings):
    """Dashboards for a Grafana whose sidecar looks for ConfigMaps."""

    dashboards: bool = Field(False, description="make a ConfigMap for each")
    labels: dict[QualifiedName, LabelValue] = Field(
        {"grafana_dashboard": "1"}, description="by which the sidecar finds them"
    )
    currency: str = Field("USD", pattern=r"^[A-Z]{3}$", description="of `gpu_prices`")


class MonitoringSettings(Settings):
    """Scraping, rules and alerts for Prometheus. None of it is there unless `prometheus` says so.

    kube-state-metrics must pass on the labels that runs are told apart by:
    `--metric-labels-allowlist=pods=[gpu-platform.dev/run,gpu-platform.dev/service,
    volcano.sh/queue-name],nodes=[nvidia.com/gpu.product]`.
    """

    prometheus: Literal["none", "operator", "plain"] = Field(
        "none",
        description="operator: PodMonitor and PrometheusRule for the Prometheus operator; plain: "
        "a ConfigMap with scrape configuration and rules for a Prometheus without it",
    )
    labels: dict[QualifiedName, LabelValue] = Field(
        {"release": "kube-prometheus-stack"},
        description="by which the Prometheus operator finds these objects",
    )
    scraped_from: tuple[DnsLabel, ...] = Field(
        ("monitoring",),
        strict=False,
        description="namespaces of Prometheus, which are let in where the network is isolated",
    )
    interval_seconds: PositiveInt = Field(
        30, description="between two looks; GPU hours are counted in steps of it"
    )
    dcgm_exporter: DcgmExporterSettings = Field(
        DcgmExporterSettings(), description="NVIDIA's exporter of what GPUs do"
    )
    gpu_prices: dict[str, Price] = Field(
        {},
        description="price of a GPU for an hour, by the nodes' label nvidia.com/gpu.product",
    )
    thresholds: Thresholds = Field(
        Thresholds(), description="from when on somebody is told; minutes are how long it lasts"
    )
    grafana: GrafanaSettings = Field(GrafanaSettings(), description="dashboards")
    runbooks: str = Field(
        "docs/runbooks.md",
        description="where the pages about alerts are; the alert's name is added as anchor",
    )
