"""What is measured, what it costs, and from when on somebody is told."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    Labels,
    LabelValue,
    MemoryQuantity,
    PositiveInt,
    QualifiedName,
    Settings,
    VersionedImage,
)

RELEASE: Final = "kube-prometheus-stack"
"""Name of the chart's release, by which its Prometheus finds what it is to read."""

Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Minutes = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Thresholds(Settings):
    """From when on somebody is told. Minutes are how long it lasts before."""

    gpu_idle_share: Share = Field(default=0.05, description="an allocated GPU below this is idle")
    gpu_idle_minutes: Minutes = Field(default=30, description="for so long")
    gpu_memory_share: Share = Field(
        default=0.97, description="GPU memory above this is nearly full"
    )
    gpu_unhealthy_minutes: Minutes = Field(
        default=5,
        description="GPUs are unhealthy for so long; longer than a device plugin's restart",
    )
    shm_share: Share = Field(default=0.9, description="shared memory above this is nearly full")
    claim_share: Share = Field(default=0.9, description="a claim above this is nearly full")
    claim_minutes: Minutes = Field(default=5, description="for so long")
    memory_share: Share = Field(
        default=0.95, description="of its limit; above it a container is killed"
    )
    memory_minutes: Minutes = Field(
        default=2, description="memory, shared memory or a GPU's memory for so long"
    )
    stalled_minutes: Minutes = Field(
        default=20,
        description="training without a step; longer than any evaluation, export or save",
    )
    checkpoint_minutes: Minutes = Field(
        default=90, description="oldest that the newest checkpoint may be while training goes on"
    )
    restarts_per_hour: PositiveInt = Field(
        default=3, description="more of one job or server are a fault"
    )
    pending_minutes: Minutes = Field(default=60, description="a gang waits for so long")
    exhausted_minutes: Minutes = Field(default=15, description="a quota is used up for so long")
    serving_minutes: Minutes = Field(
        default=5, description="a service is slow, fails, refuses or is not ready for so long"
    )
    latency_seconds: Seconds = Field(
        default=1.0, description="99 of 100 requests are answered by then"
    )
    error_share: Share = Field(default=0.01, description="of requests that end with 5xx")
    refused_share: Share = Field(
        default=0.05, description="of requests that a full queue refuses (429)"
    )
    scaled_out_minutes: Minutes = Field(default=15, description="an autoscaler at its maximum")
    rollout_minutes: Minutes = Field(
        default=15, description="in which servers may have different versions of a model"
    )


class DcgmExporterSettings(Settings):
    """NVIDIA's exporter of what GPUs do."""

    install: bool = Field(
        default=True, description="false where the GPU operator or somebody else has installed one"
    )
    image: VersionedImage = Field(
        default="nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2-4.7.0-ubuntu22.04",
        description="the exporter",
    )
    namespace: DnsLabel = Field(default="gpu-metrics", description="of its own, made by the stack")
    port: PositiveInt = Field(default=9400, le=65535, description="where it answers")


class GrafanaSettings(Settings):
    """Dashboards for a Grafana whose sidecar looks for ConfigMaps."""

    dashboards: bool = Field(default=False, description="make a ConfigMap for each")
    labels: dict[QualifiedName, LabelValue] = Field(
        default={"grafana_dashboard": "1"}, description="by which the sidecar finds them"
    )
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$", description="of `gpu_prices`")


class KubePrometheusStackSettings(Settings):
    """The chart with Prometheus, its operator, Grafana, kube-state-metrics and node exporters."""

    install: bool = Field(
        default=False, description="install the chart; needs prometheus: operator"
    )
    namespace: DnsLabel = Field(
        default="monitoring", description="of its own, made by the stack; one of `scraped_from`"
    )
    chart: str = Field(
        default="kube-prometheus-stack", min_length=1, description="name of the chart"
    )
    repository: str = Field(
        default="https://prometheus-community.github.io/helm-charts",
        pattern=r"^(https?|oci)://\S+$",
        description="address of the chart's repository",
    )
    version: str = Field(
        default="88.5.3", pattern=r"^v?\d+\.\d+\.\d+\S*$", description="exact version of the chart"
    )
    values: dict[str, Any] = Field(
        default={}, description="values of the chart, as the chart names them; over the stack's own"
    )
    timeout_seconds: PositiveInt = Field(
        default=600, description="longest wait until all of it is ready"
    )


class MonitoringSettings(Settings):
    """Scraping, rules and alerts for Prometheus. None of it is there unless `prometheus` says so.

    docs/monitoring.md says what kube-state-metrics must pass on.
    """

    prometheus: Literal["none", "operator", "plain"] = Field(
        default="none",
        description="operator: PodMonitor and PrometheusRule for the Prometheus operator; plain: "
        "a ConfigMap with scrape configuration and rules for a Prometheus without it",
    )
    labels: dict[QualifiedName, LabelValue] = Field(
        default={"release": RELEASE},
        description="by which the Prometheus operator finds these objects",
    )
    scraped_from: tuple[DnsLabel, ...] = Field(
        default=("monitoring",),
        strict=False,
        description="namespaces of Prometheus, which are let in where the network is isolated",
    )
    interval_seconds: PositiveInt = Field(
        default=30, description="between two looks; GPU hours are counted in steps of it"
    )
    dcgm_exporter: DcgmExporterSettings = Field(
        default=DcgmExporterSettings(), description="NVIDIA's exporter of what GPUs do"
    )
    gpu_prices: dict[str, Price] = Field(
        default={},
        description="price of a GPU for an hour, by the nodes' label nvidia.com/gpu.product",
    )
    thresholds: Thresholds = Field(
        default=Thresholds(),
        description="from when on somebody is told; minutes are how long it lasts",
    )
    grafana: GrafanaSettings = Field(default=GrafanaSettings(), description="dashboards")
    kube_prometheus_stack: KubePrometheusStackSettings = Field(
        default=KubePrometheusStackSettings(),
        description="the chart that brings Prometheus and Grafana",
    )
    runbooks: str = Field(
        default="docs/runbooks.md",
        description="where the pages about alerts are; the alert's name is added as anchor",
    )

    @model_validator(mode="after")
    def _fits_the_chart(self) -> Self:
        if self.kube_prometheus_stack.install:
            for problem in self._misfits():
                raise ValueError(problem)
        return self

    def _misfits(self) -> Iterator[str]:
        here = "has kube_prometheus_stack.install"
        if self.prometheus != "operator":
            yield (
                f"{here}, and prometheus is {self.prometheus}: write operator, which the chart "
                "brings"
            )
        if self.labels.get("release") != RELEASE:
            yield (
                f"{here}, whose Prometheus reads what has a certain label: add "
                f"release: {RELEASE} to labels"
            )
        if self.kube_prometheus_stack.namespace not in self.scraped_from:
            yield (
                f"{here}, whose Prometheus comes from {self.kube_prometheus_stack.namespace}: "
                "add it to scraped_from"
            )
        if self.grafana.dashboards and len(self.grafana.labels) != 1:
            yield (
                f"{here}, whose Grafana looks for one label, and grafana.labels has "
                f"{len(self.grafana.labels)}: write one"
            )


PortNumber = Annotated[int, Field(ge=1, le=65535)]


class RecorderSettings(Settings):
    """A pod of the namespace that follows the pods of runs and keeps what failed ones have said.

    It needs an image, which `images.workloads` has under the name written here, and whoever runs
    `pulumi up` needs the right to grant `get pods/log`.
    """

    image: DnsLabel = Field(
        default="recorder", description="name of its image, built from recorder/"
    )
    claims: list[DnsLabel] = Field(
        default=["checkpoints"],
        min_length=1,
        description="claims of runs, which must be ReadWriteMany: it writes beside the trainings",
    )
    lines: PositiveInt = Field(default=500, le=100_000, description="last lines of a container")
    kib: PositiveInt = Field(default=64, le=10_240, description="most KiB of these lines")
    failures: PositiveInt = Field(default=10, le=1000, description="of a run, the latest ones")
    pods: PositiveInt = Field(
        default=16, le=1000, description="of a failure, those that ended first"
    )
    cpu: CpuQuantity = Field(default="50m", description="CPU request")
    memory: MemoryQuantity = Field(default="256Mi", description="memory request and limit")
    node_selector: Labels = Field(default={}, description="labels of nodes that it may run on")
    api_ports: list[PortNumber] = Field(
        default=[443, 6443],
        min_length=1,
        description="ports of the API server, the only ones that it may reach where the network "
        "is isolated",
    )


class LogsSettings(Settings):
    """Where logs go beyond the nodes; docs/logs.md."""

    recorder: RecorderSettings | None = Field(
        default=None,
        description="keeps last lines and events of failed pods beside the checkpoints",
    )
