"""Plain Kubernetes objects and the one way in which they become Pulumi resources."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

import pulumi

Manifest = dict[str, Any]
"""A Kubernetes object as its API writes it. Values may be Pulumi outputs."""

PART_OF: Final = "gpu-platform"
WORKLOAD_LABEL: Final = "gpu-platform.dev/workload"
RUN_LABEL: Final = "gpu-platform.dev/run"
SERVICE_LABEL: Final = "gpu-platform.dev/service"
SCHEME_ANNOTATION: Final = "prometheus.io/scheme"
"""Of pods that answer Prometheus by TLS: a convention of its example."""

NOT_AWAITED: Final = {"pulumi.com/skipAwait": "true"}
"""Annotation of objects that become ready in their own time, which may be days."""

ADOPTED: Final = {"pulumi.com/patchForce": "true"}
"""Annotation of objects that are taken over where they exist already."""


def compact(fields: Mapping[str, Any]) -> Manifest:
    """The fields without those that are None or empty."""
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def standard_labels(name: str, instance: str) -> dict[str, str]:
    """The labels that Kubernetes recommends."""
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/instance": instance,
        "app.kubernetes.io/part-of": PART_OF,
        "app.kubernetes.io/managed-by": "pulumi",
    }


def privileged_namespace(name: str, app: str) -> Manifest:
    """A namespace of pods that need a folder of their node, which only "privileged" admits."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {
                **standard_labels(app, name),
                "pod-security.kubernetes.io/enforce": "privileged",
            },
        },
    }


class KubernetesObject(pulumi.CustomResource):
    """Any Kubernetes object, created from its manifest as it stands."""

    def __init__(
        self, resource_name: str, manifest: Manifest, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        group_version, kind = manifest["apiVersion"], manifest["kind"]
        group_version = group_version if "/" in group_version else f"core/{group_version}"
        super().__init__(
            f"kubernetes:{group_version}:{kind}",
            resource_name,
            dict(manifest),
            pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions(version=version("pulumi-kubernetes")), opts
            ),
        )
