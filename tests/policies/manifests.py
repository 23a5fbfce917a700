"""Manifests that comply with every rule. Each test breaks one aspect of them."""

from typing import Any

IMAGE = f"127.0.0.1:5000/training@sha256:{'a' * 64}"
LABELS = {"app.kubernetes.io/component": "training"}


def container(name: str = "main", gpus: int | None = 1) -> dict[str, Any]:
    gpu = {} if gpus is None else {"nvidia.com/gpu": str(gpus)}
    return {
        "name": name,
        "image": IMAGE,
        "command": ["python3", "-m", "training"],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": {
            "requests": {"cpu": "1", "memory": "4Gi", **gpu},
            "limits": {"memory": "4Gi", **gpu},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "checkpoints", "mountPath": "/checkpoints"},
        ],
    }


def pod_spec(**fields: Any) -> dict[str, Any]:
    return {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        ],
        "containers": [container()],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}},
        ],
        **fields,
    }


def metadata(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "training", **fields}


def volcano_job() -> dict[str, Any]:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": metadata("digits", labels=dict(LABELS)),
        "spec": {
            "schedulerName": "volcano",
            "queue": "research",
            "minAvailable": 2,
            "maxRetry": 3,
            "ttlSecondsAfterFinished": 86400,
            "tasks": [
                {
                    "name": "worker",
                    "replicas": 2,
                    "template": {
                        "metadata": {"labels": dict(LABELS)},
                        "spec": pod_spec(
                            restartPolicy="Never",
                            activeDeadlineSeconds=86400,
                            priorityClassName="training",
                        ),
                    },
                }
            ],
        },
    }


def batch_job() -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(
            "indexed",
            labels=dict(LABELS),
            annotations={"pulumi.com/skipAwait": "true"},
        ),
        "spec": {
            "backoffLimit": 3,
            "activeDeadlineSeconds": 86400,
            "ttlSecondsAfterFinished": 86400,
            "parallelism": 2,
            "completions": 2,
            "template": {
                "metadata": {
                    "labels": dict(LABELS),
                    "annotations": {
                        "scheduling.k8s.io/group-name": "indexed",
                        "scheduling.volcano.sh/queue-name": "research",
                    },
                },
                "spec": pod_spec(restartPolicy="Never", schedulerName="volcano"),
            },
        },
    }


def pod_group() -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata("indexed"),
        "spec": {"minMember": 2, "queue": "research"},
    }


def pytorch_job() -> dict[str, Any]:
    def replica(count: int) -> dict[str, Any]:
        spec = pod_spec(schedulerName="volcano", restartPolicy="Never")
        return {
            "replicas": count,
            "restartPolicy": "OnFailure",
            "template": {"metadata": {"labels": dict(LABELS)}, "spec": spec},
        }

    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata("kubeflow"),
        "spec": {
            "runPolicy": {
                "backoffLimit": 3,
                "activeDeadlineSeconds": 86400,
                "ttlSecondsAfterFinished": 86400,
                "schedulingPolicy": {"queue": "research", "minAvailable": 3},
            },
            "pytorchReplicaSpecs": {"Master": replica(1), "Worker": replica(2)},
        },
    }


def probe() -> dict[str, Any]:
    return {"httpGet": {"path": "/v2/health/ready", "port": "http"}}


def deployment() -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "inference", "app": "digits"}
    spec = pod_spec(
        topologySpreadConstraints=[
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "digits"}},
            }
        ]
    )
    spec["containers"][0].update(
        ports=[{"name": "http", "containerPort": 8080}],
        readinessProbe=probe(),
        livenessProbe=probe(),
        startupProbe=probe(),
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata("server", labels=labels),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "digits"}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def disruption_budget() -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata("server"),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "digits"}}},
    }


def autoscaler() -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata("server"),
        "spec": {
            "minReplicas": 2,
            "maxReplicas": 4,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "server"},
        },
    }


def service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata("server"),
        "spec": {"type": "ClusterIP", "selector": {"app": "digits"}, "ports": [{"port": 8080}]},
    }


def http_route() -> dict[str, Any]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata("server"),
        "spec": {
            "parentRefs": [{"name": "public"}],
            "rules": [{"backendRefs": [{"name": "server", "port": 8080, "weight": 100}]}],
        },
    }


def scaled_object() -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata("server"),
        "spec": {"minReplicaCount": 0, "maxReplicaCount": 4, "scaleTargetRef": {"name": "server"}},
    }


def claim() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata("checkpoints"),
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "shared"},
    }


def storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "shared"},
        "reclaimPolicy": "Retain",
    }


def volume() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "datasets"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "capacity": {"storage": "1Ti"},
            "csi": {"driver": "nfs.csi.k8s.io", "volumeHandle": "nfs.example.com/datasets"},
        },
    }


def role() -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "watcher"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
    }


def queue() -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "research"},
        "spec": {"weight": 1},
    }


def priority_class() -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "training"},
        "value": 100,
    }


def namespace() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}}


def quota() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata("gpus"),
        "spec": {"hard": {"requests.nvidia.com/gpu": "8"}},
    }


def default_deny() -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata("default-deny"),
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
    }


def helm_release() -> dict[str, Any]:
    chart = {"chart": "volcano", "version": "1.15.1"}
    return {
        "apiVersion": "helm.toolkit.fluxcd.io/v2",
        "kind": "HelmRelease",
        "metadata": {"name": "volcano", "namespace": "volcano-system"},
        "spec": {"chart": {"spec": chart}, "repo": "https://charts.example.com"},
    }


def whole_stack() -> list[dict[str, Any]]:
    return [
        namespace(),
        quota(),
        default_deny(),
        queue(),
        priority_class(),
        storage_class(),
        claim(),
        volume(),
        role(),
        pod_group(),
        volcano_job(),
        batch_job(),
        pytorch_job(),
        deployment(),
        disruption_budget(),
        service(),
        http_route(),
    ]
