"""Kubernetes objects as plain dictionaries, and the metadata that they share."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kube.names import PATCH_FORCE_ANNOTATION, SKIP_AWAIT_ANNOTATION, SYSTEM_PRIORITY_CLASSES

Manifest = dict[str, Any]
"""A Kubernetes object in the structure of its API. Values may be Pulumi outputs."""

PART_OF: Final = "gpu-platform"

NOT_AWAITED: Final = {SKIP_AWAIT_ANNOTATION: "true"}
"""Annotation of objects that Pulumi does not wait for, because they may take days to be ready."""

ADOPTED: Final = {PATCH_FORCE_ANNOTATION: "true"}
"""Annotation of objects that Pulumi adopts if they already exist."""

DNS_PORTS: Final = (53, 5353)
"""Ports of DNS pods. A NetworkPolicy applies to the pod's port, which is 5353 on OpenShift."""

PULL_SECRET: Final = "registry"  # noqa: S105  the name of an object
"""Name of the pull secret in each namespace that needs one."""

RECORDER: Final = "failure-recorder"
"""Name of the Deployment that archives log lines and events of failed pods."""
DESCRIPTION: Final = "gpu-platform"
"""Name of the ConfigMap that describes the platform to team members."""
DESCRIPTION_KEY: Final = "platform.json"


def compact(fields: Mapping[str, Any]) -> Manifest:
    """Return the fields, omitting None and empty mappings."""
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def overlay(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: merge mappings key by key, and replace anything else."""
    merged = dict(base)
    for key, value in override.items():
        earlier = base.get(key)
        are_mappings = isinstance(earlier, Mapping) and isinstance(value, Mapping)
        merged[key] = overlay(earlier, value) if are_mappings else value  # type: ignore[arg-type]
    return merged


def standard_labels(name: str, instance: str) -> dict[str, str]:
    """Return the labels that Kubernetes recommends."""
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/instance": instance,
        "app.kubernetes.io/part-of": PART_OF,
        "app.kubernetes.io/managed-by": "pulumi",
    }


def with_metadata(
    manifest: Manifest, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Manifest:
    """Return the object with additional labels and annotations.

    They are also added to its pod templates. Existing values take precedence.
    """
    added = {"labels": labels, "annotations": annotations}
    result = _add_metadata(manifest, added)
    return {key: _with_template_metadata(value, added) for key, value in result.items()}


def _with_template_metadata(value: Any, added: Mapping[str, Mapping[str, str]]) -> Any:
    if isinstance(value, list):
        return [_with_template_metadata(item, added) for item in value]
    if not isinstance(value, Mapping):
        return value
    spec = value.get("spec")
    is_pod = isinstance(spec, Mapping) and "containers" in spec
    result = _add_metadata(value, added) if is_pod else value
    return {key: _with_template_metadata(item, added) for key, item in result.items()}


def _add_metadata(value: Mapping[str, Any], added: Mapping[str, Mapping[str, str]]) -> Manifest:
    metadata = value.get("metadata", {})
    merged = {name: {**more, **metadata.get(name, {})} for name, more in added.items()}
    return {**value, "metadata": compact({**metadata, **merged})}


def network_policy(namespace: str, app: str, ingress: list[Manifest]) -> Manifest:
    """Return the NetworkPolicy for an app's pods. It allows `ingress` and denies other traffic."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": app, "namespace": namespace, "labels": standard_labels(app, app)},
        "spec": compact(
            {
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": app}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": ingress or None,
            }
        ),
    }


def from_namespaces(names: Iterable[str], ports: Iterable[int]) -> Manifest:
    """Return the NetworkPolicy rule that allows TCP ingress from pods of these namespaces."""
    selector = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(names)}
    return {
        "from": [{"namespaceSelector": {"matchExpressions": [selector]}}],
        "ports": [{"port": port, "protocol": "TCP"} for port in ports],
    }


def system_namespace(name: str, app: str) -> list[Manifest]:
    """Return a namespace for pods that mount host paths, and its quota.

    GKE admits pods with system priority classes only if a ResourceQuota lists these classes.
    """
    scope = {
        "scopeName": "PriorityClass",
        "operator": "In",
        "values": list(SYSTEM_PRIORITY_CLASSES),
    }
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
                # No cluster has this many pods, so the quota never takes effect.
                "hard": {"pods": "1000000"},
                "scopeSelector": {"matchExpressions": [scope]},
            },
        },
    ]
