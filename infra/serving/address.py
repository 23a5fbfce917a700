"""The stable address of a version's ready pods, and how many of them may be missing."""

from infra.manifests import Manifest
from infra.serving.description import Serving, Version, metadata


def service(serving: Serving, version: Version, annotations: dict[str, str]) -> Manifest:
    """The Service of the ready pods."""
    settings = serving.service
    port = {"name": "http", "port": settings.port, "targetPort": "http", "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(serving, version, annotations),
        "spec": {
            "type": settings.service_type if version.name == serving.key else "ClusterIP",
            "selector": version.selector,
            "ports": [port],
        },
    }


def disruption_budget(serving: Serving, version: Version) -> Manifest:
    """How many pods may be missing while nodes are drained."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(serving, version),
        "spec": {
            "maxUnavailable": serving.service.max_unavailable,
            "selector": {"matchLabels": version.selector},
        },
    }
