"""Objects that only a Pulumi program can declare: unusual type tokens, and patches."""

from typing import Any

Manifest = dict[str, Any]

_HOST_PATHS = {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
_CONTAINER = {"name": "main", "image": "evil.example.com/miner:latest"}
_PRIVILEGED = {**_CONTAINER, "securityContext": {"privileged": True}}
_LIMITS = {"limits": {"nvidia.com/gpu": "8", "memory": "256Gi"}}
_POD = {"restartPolicy": "Never", "containers": [{**_CONTAINER, "resources": _LIMITS}]}
_BATCH_JOB = {"parallelism": 4, "backoffLimit": 10, "template": {"spec": _POD}}
_HOST_PODS = {"template": {"spec": {"hostPID": True, **_HOST_PATHS}}}
_VOLCANO_JOB = {"queue": "other", "minAvailable": 1, "maxRetry": 100_000}
_SPEC = {"containers": [_PRIVILEGED]}

_CASES: list[tuple[str, str, str, Any, str]] = [
    ("yaml/v1:Pod", "v1", "Pod", _SPEC, "not-privileged"),
    ("helm.sh/v3:Pod", "v1", "Pod", _SPEC, "not-privileged"),
    ("kustomize/v1:Pod", "v1", "Pod", _SPEC, "not-privileged"),
    ("apps/v1:DeploymentPatch", "apps/v1", "Deployment", _HOST_PODS, "no-host-path"),
    ("batch/v1:JobPatch", "batch/v1", "Job", _BATCH_JOB, "training-scheduler"),
    (
        "batch.volcano.sh/v1alpha1:JobPatch",
        *("batch.volcano.sh/v1alpha1", "Job", _VOLCANO_JOB),
        "training-retries-bounded",
    ),
    ("apps/v1:DeploymentPatch", "apps/v1", "Deployment", {"replicas": 5000}, "manifest-readable"),
]

REJECTED = {(way[-1], f"case{index}x") for index, way in enumerate(_CASES)}
"""The rule that must reject each object, and the tag in the object's name."""


def stack(namespace: str) -> list[Manifest]:
    """Return the objects with the type tokens under which they are registered."""
    return [
        {
            "type token": f"kubernetes:{token}",
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": f"case{index}x", "namespace": namespace},
            "spec": spec,
        }
        for index, (token, version, kind, spec, _) in enumerate(_CASES)
    ]
