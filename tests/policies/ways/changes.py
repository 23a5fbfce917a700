"""Ways to change other users' objects when they are created."""

from typing import Any

from tests.policies.ways.makers import (
    BAD,
    BINDING,
    POD,
    PRIVILEGED,
    harmless,
    replacement,
    replacement_with_spec,
)
from tests.policies.ways.way import Way

CONTAINERS = "request.object.spec.template.spec.containers"
PATCH = """
- {op: add, path: /spec/containers/0/securityContext/privileged, value: true}
"""
DEVICES = "io.kubernetes.cri-o.Devices"
PATCH_OF_ANNOTATION = f"""
- {{op: add, path: /metadata/annotations/{DEVICES}, value: /dev/sda}}
"""
MOVE = """
- {op: move, from: /spec/runtimeClassName, path: /metadata/labels/a}
"""
HOST = {"spec": {"hostNetwork": True}}
LABEL = """
- path: /metadata/labels/team
  op: add
  value: a
"""


def mutating_policy(description: str, rules: str, **mutate: Any) -> Way:
    """Return an edit that adds a Kyverno policy that changes every Pod."""
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    rule = {"name": "a", "match": match, "mutate": mutate}
    return replacement_with_spec(description, "kyverno.io/v1", "ClusterPolicy", rules, rules=[rule])


def generating_policy(description: str, rules: str, **generate: Any) -> Way:
    """Return an edit that adds a Kyverno policy that creates an object in every Namespace."""
    match = {"any": [{"resources": {"kinds": ["Namespace"]}}]}
    rule = {"name": "a", "match": match, "generate": generate}
    return replacement_with_spec(description, "kyverno.io/v1", "ClusterPolicy", rules, rules=[rule])


WAYS = [
    replacement_with_spec(
        "a sidecar for every notebook",
        "kubeflow.org/v1alpha1",
        "PodDefault",
        PRIVILEGED,
        selector={"matchLabels": {"a": "b"}},
        sidecars=[BAD],
    ),
    replacement_with_spec(
        "all GPUs for every notebook",
        "kubeflow.org/v1alpha1",
        "PodDefault",
        "gpu-limit-present",
        selector={"matchLabels": {"a": "b"}},
        env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    ),
    mutating_policy(
        "a Kyverno policy that makes pods privileged",
        PRIVILEGED,
        patchStrategicMerge={
            "spec": {"containers": [{"(name)": "*", "securityContext": {"privileged": True}}]}
        },
    ),
    mutating_policy(
        "a Kyverno policy that enables the host network",
        "no-host-namespaces",
        patchStrategicMerge={"spec": {"hostNetwork": True}},
    ),
    mutating_policy(
        "a Kyverno policy that changes each container in a template",
        PRIVILEGED,
        foreach=[
            {
                "list": "request.object.spec.template.spec.containers",
                "patchStrategicMerge": {"spec": {"template": {"spec": {"containers": [BAD]}}}},
            }
        ],
    ),
    replacement(
        "a mutating webhook outside the cluster",
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
        "api-extensions-trusted",
        webhooks=[{"name": "a.b.c", "clientConfig": {"url": "https://a.com"}}],
    ),
    mutating_policy("a Kyverno JSON patch", "kind-known", patchesJson6902=PATCH),
    mutating_policy(
        "a Kyverno JSON patch that adds a device through an annotation",
        "kind-known",
        patchesJson6902=PATCH_OF_ANNOTATION,
    ),
    mutating_policy(
        "a Kyverno JSON patch that moves a field into a label",
        "kind-known",
        patchesJson6902=MOVE,
    ),
    mutating_policy(
        "a Kyverno patch that adds a device through an annotation",
        "annotations-bounded",
        patchStrategicMerge={"metadata": {"annotations": {f"+({DEVICES})": "/dev/sda"}}},
    ),
    mutating_policy(
        "a Kyverno patch that adds a device to a pod template through an annotation",
        "annotations-bounded",
        patchStrategicMerge={
            "spec": {"template": {"metadata": {"annotations": {DEVICES: "/dev/sda"}}}}
        },
    ),
    mutating_policy(
        "a Kyverno JSON patch in two nested loops",
        "kind-known",
        foreach=[{"list": "a", "foreach": [{"list": "b", "patchesJson6902": PATCH}]}],
    ),
    mutating_policy(
        "a Kyverno patch in two nested loops",
        "no-host-namespaces",
        foreach=[{"list": "a", "foreach": [{"list": "b", "patchStrategicMerge": HOST}]}],
    ),
    mutating_policy(
        "a Kyverno patch in three nested loops",
        "kind-known",
        foreach=[{"foreach": [{"foreach": [{"list": "c", "patchStrategicMerge": HOST}]}]}],
    ),
    mutating_policy(
        "a Kyverno JSON patch for each container",
        "kind-known",
        foreach=[{"list": CONTAINERS, "patchesJson6902": PATCH}],
    ),
    mutating_policy(
        "a Kyverno policy for the Jobs of CronJobs",
        "no-host-namespaces",
        patchStrategicMerge={
            "spec": {"jobTemplate": {"spec": {"template": {"spec": {"hostNetwork": True}}}}}
        },
    ),
    generating_policy(
        "a Kyverno policy that creates a Pod",
        PRIVILEGED,
        apiVersion="v1",
        kind="Pod",
        name="a",
        namespace="web",
        data={"spec": POD},
    ),
    generating_policy(
        "a Kyverno policy that creates a role binding",
        "rbac-least-privilege",
        apiVersion="rbac.authorization.k8s.io/v1",
        kind="ClusterRoleBinding",
        name="a",
        data={key: BINDING[key] for key in ("roleRef", "subjects")},
    ),
]

HARMLESS = [
    harmless(
        "a Kyverno policy that adds a label",
        "kyverno.io/v1",
        "ClusterPolicy",
        spec={
            "rules": [
                {
                    "name": "a",
                    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                    "mutate": {"patchStrategicMerge": {"metadata": {"labels": {"a": "b"}}}},
                }
            ]
        },
    ),
    harmless(
        "a Kyverno policy that rejects tokens",
        "kyverno.io/v1",
        "ClusterPolicy",
        spec={
            "rules": [
                {
                    "name": "a",
                    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                    "mutate": {
                        "patchStrategicMerge": {"spec": {"automountServiceAccountToken": False}}
                    },
                }
            ]
        },
    ),
    harmless(
        "a cache for every notebook",
        "kubeflow.org/v1alpha1",
        "PodDefault",
        spec={
            "desc": "a model cache",
            "selector": {"matchLabels": {"cache": "true"}},
            "env": [{"name": "HF_HOME", "value": "/cache"}],
            "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}],
        },
    ),
    harmless(
        "a Kyverno JSON patch that adds a label",
        "kyverno.io/v1",
        "ClusterPolicy",
        spec={
            "rules": [
                {
                    "name": "a",
                    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                    "mutate": {"patchesJson6902": LABEL},
                }
            ]
        },
    ),
    harmless(
        "a Kyverno policy that creates a network policy",
        "kyverno.io/v1",
        "ClusterPolicy",
        spec={
            "rules": [
                {
                    "name": "a",
                    "match": {"any": [{"resources": {"kinds": ["Namespace"]}}]},
                    "generate": {
                        "apiVersion": "networking.k8s.io/v1",
                        "kind": "NetworkPolicy",
                        "name": "deny",
                        "namespace": "{{request.object.metadata.name}}",
                        "data": {"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}},
                    },
                }
            ]
        },
    ),
]
"""Changes that do not remove a protection."""
