"""Ways to hide a pod in an unknown kind."""

from typing import Any

import yaml

from tests.policies.harness import REMOVED
from tests.policies.ways.way import Way, documents, way

WEB = "ordinary_web_application"
SPEC = documents(WEB)[0]["spec"]["template"]["spec"]
CONTAINER = SPEC["containers"][0]
TEMPLATE = {"template": {"spec": SPEC}}
IMAGE = "ghcr.io/team/web:5.2.0"


def unknown_kind(description: str, version: str, kind: str, spec: Any = TEMPLATE) -> Way:
    """Return an edit that replaces a Deployment with a hardened object of an unknown kind."""
    edits = (("0/apiVersion", version), ("0/kind", kind), ("0/spec", spec))
    return way(f"{description} ({version} {kind})", WEB, "kind-known", *edits)


KINDS = [
    unknown_kind("a clone set", "apps.kruise.io/v1alpha1", "CloneSet"),
    unknown_kind("a DaemonSet in another API group", "apps.kruise.io/v1alpha1", "DaemonSet"),
    unknown_kind("a Job in another API group", "batch.example.com/v1", "Job"),
    unknown_kind("an API group that starts like a known one", "apps.example.com/v1", "Deployment"),
    unknown_kind("an API group that ends like a known one", "example.apps/v1", "Deployment"),
    unknown_kind("an entirely unknown kind", "example.com/v1", "Thing"),
    unknown_kind(
        "a container list with another name", "example.com/v1", "Thing", {"units": [CONTAINER]}
    ),
    unknown_kind("one container", "example.com/v1", "Thing", {"container": CONTAINER}),
    unknown_kind("a container with another name", "example.com/v1", "Thing", {"runner": CONTAINER}),
    unknown_kind("containers by name", "example.com/v1", "Thing", {"parts": {"web": CONTAINER}}),
    unknown_kind("an image alone", "example.com/v1", "Thing", {"image": IMAGE}),
    unknown_kind(
        "an image split into parts",
        "example.com/v1",
        "Thing",
        {"image": {"repository": "ghcr.io/team/web", "tag": "5.2.0"}},
    ),
    unknown_kind(
        "an image in a field with another name", "example.com/v1", "Thing", {"serverImage": IMAGE}
    ),
    *(
        unknown_kind(f"only {path}", "example.com/v1", "Thing", {"agent": {path: value}})
        for path, value in (
            ("hostNetwork", True),
            ("hostPID", True),
            ("securityContext", {"privileged": True}),
            ("podSecurityContext", {"runAsUser": 0}),
            ("containerSecurityContext", {"capabilities": {"add": ["SYS_ADMIN"]}}),
        )
    ),
    unknown_kind(
        "a model of Seldon Core 2",
        "mlops.seldon.io/v1alpha1",
        "Model",
        {"storageUri": "s3://models/digits", "requirements": ["sklearn"]},
    ),
    unknown_kind(
        "an accelerator alone",
        "example.com/v1",
        "Thing",
        {"resources": {"limits": {"nvidia.com/gpu": 8}}},
    ),
    *(
        unknown_kind(f"GPUs in {path} without a resource name", "example.com/v1", "Thing", spec)
        for path, spec in (
            ("limits.gpu", {"resources": {"limits": {"cpu": "1", "gpu": "8"}}}),
            ("resources.gpuCount", {"resources": {"cpu": "1", "gpuCount": 8}}),
            ("resources.gpu.count", {"resources": {"gpu": {"count": 8, "type": "a100"}}}),
        )
    ),
    unknown_kind(
        "an accelerator as a value",
        "example.com/v1",
        "Thing",
        {"device": {"name": "nvidia.com/gpu", "count": 8}},
    ),
    unknown_kind(
        "a pod without containers",
        "example.com/v1",
        "Thing",
        {
            "podTemplate": {
                "spec": {"serviceAccountName": "a", "nodeSelector": {"a": "b"}, "volumes": []}
            }
        },
    ),
    unknown_kind(
        "a manifest as text in an unknown kind",
        "example.com/v1",
        "Thing",
        {"manifest": "apiVersion: v1\nkind: Pod\nspec:\n  containers: []\n"},
    ),
    unknown_kind(
        "Seldon",
        "machinelearning.seldon.io/v1",
        "SeldonDeployment",
        {"predictors": [{"name": "a", "componentSpecs": [{"spec": SPEC}]}]},
    ),
    unknown_kind("Flink", "flink.apache.org/v1beta1", "FlinkDeployment", {"image": IMAGE}),
    unknown_kind(
        "a developer workspace",
        "workspace.devfile.io/v1alpha2",
        "DevWorkspace",
        {"template": {"components": [{"name": "a", "container": {"image": IMAGE}}]}},
    ),
    unknown_kind(
        "roles whose pods refer to a template",
        "workloads.x-k8s.io/v1alpha2",
        "RoleBasedGroup",
        {
            "roles": [{"replicas": 9, "standalonePattern": {"templateRef": {"name": "a"}}}],
            "roleTemplates": [{"name": "a", "template": {"spec": SPEC}}],
        },
    ),
]

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "evil", "namespace": "web"},
    "spec": SPEC | {"containers": [CONTAINER | {"securityContext": {"privileged": True}}]},
}

WAYS = [
    *KINDS,
    way(
        "a pod outside spec",
        WEB,
        "kind-known",
        ("0/apiVersion", "example.com/v1"),
        ("0/kind", "Thing"),
        ("0/spec", REMOVED),
        ("0/template", {"spec": SPEC}),
    ),
    way(
        "a pod below status",
        WEB,
        "kind-known",
        ("0/apiVersion", "example.com/v1"),
        ("0/kind", "Thing"),
        ("0/spec", {"status": {"template": {"spec": SPEC}}}),
    ),
    way(
        "a template in the status of a Workflow",
        "argo_workflow_steps",
        "kind-known",
        (
            "0/status",
            {"storedWorkflowTemplateSpec": {"templates": [{"container": CONTAINER}]}},
        ),
    ),
    way(
        "a privileged Pod as text in a ConfigMap",
        "mig_configuration",
        "not-privileged",
        ("0/data/pod.yaml", yaml.safe_dump(POD)),
    ),
]

WAYS += [
    way(
        f"a privileged Pod in a {kind}",
        WEB,
        "not-privileged",
        ("0", {"apiVersion": "v1", "kind": kind, "metadata": {"name": "a"}, "items": [POD]}),
    )
    for kind in ("List", "PodList")
]

HARMLESS = [
    way(
        "an unknown kind without containers",
        WEB,
        "",
        ("0/apiVersion", "example.com/v1"),
        ("0/kind", "Thing"),
        ("0/spec", {"size": 3, "members": ["a", "b"], "labels": {"a": "b"}}),
    ),
    way(
        "an unknown kind with a safe security context",
        WEB,
        "",
        ("0/apiVersion", "example.com/v1"),
        ("0/kind", "Thing"),
        (
            "0/spec",
            {
                "hostNetwork": False,
                "podSecurityContext": {"runAsNonRoot": True, "runAsUser": 1000},
                "securityContext": {
                    "privileged": False,
                    "capabilities": {"drop": ["ALL"], "add": []},
                },
            },
        ),
    ),
    way(
        "a ConfigMap with an image and pod fields",
        "mig_configuration",
        "",
        (
            "0/data",
            {"nodeSelector": "a: b", "tolerations": "[]", "sidecar-image": "example.com/a:1.0"},
        ),
    ),
    way(
        "the status of a Deployment",
        WEB,
        "",
        ("0/status", {"containerStatuses": [{"name": "web", "image": "example.com/a:1.0"}]}),
    ),
    way(
        "an unknown kind with an image file",
        WEB,
        "",
        ("0/apiVersion", "example.com/v1"),
        ("0/kind", "Thing"),
        ("0/spec", {"title": "GPU report", "schedule": "0 1 * * *"}),
    ),
]
"""Objects of unknown kinds that do not run containers."""
