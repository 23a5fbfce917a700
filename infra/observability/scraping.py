"""Who is asked for numbers, and what the answers are labelled with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.backends.gang import QUEUE_LABEL
from infra.manifests import RUN_LABEL, SERVICE_LABEL, WORKLOAD_LABEL, Manifest


@dataclass(frozen=True)
class Target:
    """Pods that answer at a port of this name."""

    name: str
    namespace: str
    selector: Mapping[str, str]
    port: str
    labels: Mapping[str, str]
    """Labels of the series, and the pods' labels that they are from."""
    keeps_labels: bool = False
    """Whether the answers name namespace and pod themselves: of those that they are about."""
    of_services: bool = False
    """Whether the selector and the port are of a Service, and not of pods."""


def workloads(namespace: str) -> list[Target]:
    """Training and inference of a namespace."""
    return [
        Target(
            "training",
            namespace,
            {WORKLOAD_LABEL: "training"},
            "metrics",
            {"run": RUN_LABEL, "queue": QUEUE_LABEL},
        ),
        Target(
            "inference",
            namespace,
            {WORKLOAD_LABEL: "inference"},
            "http",
            {"service": SERVICE_LABEL},
        ),
    ]


def volcano(namespace: str) -> Target:
    """The scheduler, by the Service of its chart."""
    return Target("volcano", namespace, {"app": "volcano-scheduler"}, "8080", {}, of_services=True)


def dcgm(namespace: str, app: str) -> Target:
    """NVIDIA's exporter; its series are about the pods that have the GPUs."""
    return Target("gpus", namespace, {"app.kubernetes.io/name": app}, "metrics", {}, True)


def monitor(target: Target, metadata: Manifest, interval_seconds: int) -> Manifest:
    """A PodMonitor or ServiceMonitor of the Prometheus operator."""
    relabelings = [
        {"sourceLabels": [f"__meta_kubernetes_pod_label_{_meta(label)}"], "targetLabel": name}
        for name, label in target.labels.items()
    ]
    # A Service of Volcano's chart has no name for its port.
    port: dict[str, Any] = (
        {"targetPort": int(target.port)} if target.port.isdecimal() else {"port": target.port}
    )
    endpoint = {
        **port,
        "path": "/metrics",
        "interval": f"{interval_seconds}s",
        **({"honorLabels": True} if target.keeps_labels else {}),
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
        {
            "source_labels": [f"__meta_kubernetes_{about}_label_{_meta(label)}"],
            "regex": value,
            "action": "keep",
        }
        for label, value in target.selector.items()
    ]
    port = (
        "__meta_kubernetes_pod_container_port_number"
        if target.port.isdecimal()
        else "__meta_kubernetes_pod_container_port_name"
    )
    named = [
        {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": name}
        for name, source in {
            "namespace": "namespace",
            "pod": "pod_name",
            **{name: f"pod_label_{_meta(label)}" for name, label in target.labels.items()},
        }.items()
    ]
    return {
        "job_name": f"gpu-platform-{target.name}",
        "scrape_interval": f"{interval_seconds}s",
        "honor_labels": target.keeps_labels,
        "kubernetes_sd_configs": [{"role": role, "namespaces": {"names": [target.namespace]}}],
        "relabel_configs": [
            *kept,
            {"source_labels": [port], "regex": target.port, "action": "keep"},
            *named,
        ],
    }


def _meta(label: str) -> str:
    """A label's name as Prometheus' discovery writes it."""
    return "".join(c if c.isalnum() else "_" for c in label)
