"""Scrape targets, their labels, and the values for the kube-prometheus-stack chart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.manifests import PULL_SECRET, Manifest, overlay
from infra.settings.monitoring import GrafanaSettings, KubePrometheusStackSettings
from kube.names import (
    MONITORING_GROUP,
    PATH_ANNOTATION,
    PORT_ANNOTATION,
    QUEUE_ANNOTATION,
    QUEUE_LABEL,
    RUN_LABEL,
    SCHEME_ANNOTATION,
    SCRAPE_ANNOTATION,
    SERVICE_LABEL,
    WORKLOAD_LABEL,
)


@dataclass(frozen=True)
class Target:
    """Pods that serve metrics on a named port, or Services with a numbered target port."""

    name: str
    namespace: str
    selector: Mapping[str, str]
    port: str
    """Name of the pods' port, or number of a Service's target port."""
    labels: Mapping[str, Sequence[str]]
    """Maps each series label to the pod labels and annotations that may contain its value.

    The last one that exists is used.
    """
    keeps_labels: bool = False
    """True if the metrics have labels with the namespace and pod that they describe.

    The labels of the exporter's pod are then never added, even to metrics that describe no pod.
    """
    is_service: bool = False
    """True if `selector` and `port` belong to a Service."""
    may_have_tls: bool = False
    """True if an annotation of a pod can request scraping over TLS."""
    reads_annotations: bool = False
    """True if annotations of a pod can override the port or path, or disable scraping."""
    interval_seconds: int | None = None
    """Scrape interval (s). If None, the default applies."""


def workloads(namespace: str, *, serving_seconds: int | None = None) -> list[Target]:
    """Return the targets for training and inference.

    `serving_seconds` is the scrape interval for inference services.
    """
    return [
        Target(
            "training",
            namespace,
            {WORKLOAD_LABEL: "training"},
            "metrics",
            # Only pods of Volcano Jobs have the queue label; other pods have the annotation.
            {
                "run": [_label(RUN_LABEL)],
                "queue": [_annotation(QUEUE_ANNOTATION), _label(QUEUE_LABEL)],
            },
        ),
        Target(
            "inference",
            namespace,
            {WORKLOAD_LABEL: "inference"},
            "http",
            {"service": [_label(SERVICE_LABEL)]},
            may_have_tls=True,
            reads_annotations=True,
            interval_seconds=serving_seconds,
        ),
    ]


def volcano(namespace: str) -> list[Target]:
    """Return the targets for the scheduler and the controllers, which the chart's Services expose.

    Queue series moved from the scheduler to the controllers in Volcano 1.11.
    """
    services = {
        "volcano": ("volcano-scheduler", 8080),
        "volcano-controllers": ("volcano-controller", 8081),
    }
    return [
        Target(name, namespace, {"app": app}, str(port), {}, is_service=True)
        for name, (app, port) in services.items()
    ]


def dcgm(namespace: str, selector: Mapping[str, str], port: str = "metrics") -> Target:
    """Return the target for NVIDIA's exporter, whose series describe the pods that use the GPUs."""
    return Target("gpus", namespace, selector, port, {}, True)


def monitor(target: Target, metadata: Manifest, interval_seconds: int) -> Manifest:
    """Return a PodMonitor or ServiceMonitor for the Prometheus operator."""
    relabelings = [
        {"sourceLabels": [source], "regex": "(.+)", "targetLabel": name}
        for name, sources in target.labels.items()
        for source in sources
    ]
    if target.may_have_tls:
        scheme = {"sourceLabels": [_annotation(SCHEME_ANNOTATION)], "targetLabel": "__scheme__"}
        relabelings.append({**scheme, "regex": "(https)"})
    if target.reads_annotations:
        relabelings += [
            {_CAMEL_CASE.get(key, key): value for key, value in rule.items()} for rule in _OVERRIDES
        ]
    if target.keeps_labels:
        # Drop the labels that the operator adds to every pod target.
        relabelings.append({"regex": "namespace|pod|container", "action": "labeldrop"})
    if target.is_service:
        # Match the address, because `targetPort` requires a port that the container declares, and
        # Volcano's chart does not declare any.
        relabelings.append(
            {"sourceLabels": ["__address__"], "regex": f".+:{target.port}", "action": "keep"}
        )
    interval = target.interval_seconds or interval_seconds
    endpoint = {
        **({} if target.is_service else {"port": target.port}),
        "path": "/metrics",
        "interval": f"{interval}s",
        **({"honorLabels": True} if target.keeps_labels else {}),
        # The certificate names the Service, but Prometheus connects to the pod's address.
        **({"tlsConfig": {"insecureSkipVerify": True}} if target.may_have_tls else {}),
        **({"relabelings": relabelings} if relabelings else {}),
    }
    kind, endpoints = (
        ("ServiceMonitor", "endpoints")
        if target.is_service
        else ("PodMonitor", "podMetricsEndpoints")
    )
    return {
        "apiVersion": f"{MONITORING_GROUP}/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": {
            "namespaceSelector": {"matchNames": [target.namespace]},
            "selector": {"matchLabels": dict(target.selector)},
            endpoints: [endpoint],
        },
    }


def scrape_config(target: Target, interval_seconds: int) -> Manifest:
    """Return the target as an entry of `scrape_configs` in Prometheus' configuration."""
    role, labeled_object = ("endpoints", "service") if target.is_service else ("pod", "pod")
    kept = [
        _keep(f"__meta_kubernetes_{labeled_object}_label_{_meta(label)}", value)
        for label, value in target.selector.items()
    ]
    port = (
        _keep("__address__", f".+:{target.port}")
        if target.is_service
        else _keep("__meta_kubernetes_pod_container_port_name", target.port)
    )
    # Prometheus would still scrape terminated pods, because they keep their addresses.
    terminated = {
        "source_labels": ["__meta_kubernetes_pod_phase"],
        "regex": "Failed|Succeeded",
        "action": "drop",
    }
    pod_labels = {
        "namespace": ["__meta_kubernetes_namespace"],
        "pod": ["__meta_kubernetes_pod_name"],
    }
    sources = {**({} if target.keeps_labels else pod_labels), **target.labels}
    named = [
        {"source_labels": [source], "regex": "(.+)", "target_label": name}
        for name, label_sources in sources.items()
        for source in label_sources
    ]
    scheme = {"source_labels": [_annotation(SCHEME_ANNOTATION)], "target_label": "__scheme__"}
    schemes = [{**scheme, "regex": "(https)"}] if target.may_have_tls else []
    overrides = _OVERRIDES if target.reads_annotations else ()
    interval = target.interval_seconds or interval_seconds
    return {
        "job_name": f"gpu-platform-{target.name}",
        "scrape_interval": f"{interval}s",
        # Prometheus rejects a timeout longer than the interval.
        "scrape_timeout": f"{min(interval, 10)}s",
        "honor_labels": target.keeps_labels,
        "kubernetes_sd_configs": [{"role": role, "namespaces": {"names": [target.namespace]}}],
        **({"tls_config": {"insecure_skip_verify": True}} if target.may_have_tls else {}),
        "relabel_configs": [*kept, port, terminated, *named, *schemes, *overrides],
    }


_CAMEL_CASE: Final = {"source_labels": "sourceLabels", "target_label": "targetLabel"}
"""Spelling of relabeling keys in the operator's objects."""


def _keep(source: str, regex: str) -> Manifest:
    return {"source_labels": [source], "regex": regex, "action": "keep"}


def _label(name: str) -> str:
    return f"__meta_kubernetes_pod_label_{_meta(name)}"


def _annotation(name: str) -> str:
    return f"__meta_kubernetes_pod_annotation_{_meta(name)}"


def _meta(name: str) -> str:
    """Return a label or annotation name in the form used in Prometheus' meta labels."""
    return "".join(c if c.isalnum() else "_" for c in name)


_OVERRIDES: Final[Sequence[Manifest]] = (
    {"source_labels": [_annotation(SCRAPE_ANNOTATION)], "regex": "false", "action": "drop"},
    {
        "source_labels": ["__address__", _annotation(PORT_ANNOTATION)],
        "regex": r"(.+?)(?::\d+)?;(\d+)",
        "replacement": "$1:$2",
        "target_label": "__address__",
    },
    {
        "source_labels": [_annotation(PATH_ANNOTATION)],
        "regex": "(.+)",
        "target_label": "__metrics_path__",
    },
)
"""Relabeling rules that apply the scrape annotations of pods."""

POD_LABELS: Final = (RUN_LABEL, WORKLOAD_LABEL, SERVICE_LABEL, QUEUE_LABEL)
NODE_LABELS: Final = ("nvidia.com/gpu.product",)
POD_ANNOTATIONS: Final = (QUEUE_ANNOTATION,)
"""Labels and annotations that kube-state-metrics must export."""


def chart_values(
    settings: KubePrometheusStackSettings,
    grafana: GrafanaSettings,
    *,
    use_pull_secret: bool = False,
) -> dict[str, Any]:
    """Return the values that rules and dashboards need, overridden by the configured values.

    `use_pull_secret` is True if the namespace has the registry's pull secret.
    """
    required = {
        **({"global": {"imagePullSecrets": [{"name": PULL_SECRET}]}} if use_pull_secret else {}),
        "kube-state-metrics": {
            "metricLabelsAllowlist": [
                _allowlist("pods", POD_LABELS),
                _allowlist("nodes", NODE_LABELS),
            ],
            "metricAnnotationsAllowList": [_allowlist("pods", POD_ANNOTATIONS)],
        },
        "grafana": _grafana(grafana),
    }
    return overlay(required, settings.values)


def _allowlist(resource: str, names: tuple[str, ...]) -> str:
    return f"{resource}=[{','.join(names)}]"


def _grafana(settings: GrafanaSettings) -> dict[str, Any]:
    """Return the values that make Grafana's sidecar load the stack's ConfigMaps."""
    if not settings.dashboards:
        return {}
    ((label, value),) = settings.labels.items()
    sidecar = {"enabled": True, "label": label, "labelValue": value, "searchNamespace": "ALL"}
    return {"sidecar": {"dashboards": sidecar}}
