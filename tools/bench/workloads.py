"""A stack of many workloads that passes every mandatory rule."""

from __future__ import annotations

from typing import Any

Manifest = dict[str, Any]

_NAMESPACE = "measured"
_IMAGE = f"registry.example.com/workload@sha256:{'0' * 64}"


def stack(workloads: int) -> list[Manifest]:
    """Return the shared objects of the stack, and workloads of three alternating kinds."""
    builders = (_volcano_job, _indexed_job, _deployment)
    return [*_shared(), *(builders[i % 3](f"w-{i}") for i in range(workloads))]


def pod(name: str) -> Manifest:
    """Return a training pod."""
    template = _pod_template("training", {}, restartPolicy="Never", schedulerName="volcano")
    return {"apiVersion": "v1", "kind": "Pod"} | template | {"metadata": {"name": name}}


def _object(version: str, kind: str, name: str, spec: Any, **metadata: Any) -> Manifest:
    full_metadata = {"name": name, "namespace": _NAMESPACE, **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": full_metadata, "spec": spec}


def _shared() -> list[Manifest]:
    queue = _object("scheduling.volcano.sh/v1beta1", "Queue", "research", {"weight": 1})
    del queue["metadata"]["namespace"]
    quota = {"hard": {"requests.nvidia.com/gpu": "9000"}}
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "shared"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "shared"},
            "provisioner": "storage.example.com",
            "reclaimPolicy": "Retain",
        },
        queue,
        _object("v1", "ResourceQuota", "gpus", quota),
        _object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "default-deny",
            {"podSelector": {}, "policyTypes": ["Ingress"]},
        ),
        _object("v1", "PersistentVolumeClaim", "checkpoints", claim),
    ]


def _pod_template(component: str, annotations: dict[str, str], **fields: Any) -> Manifest:
    memory = {"medium": "Memory", "sizeLimit": "8Gi"}
    container = {
        "name": "main",
        "image": _IMAGE,
        "command": ["python3", "-m", component],
        "env": [{"name": f"SETTING_{i}", "value": str(i)} for i in range(6)],
        "resources": {
            "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"},
            "limits": {"memory": "64Gi", "nvidia.com/gpu": "8"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - a mount point in a pod
            {"name": "checkpoints", "mountPath": "/checkpoints"},
        ],
        **fields.pop("container", {}),
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": [
            {"name": "shm", "emptyDir": memory},
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}},
        ],
        **fields,
    }
    labels = {"app.kubernetes.io/component": component}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def _volcano_job(name: str) -> Manifest:
    pod = _pod_template("training", {}, restartPolicy="Never", activeDeadlineSeconds=86400)
    spec = {
        "schedulerName": "volcano",
        "queue": "research",
        "minAvailable": 2,
        "maxRetry": 3,
        "ttlSecondsAfterFinished": 86400,
        "tasks": [{"name": "worker", "replicas": 2, "template": pod}],
    }
    return _object("batch.volcano.sh/v1alpha1", "Job", name, spec)


def _indexed_job(name: str) -> Manifest:
    queue = {"scheduling.volcano.sh/queue-name": "research"}
    spec = {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "backoffLimit": 3,
        "activeDeadlineSeconds": 86400,
        "ttlSecondsAfterFinished": 86400,
        "template": _pod_template(
            "training", queue, restartPolicy="Never", schedulerName="volcano"
        ),
    }
    annotations = {"pulumi.com/skipAwait": "true", "scheduling.volcano.sh/group-min-member": "2"}
    return _object("batch/v1", "Job", name, spec, annotations=annotations)


def _deployment(name: str) -> Manifest:
    probe = {"httpGet": {"path": "/v2/health/ready", "port": 8080}}
    probes = dict.fromkeys(("readinessProbe", "livenessProbe", "startupProbe"), probe)
    pod = _pod_template("inference", {}, container={"ports": [{"containerPort": 8080}], **probes})
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": pod}
    return _object("apps/v1", "Deployment", name, spec)
