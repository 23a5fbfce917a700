"""Kubernetes objects as plain dictionaries, and the metadata that they share."""

from collections.abc import Mapping
from typing import Any, Final

from kube.names import PATCH_FORCE_ANNOTATION, SKIP_AWAIT_ANNOTATION

Manifest = dict[str, Any]
"""A Kubernetes object as its API writes it. Values may be Pulumi outputs."""

PART_OF: Final = "gpu-platform"

NOT_AWAITED: Final = {SKIP_AWAIT_ANNOTATION: "true"}
"""Annotation of objects that become ready in their own time, which may be days."""

ADOPTED: Final = {PATCH_FORCE_ANNOTATION: "true"}
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
