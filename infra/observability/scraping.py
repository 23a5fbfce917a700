"""Who is asked for numbers, and what the answers are labelled with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.manifests import Manifest
from infra.settings.monitoring import GrafanaSettings, KubePrometheusStackSettings
from kube.names import (
    QUEUE_ANNOTATION,
    QUEUE_LABEL,
    RUN_LABEL,
    SCHEME_ANNOTATION,
    SERVICE_LABEL,
    WORKLOAD_LABEL,
)


@dataclass(frozen=True)
class Target:
    """Pods that answer at a port of this name."""

    name: str
    namespace: str
    selector: Mapping[str, str]
    port: str
    """A port's name of the pods, or a number of whatever a Service leads to."""
    labels: Mapping[str, Sequence[str]]
    """Labels of the series, and what of the pods they are from: the last one that is there."""
    keeps_labels: bool = False
    """Whether the answers name namespace and pod themselves: of those that they are about.

    What is about no pod must not get those of the pod that answers either.
    """
    of_services: bool = False
    """Whether the selector and the port are of a Service, and not of pods."""
    may_have_tls: bool = False
    """Whether pods say by an annotation that they answer by TLS."""


def workloads(namespace: str) -> list[Target]:
    """Training and inference of a namespace."""
    return [
        Target(
            "training",
            namespace,
            {WORKLOAD_LABEL: "training"},
            "metrics",
            # Only pods of Volcano's own kinds have a queue's label.
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
        ),
    ]


def volcano(namespace: str) -> list[Target]:
    """Return the scheduler and the controllers, by the Services of their chart.

    The series of queues moved from the scheduler to the controllers in Volcano 1.11.
    """
    services = {
        "volcano": ("volcano-scheduler", 8080),
        "volcano-controllers": ("volcano-controller", 8081),
    }
    return [
        Target(name, namespace, {"app": app}, str(port), {}, of_services=True)
        for name, (app, port) in services.items()
    ]


def dcgm(namespace: str, app: str) -> Target:
    """NVIDIA's exporter; its series are about the pods that have the GPUs."""
    return Target("gpus", namespace, {"app.kubernetes.io/name": app}, "metrics", {}, True)


def monitor(target: Target, metadata: Manifest, interval_seconds: int) -> Manifest:
    """A PodMonitor or ServiceMonitor of the Prometheus operator."""
    relabelings = [
        {"sourceLabels": [source], "regex": "(.+)", "targetLabel": name}
        for name, sources in target.labels.items()
        for source in sources
    ]
    if target.may_have_tls:
        scheme = {"sourceLabels": [_annotation(SCHEME_ANNOTATION)], "targetLabel": "__scheme__"}
        relabelings.append({**scheme, "regex": "(https)"})
    if target.keeps_labels:
        # The operator gives every target of pods these.
        relabelings.append({"regex": "namespace|pod|container", "action": "labeldrop"})
    if target.of_services:
        # The operator's `targetPort` wants the port among the container's, and Volcano's chart
        # leaves it out there.
        relabelings.append(
            {"sourceLabels": ["__address__"], "regex": f".+:{target.port}", "action": "keep"}
        )
    endpoint = {
        **({} if target.of_services else {"port": target.port}),
        "path": "/metrics",
        "interval": f"{interval_seconds}s",
        **({"honorLabels": True} if target.keeps_labels else {}),
        # A certificate is for the service's name, and Prometheus comes by a pod's address.
        **({"tlsConfig": {"insecureSkipVerify": True}} if target.may_have_tls else {}),
        **({"relabelings": relabelings} if relabelings else {}),
    }
    kind, endpoints = (
        ("ServiceMonitor", "endpoints")
        if target.of_services
        else ("PodMonitor", "podMetricsEndpoints")
    )
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": {
            "namespaceSelector": {"matchNames": [target.namespace]},
            "selector": {"matchLabels": dict(target.selector)},
            endpoints: [endpoint],
        },
    }


def scrape_config(target: Target, interval_seconds: int) -> Manifest:
    """The same as an entry of `scrape_configs` in Prometheus' own configuration."""
    role, about = ("endpoints", "service") if target.of_services else ("pod", "pod")
    kept = [
        _keep(f"__meta_kubernetes_{about}_label_{_meta(label)}", value)
        for label, value in target.selector.items()
    ]
    port = (
        _keep("__address__", f".+:{target.port}")
        if target.of_services
        else _keep("__meta_kubernetes_pod_container_port_name", target.port)
    )
    # Pods that have ended keep their address.
    ended = {
        "source_labels": ["__meta_kubernetes_pod_phase"],
        "regex": "Failed|Succeeded",
        "action": "drop",
    }
    of_pod = {
        "namespace": ["__meta_kubernetes_namespace"],
        "pod": ["__meta_kubernetes_pod_name"],
    }
    sources = {**({} if target.keeps_labels else of_pod), **target.labels}
    named = [
        {"source_labels": [source], "regex": "(.+)", "target_label": name}
        for name, found in sources.items()
        for source in found
    ]
    scheme = {"source_labels": [_annotation(SCHEME_ANNOTATION)], "target_label": "__scheme__"}
    schemes = [{**scheme, "regex": "(https)"}] if target.may_have_tls else []
    return {
        "job_name": f"gpu-platform-{target.name}",
        "scrape_interval": f"{interval_seconds}s",
        # Prometheus refuses a timeout that is longer than the interval.
        "scrape_timeout": f"{min(interval_seconds, 10)}s",
        "honor_labels": target.keeps_labels,
        "kubernetes_sd_configs": [{"role": role, "namespaces": {"names": [target.namespace]}}],
        **({"tls_config": {"insecure_skip_verify": True}} if target.may_have_tls else {}),
        "relabel_configs": [*kept, port, ended, *named, *schemes],
    }


def _keep(source: str, regex: str) -> Manifest:
    return {"source_labels": [source], "regex": regex, "action": "keep"}


def _label(name: str) -> str:
    return f"__meta_kubernetes_pod_label_{_meta(name)}"


def _annotation(name: str) -> str:
    return f"__meta_kubernetes_pod_annotation_{_meta(name)}"


def _meta(name: str) -> str:
    """The name of a label or an annotation as Prometheus' discovery writes it."""
    return "".join(c if c.isalnum() else "_" for c in name)


POD_LABELS: Final = (RUN_LABEL, WORKLOAD_LABEL, SERVICE_LABEL, QUEUE_LABEL)
NODE_LABELS: Final = ("nvidia.com/gpu.product",)
POD_ANNOTATIONS: Final = (QUEUE_ANNOTATION,)
"""What kube-state-metrics has to pass on."""


def chart_values(settings: KubePrometheusStackSettings, grafana: GrafanaSettings) -> dict[str, Any]:
    """The chart's values: those of the settings, over what the rules and dashboards need."""
    ours = {
        "kube-state-metrics": {
            "metricLabelsAllowlist": [
                _allowed("pods", POD_LABELS),
                _allowed("nodes", NODE_LABELS),
            ],
            "metricAnnotationsAllowList": [_allowed("pods", POD_ANNOTATIONS)],
        },
        "grafana": _grafana(grafana),
    }
    return _over(ours, settings.values)


def _allowed(resource: str, names: tuple[str, ...]) -> str:
    return f"{resource}=[{','.join(names)}]"


def _grafana(settings: GrafanaSettings) -> dict[str, Any]:
    """The sidecar looks for our ConfigMaps in their namespace; else the chart's own ways."""
    if not settings.dashboards:
        return {}
    ((label, value),) = settings.labels.items()
    found = {"enabled": True, "label": label, "labelValue": value, "searchNamespace": "ALL"}
    return {"sidecar": {"dashboards": found}}


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm lays values over each other: mappings key by key, anything else as a whole."""
    merged = dict(below)
    for key, value in above.items():
        under = below.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = _over(under, value) if both else value  # type: ignore[arg-type]
    return merged
