"""Ways to run containers outside the usual lists of containers."""

from typing import Any

from kube.names import QUEUE_ANNOTATION
from tests.policies.harness import REMOVED
from tests.policies.ways.way import Way, way

PRIVILEGED = {"privileged": True}
OTHER_QUEUE = {QUEUE_ANNOTATION: "another-team"}
HOST = [{"name": "host", "hostPath": {"path": "/"}}]
EVIL: dict[str, Any] = {
    "name": "evil",
    "image": "ghcr.io/team/evil:1.0",
    "securityContext": {
        "privileged": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    },
}


def privileged(description: str, base: str, place: str) -> Way:
    """Return an edit that makes a container privileged; `place` is its security context."""
    return way(
        f"{description} is privileged", base, "not-privileged", (f"0/{place}/privileged", True)
    )


def latest_image(description: str, base: str, place: str) -> Way:
    """Return an edit that sets an image without a version."""
    return way(
        f"{description} has no version", base, "image-tag-fixed", (f"0/{place}", "evil/a:latest")
    )


def host_volumes(description: str, base: str, place: str) -> Way:
    """Return an edit that mounts the node's file system."""
    return way(f"{description} mount a host path", base, "no-host-path", (f"0/{place}", HOST))


def field_edit(description: str, base: str, place: str, value: Any, rules: str = "") -> Way:
    """Return an edit that sets one field."""
    return way(description, base, rules, (f"0/{place}", value))


CONTEXT = "securityContext"
DYNAMO = "spec/services/decode/extraPodSpec"
KUBERNETES_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "evil"},
    "spec": {"hostPID": True, "containers": [EVIL]},
}

WAYS = [
    # KServe
    privileged("a model", "kserve_model_format", f"spec/predictor/model/{CONTEXT}"),
    latest_image("a model", "kserve_model_format", "spec/predictor/model/image"),
    host_volumes("the volumes of a model", "kserve_model_format", "spec/predictor/volumes"),
    field_edit(
        "a model server that runs as root",
        "kserve_model_format",
        f"spec/predictor/{CONTEXT}",
        {"runAsNonRoot": False, "runAsUser": 0},
        "run-as-non-root",
    ),
    field_edit(
        "a predictor in an older format is privileged",
        "kserve_model_format",
        "spec/predictor/pytorch",
        {"storageUri": "pvc://a", CONTEXT: PRIVILEGED},
        "not-privileged",
    ),
    field_edit(
        "an explainer is privileged",
        "kserve_model_format",
        "spec/explainer",
        {"containers": [EVIL]},
        "not-privileged",
    ),
    field_edit(
        "a helper container of a serving runtime",
        "kserve_serving_runtime",
        "spec/builtInAdapter",
        {"serverType": "triton", "env": [{"name": "PASSWORD", "value": "correct horse"}]},
    ),
    # NVIDIA
    field_edit(
        "a NIMService without a version",
        "nim_service",
        "spec/image/tag",
        "latest",
        "image-tag-fixed",
    ),
    field_edit(
        "a secret in a NIMService",
        "nim_service",
        "spec/env",
        [{"name": "PASSWORD", "value": "correct horse"}],
        "no-literal-secrets",
    ),
    field_edit(
        "a NIMService that runs as root", "nim_service", "spec/userID", 0, "run-as-non-root"
    ),
    field_edit(
        "a NIMService with a host path",
        "nim_service",
        "spec/storage",
        {"hostPath": "/"},
        "no-host-volume",
    ),
    latest_image("the puller of a NIMCache", "nim_cache", "spec/source/ngc/modelPuller"),
    privileged("a Dynamo service", "dynamo_services", f"{DYNAMO}/mainContainer/{CONTEXT}"),
    latest_image("a Dynamo service", "dynamo_services", f"{DYNAMO}/mainContainer/image"),
    host_volumes("the volumes of a Dynamo service", "dynamo_services", f"{DYNAMO}/volumes"),
    field_edit(
        "a Dynamo service in the host PID namespace",
        "dynamo_services",
        f"{DYNAMO}/hostPID",
        True,
        "no-host-namespaces",
    ),
    field_edit(
        "an operand without a version",
        "gpu_operator",
        "spec/driver/version",
        "latest",
        "image-tag-fixed",
    ),
    # Others
    latest_image("a Prometheus", "prometheus_operator", "spec/image"),
    host_volumes("the volumes of a Prometheus", "prometheus_operator", "spec/volumes"),
    field_edit("a Prometheus on the host network", "prometheus_operator", "spec/hostNetwork", True),
    field_edit(
        "a Prometheus container is privileged",
        "alertmanager",
        "spec/containers",
        [EVIL],
        "not-privileged",
    ),
    latest_image("a database", "cnpg_cluster", "spec/imageName"),
    latest_image("the trainer of a TrainJob", "train_job_platform_runtime", "spec/trainer/image"),
    field_edit(
        "a secret in a TrainJob",
        "train_job_platform_runtime",
        "spec/trainer/env",
        [{"name": "PASSWORD", "value": "correct horse"}],
        "no-literal-secrets",
    ),
    field_edit(
        "a pod template override in a TrainJob",
        "train_job_platform_runtime",
        "spec/podTemplateOverrides",
        [{"targetJobs": [{"name": "node"}], "spec": {"volumes": HOST}}],
        "no-host-path",
    ),
    field_edit(
        "another queue in a TrainJob",
        "train_job_platform_runtime",
        "spec/annotations",
        OTHER_QUEUE,
        "kind-known",
    ),
    field_edit(
        "another queue in a runtime patch of a TrainJob",
        "train_job_platform_runtime",
        "spec/runtimePatches",
        [
            {
                "manager": "team.example.com/a",
                "trainingRuntimeSpec": {"template": {"metadata": {"annotations": OTHER_QUEUE}}},
            }
        ],
        "kind-known",
    ),
    field_edit(
        "a runtime patch in a TrainJob",
        "train_job_platform_runtime",
        "spec/runtimePatches",
        [
            {
                "manager": "team.example.com/a",
                "trainingRuntimeSpec": {
                    "template": {
                        "spec": {
                            "replicatedJobs": [
                                {
                                    "name": "node",
                                    "template": {"spec": {"template": {"spec": {"hostPID": True}}}},
                                }
                            ]
                        }
                    }
                },
            }
        ],
        "no-host-namespaces",
    ),
    latest_image("the Ray autoscaler", "ray_cluster_cpu", "spec/autoscalerOptions/image"),
    field_edit(
        "the Ray autoscaler is privileged",
        "ray_cluster_cpu",
        "spec/autoscalerOptions",
        {CONTEXT: PRIVILEGED},
        "not-privileged",
    ),
    field_edit(
        "the submitter of a RayJob is privileged",
        "ray_job_volcano",
        "spec/submitterPodTemplate",
        {"spec": {"containers": [EVIL]}},
        "not-privileged",
    ),
    privileged(
        "a Deployment in an Object",
        "crossplane_object",
        f"spec/forProvider/manifest/spec/template/spec/containers/0/{CONTEXT}",
    ),
    privileged(
        "a Job in a ManifestWork",
        "ocm_manifest_work",
        f"spec/workload/manifests/0/spec/template/spec/containers/0/{CONTEXT}",
    ),
    field_edit(
        "a ClusterRole in a ManifestWork",
        "ocm_manifest_work",
        "spec/workload/manifests/1",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "a"},
            "subjects": [{"kind": "User", "name": "eve"}],
            "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"},
        },
    ),
    way(
        "a Service in a ManifestWork",
        "ocm_manifest_work",
        "service-not-public",
        (
            "0/spec/workload/manifests/1",
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "a"},
                "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
            },
        ),
    ),
    way(
        "a Pod generated by Kyverno",
        "g17_kyverno_policy",
        "not-privileged",
        ("0/spec/rules/0/validate", REMOVED),
        (
            "0/spec/rules/0/generate",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "evil",
                "data": {"spec": {"containers": [EVIL]}},
            },
        ),
    ),
    way(
        "a model server container in a PodTemplate",
        "ordinary_web_application",
        "not-privileged",
        (
            "0",
            {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "a"},
                "template": {"spec": {"containers": [EVIL]}},
            },
        ),
    ),
    way(
        "a Dynamo frontend has no version",
        "dynamo_services",
        "image-tag-fixed",
        (
            "0/spec/services/decode/frontendSidecar",
            {"image": "nvcr.io/nvidia/ai-dynamo/dynamo-frontend"},
        ),
    ),
    way(
        "a database without a seccomp profile",
        "cnpg_cluster",
        "security-profiles-kept",
        ("0/spec/seccompProfile", {"type": "Unconfined"}),
    ),
    way(
        "an image in a catalog has no version",
        "cnpg_cluster",
        "image-tag-fixed",
        (
            "1",
            {
                "apiVersion": "postgresql.cnpg.io/v1",
                "kind": "ImageCatalog",
                "metadata": {"name": "all", "namespace": "data"},
                "spec": {"images": [{"major": 17, "image": "ghcr.io/cloudnative-pg/postgresql"}]},
            },
        ),
    ),
]
