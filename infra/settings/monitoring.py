"""Monitoring, alert thresholds, GPU prices, dashboards and archived logs."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from infra.settings.types import (
    ChartRepository,
    ChartVersion,
    CpuQuantity,
    DnsLabel,
    Labels,
    LabelValue,
    MemoryQuantity,
    PortNumber,
    PositiveInt,
    QualifiedName,
    Settings,
    VersionedImage,
    check_mappings,
    matching,
)

RELEASE: Final = "kube-prometheus-stack"
"""Name of the chart's release. The chart's Prometheus selects objects whose `release` label has
this value."""

Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Minutes = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Currency = Annotated[
    str,
    matching(re.compile(r"[A-Z]{3}"), 3, "a currency code of three capital letters, such as EUR"),
]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Thresholds(Settings):
    """Thresholds of alerts, and the time for which a condition must hold before its alert fires."""

    gpu_idle_share: Share = Field(
        default=0.05, description="Utilization below which an allocated GPU counts as idle."
    )
    gpu_idle_minutes: Minutes = Field(
        default=30,
        description="Time (min) that an allocated GPU must be idle before an alert fires.",
    )
    gpu_memory_share: Share = Field(
        default=0.97, description="Share of a GPU's memory above which it counts as nearly full."
    )
    missing_minutes: Minutes = Field(
        default=15,
        description="Time (min) for which an expected series must be missing before an alert "
        "fires.",
    )
    gpu_unhealthy_minutes: Minutes = Field(
        default=5,
        description="Time (min) that GPUs must be unhealthy before an alert fires. It should "
        "exceed the restart time of a device plugin.",
    )
    shm_share: Share = Field(
        default=0.9, description="Share of /dev/shm above which it counts as nearly full."
    )
    claim_share: Share = Field(
        default=0.9, description="Share of a claim above which it counts as nearly full."
    )
    claim_minutes: Minutes = Field(
        default=5, description="Time (min) that a claim must be nearly full before an alert fires."
    )
    memory_share: Share = Field(
        default=0.95,
        description="Share of the memory limit above which a container is close to being killed.",
    )
    memory_minutes: Minutes = Field(
        default=2,
        description="Time (min) that memory, /dev/shm or a GPU's memory must be nearly full before "
        "an alert fires.",
    )
    stalled_minutes: Minutes = Field(
        default=20,
        description="Time (min) without a training step before an alert fires. It should exceed "
        "the longest evaluation, export or checkpoint.",
    )
    checkpoint_minutes: Minutes = Field(
        default=90,
        description="Maximum age (min) of the newest checkpoint while training continues.",
    )
    restarts_per_hour: PositiveInt = Field(
        default=3, description="Maximum number of restarts of a job or server per hour."
    )
    pending_minutes: Minutes = Field(
        default=60, description="Time (min) that a gang must be pending before an alert fires."
    )
    exhausted_minutes: Minutes = Field(
        default=15, description="Time (min) that a quota must be exhausted before an alert fires."
    )
    serving_minutes: Minutes = Field(
        default=5,
        description="Time (min) that a service must be slow, failing, overloaded or not ready "
        "before an alert fires.",
    )
    latency_seconds: Seconds = Field(
        default=1.0,
        description="Maximum p99 latency (s) of the requests. For services with the torch runtime, "
        "set a limit below 30: their latency histogram ends at 30 s, so the alert would never fire "
        "with a higher limit.",
    )
    error_share: Share = Field(
        default=0.01, description="Maximum share of requests that fail with 5xx."
    )
    refused_share: Share = Field(
        default=0.05, description="Maximum share of requests that a full queue rejects (429)."
    )
    scaled_out_minutes: Minutes = Field(
        default=15,
        description="Time (min) that an autoscaler must be at its maximum before an alert fires.",
    )
    rollout_minutes: Minutes = Field(
        default=15,
        description="Time (min) that servers must serve different versions of a model before an "
        "alert fires.",
    )


class ExistingExporterSettings(Settings):
    """Pods of an existing DCGM exporter. The defaults are those of the GPU Operator."""

    namespace: DnsLabel = Field(default="gpu-operator", description="Namespace of the pods.")
    labels: Labels = Field(
        default={"app": "nvidia-dcgm-exporter"}, min_length=1, description="Labels of the pods."
    )
    port: DnsLabel = Field(default="metrics", description="Name of the pods' port.")


class DcgmExporterSettings(Settings):
    """NVIDIA's DCGM exporter."""

    install: bool = Field(
        default=True,
        description="Install the exporter. Set to false if the cluster already has one, for "
        "example from the GPU Operator.",
    )
    image: VersionedImage = Field(
        default="nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0-4.8.3-ubuntu22.04",
        description="Image of the exporter.",
    )
    namespace: DnsLabel = Field(
        default="gpu-metrics", description="Namespace of the exporter, created by the stack."
    )
    port: PositiveInt = Field(default=9400, le=65535, description="Port of the exporter.")
    gke: bool = Field(
        default=False,
        description="Support GKE: read the driver from the directory in which GKE installs it, and "
        "match GPUs to pods by the device names of GKE's device plugin. The exporter is then "
        "privileged, because GKE's nodes lack NVIDIA's container runtime.",
    )
    existing: ExistingExporterSettings | None = Field(
        default=None,
        description="An existing exporter in the cluster, for Prometheus to scrape. Requires "
        "install: false.",
    )

    @model_validator(mode="after")
    def _one_exporter(self) -> Self:
        if self.install and self.existing is not None:
            raise ValueError("sets existing, but install is true: set install: false")
        return self


class GrafanaSettings(Settings):
    """Dashboards for Grafana's sidecar, which reads them from ConfigMaps."""

    dashboards: bool = Field(default=False, description="Create a ConfigMap for each dashboard.")
    labels: dict[QualifiedName, LabelValue] = Field(
        default={"grafana_dashboard": "1"},
        description="Labels by which the sidecar selects the ConfigMaps.",
    )
    currency: _Currency = Field(default="USD", description="Currency of `gpu_prices`.")


class KubePrometheusStackSettings(Settings):
    """The chart with Prometheus, its operator, Grafana, kube-state-metrics and node exporters."""

    install: bool = Field(
        default=False, description="Install the chart. It requires prometheus: operator."
    )
    namespace: DnsLabel = Field(
        default="monitoring",
        description="Namespace of the release, created by the stack. `scraped_from` must "
        "contain it.",
    )
    chart: str = Field(
        default="kube-prometheus-stack", min_length=1, description="Name of the chart."
    )
    repository: ChartRepository = Field(
        default="https://prometheus-community.github.io/helm-charts",
        description="URL of the chart's repository.",
    )
    version: ChartVersion = Field(default="88.5.3", description="Exact version of the chart.")
    values: dict[str, Any] = Field(
        default={},
        description="Additional chart values, which override the values that the stack sets.",
    )
    timeout_seconds: PositiveInt = Field(
        default=600, description="Maximum time (s) until the whole chart is ready."
    )

    @field_validator("values")
    @classmethod
    def _values_are_valid(cls, values: dict[str, Any]) -> dict[str, Any]:
        check_mappings(values, "global")
        return values


class MonitoringSettings(Settings):
    """Scraping, rules and alerts for Prometheus, unless `prometheus` is `none`.

    docs/monitoring.md lists the labels that kube-state-metrics must export.
    """

    prometheus: Literal["none", "operator", "plain"] = Field(
        default="none",
        description="`none` creates nothing; `operator` creates PodMonitors, ServiceMonitors and a "
        "PrometheusRule for the Prometheus operator; `plain` creates a ConfigMap with scrape "
        "configuration and rules for a Prometheus server without the operator.",
    )
    labels: dict[QualifiedName, LabelValue] = Field(
        default={"release": RELEASE},
        description="Labels by which the Prometheus operator selects the PodMonitors, the "
        "ServiceMonitors and the PrometheusRule.",
    )
    scraped_from: tuple[DnsLabel, ...] = Field(
        default=("monitoring",),
        strict=False,
        description="Namespaces of Prometheus; network policies allow scrapes from them.",
    )
    interval_seconds: PositiveInt = Field(
        default=30, description="Interval (s) between two scrapes. GPU-hours have this resolution."
    )
    dcgm_exporter: DcgmExporterSettings = Field(
        default=DcgmExporterSettings(), description="NVIDIA's DCGM exporter."
    )
    gpu_prices: dict[str, Price] = Field(
        default={},
        description="Price per GPU-hour, by GPU model (node label nvidia.com/gpu.product).",
    )
    thresholds: Thresholds = Field(default=Thresholds(), description="Alert thresholds.")
    grafana: GrafanaSettings = Field(default=GrafanaSettings(), description="Dashboards.")
    kube_prometheus_stack: KubePrometheusStackSettings = Field(
        default=KubePrometheusStackSettings(),
        description="The chart that installs Prometheus and Grafana.",
    )
    runbooks: str = Field(
        default="docs/runbooks.md",
        description="URL or path of the runbooks. The alert's name is appended as an anchor.",
    )

    @model_validator(mode="after")
    def _fits_the_chart(self) -> Self:
        if self.kube_prometheus_stack.install:
            for problem in self._chart_problems():
                raise ValueError(problem)
        return self

    def _chart_problems(self) -> Iterator[str]:
        here = "sets kube_prometheus_stack.install"
        if self.prometheus != "operator":
            yield (
                f"{here}, but prometheus is {self.prometheus}: set prometheus to operator, which "
                "the chart installs"
            )
        if self.labels.get("release") != RELEASE:
            yield (
                f"{here}, but the chart's Prometheus selects objects by a label: add "
                f"release: {RELEASE} to labels"
            )
        if self.kube_prometheus_stack.namespace not in self.scraped_from:
            yield (
                f"{here}, but scraped_from does not contain the chart's namespace "
                f"{self.kube_prometheus_stack.namespace}: add it"
            )
        if self.grafana.dashboards and len(self.grafana.labels) != 1:
            yield (
                f"{here}, but grafana.labels has {len(self.grafana.labels)} labels, and the "
                "chart's Grafana selects dashboards by a single label: keep one of them"
            )


class RecorderSettings(Settings):
    """A pod that watches the pods of runs and archives the last log lines of failed pods.

    Its image must be one of `images.workloads`, and the user who runs `pulumi up` needs
    permission to grant `get pods/log`.
    """

    image: DnsLabel = Field(
        default="recorder", description="Key of the image, which is built from recorder/."
    )
    claims: list[DnsLabel] = Field(
        default=["checkpoints"],
        min_length=1,
        description="Claims with the checkpoints of runs. They must be ReadWriteMany, because "
        "runs and the recorder write to them at the same time.",
    )
    lines: PositiveInt = Field(
        default=500,
        le=100_000,
        description="Maximum number of log lines per container; the last ones are kept.",
    )
    kib: PositiveInt = Field(
        default=64, le=10_240, description="Maximum size (KiB) of the log lines per container."
    )
    failures: PositiveInt = Field(
        default=10, le=1000, description="Maximum number of failures per run; the latest are kept."
    )
    pods: PositiveInt = Field(
        default=16,
        le=1000,
        description="Maximum number of containers whose logs are archived per failure. If "
        "more containers fail together, those that terminated first are archived.",
    )
    cpu: CpuQuantity = Field(default="50m", description="CPU request.")
    memory: MemoryQuantity = Field(default="256Mi", description="Memory request and limit.")
    node_selector: Labels = Field(default={}, description="Node labels that the pod requires.")
    api_ports: list[PortNumber] = Field(
        default=[443, 6443],
        min_length=1,
        description="Ports of the API server. With network isolation, the pod may connect only "
        "to these.",
    )

    @field_validator("claims")
    @classmethod
    def _claims_differ(cls, claims: list[str]) -> list[str]:
        if len(set(claims)) < len(claims):
            raise ValueError("contains a duplicate claim: list each claim only once")
        return claims


class LogsSettings(Settings):
    """Archive of log lines that outlives pods and nodes; see docs/logs.md."""

    recorder: RecorderSettings | None = Field(
        default=None,
        description="Archive the last log lines and events of failed pods next to the checkpoints.",
    )
