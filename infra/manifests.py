"""Kubernetes objects as plain dictionaries, and the metadata that they share."""

from collections.abc import Mapping
from typing import Any, Final

from kube.names import PATCH_FORCE_ANNOTATION, SKIP_AWAIT_ANNOTATION

Manifest = dict[str, Any]
"""A Kubernetes object in the structure of its API. Values may be Pulumi outputs."""

PART_OF: Final = "gpu-platform"

NOT_AWAITED: Final = {SKIP_AWAIT_ANNOTATION: "true"}
"""Annotation of objects that Pulumi does not wait for, because that may take days."""

ADOPTED: Final = {PATCH_FORCE_ANNOTATION: "true"}
"""Annotation of objects that Pulumi adopts if they exist already."""


def compact(fields: Mapping[str, Any]) -> Manifest:
    """Return the fields without those that are None or an empty mapping."""
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def standard_labels(name: str, instance: str) -> dict[str, str]:
    """Return the labels that Kubernetes recommends."""
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/instance": instance,
        "app.kubernetes.io/part-of": PART_OF,
        "app.kubernetes.io/managed-by": "pulumi",
    }


_CRITICAL: Final = ("system-cluster-critical", "system-node-critical")


def system_namespace(name: str, app: str) -> list[Manifest]:
    """Return a namespace for pods that mount directories of their node, with its quota.

    GKE admits pods of the system's priority classes only where a ResourceQuota names the classes.
    """
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": list(_CRITICAL)}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": {
                    **standard_labels(app, name),
                    "pod-security.kubernetes.io/enforce": "privileged",
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {
                "name": "critical-pods",
                "namespace": name,
                "labels": standard_labels(app, name),
            },
            "spec": {
                # More than a cluster has: the quota permits and does not limit.
                "hard": {"pods": "1000000"},
                "scopeSelector": {"matchExpressions": [scope]},
            },
        },
    ]
