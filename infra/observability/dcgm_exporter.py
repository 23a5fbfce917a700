"""NVIDIA's DCGM exporter: metrics of each GPU, with the pod that uses it."""

from collections.abc import Sequence
from typing import Final

from infra.manifests import (
    PULL_SECRET,
    Manifest,
    compact,
    from_namespaces,
    network_policy,
    standard_labels,
    system_namespace,
)
from infra.pods import GpuNodes
from infra.settings.monitoring import DcgmExporterSettings

EXPORTER: Final = "dcgm-exporter"
_POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources"
_GKE_DRIVER: Final = "/home/kubernetes/bin/nvidia"
_DRIVER: Final = "/usr/local/nvidia"


def manifests(
    settings: DcgmExporterSettings,
    nodes: GpuNodes,
    *,
    scraped_from: Sequence[str] | None = None,
    pull_secret: Manifest | None = None,
) -> list[Manifest]:
    """Return the objects in the order of creation.

    If `scraped_from` is given, only pods in these namespaces may connect to the exporter.
    """
    built = system_namespace(settings.namespace, EXPORTER)
    if pull_secret is not None:
        built.append(pull_secret)
    if scraped_from is not None:
        ingress = [from_namespaces(scraped_from, [settings.port])] if scraped_from else []
        built.append(network_policy(settings.namespace, EXPORTER, ingress))
    return [*built, _daemon_set(settings, nodes, use_pull_secret=pull_secret is not None)]


def _daemon_set(
    settings: DcgmExporterSettings, nodes: GpuNodes, *, use_pull_secret: bool
) -> Manifest:
    labels = standard_labels(EXPORTER, EXPORTER)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": EXPORTER, "namespace": settings.namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": EXPORTER}},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": compact(
                    {
                        "runtimeClassName": nodes.runtime_class,
                        "imagePullSecrets": [{"name": PULL_SECRET}] if use_pull_secret else None,
                        "automountServiceAccountToken": False,
                        "enableServiceLinks": False,
                        "nodeSelector": dict(nodes.node_selector),
                        "tolerations": [dict(each) for each in nodes.tolerations],
                        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                        "containers": [_container(settings)],
                        "volumes": [
                            {"name": name, "hostPath": {"path": path}}
                            for name, path in _directories(settings).items()
                        ],
                    }
                ),
            },
        },
    }


def _directories(settings: DcgmExporterSettings) -> dict[str, str]:
    """Return the host paths that the exporter reads, keyed by volume name."""
    driver = {"driver": _GKE_DRIVER} if settings.gke else {}
    return {"pod-resources": _POD_RESOURCES, **driver}


def _container(settings: DcgmExporterSettings) -> Manifest:
    env = {
        "DCGM_EXPORTER_LISTEN": f":{settings.port}",
        "DCGM_EXPORTER_KUBERNETES": "true",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    mounts = [{"name": "pod-resources", "mountPath": _POD_RESOURCES, "readOnly": True}]
    # NVIDIA's chart adds SYS_ADMIN, which only profiling counters need. No rule or dashboard uses
    # these counters.
    security: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    if settings.gke:
        # As in Google's manifest (prometheus-engine, examples/nvidia-dcgm).
        env |= {
            "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE": "device-name",
            "LD_LIBRARY_PATH": f"{_DRIVER}/lib64",
        }
        mounts.append({"name": "driver", "mountPath": _DRIVER, "readOnly": True})
        security = {"privileged": True}
    return {
        "name": EXPORTER,
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "env": [
            *({"name": name, "value": value} for name, value in env.items()),
            # Without this variable, the `Hostname` label contains the name of the exporter's pod.
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "ports": [{"name": "metrics", "containerPort": settings.port}],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {"runAsNonRoot": False, "runAsUser": 0, **security},
        "volumeMounts": mounts,
    }
