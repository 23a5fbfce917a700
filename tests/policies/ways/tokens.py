"""Evasions specific to the Pulumi engine: type tokens, and patches that create an object."""

from typing import Any

from policies.values import UNKNOWN
from tests.policies.ways.way import TOKEN, Way, way

WEB = "ordinary_web_application"
POD: dict[str, Any] = {
    "containers": [
        {"name": "evil", "image": "ghcr.io/team/evil:1.0", "securityContext": {"privileged": True}}
    ]
}
HOST_PATH = {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
TOKENS = [
    *("yaml/v1:Pod", "yaml:ConfigFile", "yaml:ConfigGroup", "yaml/v2:ConfigFile"),
    *("yaml/v2:ConfigGroup", "helm.sh/v3:Chart", "helm.sh/v4:Chart", "helm.sh/v3:Pod"),
    *("kustomize:Directory", "kustomize/v2:Directory", "kustomize/v1:Pod", "core/v1:ConfigMap"),
    *("policy/v1:PodDisruptionBudget", "apiextensions.k8s.io/v1:CustomResourceDefinition"),
    *("core/v1:PodPatch", "apps/v1:DeploymentPatch"),
]


def registered(token: str) -> Way:
    """Return an edit that registers a privileged Pod with another type token."""
    pod = {
        TOKEN: f"kubernetes:{token}",
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "evil", "namespace": "team"},
        "spec": POD,
    }
    return way(f"a Pod registered as {token}", WEB, "not-privileged", ("0", pod))


def patched(version: str, kind: str, rules: str, spec: Any, existing: bool = False) -> Way:
    """Return an edit that patches one object."""
    address = f"team/{kind}/patched"
    config = {"manifest_readable": {"existingObjects": [address]}} if existing else {}
    group = version if "/" in version else f"core/{version}"
    patch = {
        TOKEN: f"kubernetes:{group}:{kind}Patch",
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "patched", "namespace": "team"},
        "spec": spec,
    }
    state = "an existing" if existing else "a missing"
    return way(f"a patch of {state} {kind} ({spec})", WEB, rules, ("0", patch), **config)


def template(**spec: Any) -> Any:
    """Return the specification of a Deployment whose pods have these fields."""
    return {"template": {"spec": spec}}


WAYS = [
    *map(registered, TOKENS),
    patched("apps/v1", "Deployment", "no-host-namespaces", template(hostPID=True)),
    patched("apps/v1", "Deployment", "manifest-readable", {"replicas": 500}),
    patched("apps/v1", "StatefulSet", "no-host-path", template(**HOST_PATH)),
    patched(
        "apps/v1",
        "Deployment",
        "tolerations-bounded",
        template(tolerations=[{"operator": "Exists"}]),
        existing=True,
    ),
    patched("apps/v1", "DaemonSet", "no-host-path", template(**HOST_PATH)),
    patched("v1", "Pod", "no-host-namespaces", {"hostIPC": True}),
    patched(
        "batch/v1", "CronJob", "no-host-path", {"jobTemplate": {"spec": template(**HOST_PATH)}}
    ),
    patched("v1", "Service", "service-not-public", {"type": "LoadBalancer"}),
    patched(
        "ray.io/v1", "RayCluster", "not-privileged", {"headGroupSpec": {"template": {"spec": POD}}}
    ),
    patched(
        "ray.io/v1",
        "RayCluster",
        "manifest-readable kind-known",
        {"workerGroupSpecs": [{"groupName": "a", "maxReplicas": 500}]},
    ),
    patched(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        "manifest-readable",
        {"predictor": {"maxReplicas": 500}},
    ),
    patched("apps/v1", "Deployment", "no-host-namespaces", template(hostPID=True), existing=True),
    patched("apps/v1", "Deployment", "no-host-path", template(**HOST_PATH), existing=True),
    patched("apps/v1", "Deployment", "not-privileged", template(**POD), existing=True),
    patched(
        "apps/v1",
        "Deployment",
        "image-tag-fixed",
        template(containers=[{"name": "web", "image": "web:latest"}]),
        existing=True,
    ),
    patched(
        "apps/v1",
        "Deployment",
        "run-as-non-root",
        template(securityContext={"runAsUser": 0}),
        existing=True,
    ),
    patched("apps/v1", "Deployment", "", template(hostNetwork=True), existing=True),
    patched(
        "apps/v1",
        "Deployment",
        "no-literal-secrets",
        template(containers=[{"name": "web", "env": [{"name": "PASSWORD", "value": "a b"}]}]),
        existing=True,
    ),
    patched(
        "batch.volcano.sh/v1alpha1",
        "Job",
        "training-retries-bounded",
        {"maxRetry": 100_000},
        existing=True,
    ),
    patched("batch.volcano.sh/v1alpha1", "Job", "training-queue-declared", {"queue": "other"}),
]


def unknown(base: str, path: str) -> Way:
    """Return an edit that makes one value unknown, as during a preview."""
    return way(f"an unknown {path} in {base}", base, "", (path, UNKNOWN))


KUEUE_QUEUE = "0/metadata/labels/kueue.x-k8s.io~queue-name"
CLAIMS = "1/spec/tasks/0/template/spec/containers/0/resources/claims"
SERVING = {"app.kubernetes.io/component": "inference"}

HARMLESS = [
    *(unknown(base, KUEUE_QUEUE) for base in ("g16_kueue_job", "jobset_tpu", "ray_job_kueue")),
    unknown("g16_kueue_job", "0/metadata/labels"),
    unknown("vllm_offline_batch", "0/spec/template/metadata/labels"),
    unknown("vllm_offline_batch", "0/spec/template/metadata/labels/gpu-platform.dev~workload"),
    unknown("nim_service", "0/spec/image/repository"),
    unknown("nim_service", "0/spec/image/tag"),
    unknown("gpu_operator", "0/spec/driver/version"),
    unknown("g25_volcano_dra", CLAIMS),
    patched(
        "apps/v1",
        "Deployment",
        "",
        {
            "template": {
                "metadata": {"labels": SERVING},
                "spec": {"containers": [{"name": "a", "resources": {"limits": {"memory": "8Gi"}}}]},
            }
        },
        existing=True,
    ),
    patched("apps/v1", "Deployment", "", {"replicas": 3}, existing=True),
    patched(
        "apps/v1",
        "Deployment",
        "",
        template(
            containers=[{"name": "web", "image": f"ghcr.io/team/web:5.3.0@sha256:{'a' * 64}"}]
        ),
        existing=True,
    ),
    patched("v1", "Service", "", {"type": "ClusterIP"}),
]
"""Patches that comply with all rules."""
