"""Ways to change the objects of others when they are created."""

from typing import Any

from tests.policies.ways.makers import BAD, BINDING, POD, PRIVILEGED, harmless, instead, spec
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


def mutation(what: str, rules: str, **mutate: Any) -> Way:
    """A policy of Kyverno that changes every Pod."""
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    rule = {"name": "a", "match": match, "mutate": mutate}
    return spec(what, "kyverno.io/v1", "ClusterPolicy", rules, rules=[rule])


def generated(what: str, rules: str, **generate: Any) -> Way:
    """A policy of Kyverno that creates an object next to every Namespace."""
    match = {"any": [{"resources": {"kinds": ["Namespace"]}}]}
    rule = {"name": "a", "match": match, "generate": generate}
    return spec(what, "kyverno.io/v1", "ClusterPolicy", rules, rules=[rule])


WAYS = [
    spec(
        "a sidecar of every notebook",
        "kubeflow.org/v1alpha1",
        "PodDefault",
        PRIVILEGED,
        selector={"matchLabels": {"a": "b"}},
        sidecars=[BAD],
    ),
    spec(
        "all GPUs for every notebook",
        "kubeflow.org/v1alpha1",
        "PodDefault",
        "gpu-limit-present",
        selector={"matchLabels": {"a": "b"}},
        env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    ),
    mutation(
        "a policy of Kyverno that adds privileges",
        PRIVILEGED,
        patchStrategicMerge={
            "spec": {"containers": [{"(name)": "*", "securityContext": {"privileged": True}}]}
        },
    ),
    mutation(
        "a policy of Kyverno that adds the node's network",
        "no-host-namespaces",
        patchStrategicMerge={"spec": {"hostNetwork": True}},
    ),
    mutation(
        "a policy of Kyverno that changes each container of a template",
        PRIVILEGED,
        foreach=[
            {
                "list": "request.object.spec.template.spec.containers",
                "patchStrategicMerge": {"spec": {"template": {"spec": {"containers": [BAD]}}}},
            }
        ],
    ),
    instead(
        "a webhook outside of the cluster",
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
        "api-extensions-trusted",
        webhooks=[{"name": "a.b.c", "clientConfig": {"url": "https://a.com"}}],
    ),
    mutation("a JSON patch of Kyverno", "kind-known", patchesJson6902=PATCH),
    mutation(
        "a JSON patch of Kyverno that adds a device by an annotation",
        "kind-known",
        patchesJson6902=PATCH_OF_ANNOTATION,
    ),
    mutation(
        "a JSON patch of Kyverno that moves a field into a label",
        "kind-known",
        patchesJson6902=MOVE,
    ),
    mutation(
        "a patch of Kyverno that adds a device by an annotation",
        "annotations-bounded",
        patchStrategicMerge={"metadata": {"annotations": {f"+({DEVICES})": "/dev/sda"}}},
    ),
    mutation(
        "a patch of Kyverno that adds a device to a template by an annotation",
        "annotations-bounded",
        patchStrategicMerge={
            "spec": {"template": {"metadata": {"annotations": {DEVICES: "/dev/sda"}}}}
        },
    ),
    mutation(
        "a JSON patch of Kyverno in two loops",
        "kind-known",
        foreach=[{"list": "a", "foreach": [{"list": "b", "patchesJson6902": PATCH}]}],
    ),
    mutation(
        "a patch of Kyverno in two loops",
        "no-host-namespaces",
        foreach=[{"list": "a", "foreach": [{"list": "b", "patchStrategicMerge": HOST}]}],
    ),
    mutation(
        "a patch of Kyverno in three loops",
        "kind-known",
        foreach=[{"foreach": [{"foreach": [{"list": "c", "patchStrategicMerge": HOST}]}]}],
    ),
    mutation(
        "a JSON patch of Kyverno for each container",
        "kind-known",
        foreach=[{"list": CONTAINERS, "patchesJson6902": PATCH}],
    ),
    mutation(
        "a policy of Kyverno for the jobs of a CronJob",
        "no-host-namespaces",
        patchStrategicMerge={
            "spec": {"jobTemplate": {"spec": {"template": {"spec": {"hostNetwork": True}}}}}
        },
    ),
    generated(
        "a policy of Kyverno that creates a Pod",
        PRIVILEGED,
        apiVersion="v1",
        kind="Pod",
        name="a",
        namespace="web",
        data={"spec": POD},
    ),
    generated(
        "a policy of Kyverno that creates a binding",
        "rbac-least-privilege",
        apiVersion="rbac.authorization.k8s.io/v1",
        kind="ClusterRoleBinding",
        name="a",
        data={key: BINDING[key] for key in ("roleRef", "subjects")},
    ),
]

HARMLESS = [
    harmless(
        "a policy of Kyverno that adds a label",
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
        "a policy of Kyverno that refuses tokens",
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
            "desc": "a cache of models",
            "selector": {"matchLabels": {"cache": "true"}},
            "env": [{"name": "HF_HOME", "value": "/cache"}],
            "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}],
        },
    ),
    harmless(
        "a JSON patch of Kyverno that adds a label",
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
        "a policy of Kyverno that creates a network policy",
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
"""Changes that remove no protection."""
