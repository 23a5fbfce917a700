"""Builders of events as the engine writes them, and of small manifests."""

from typing import Any

from gitops.preview import events

Manifest = dict[str, Any]
SECRET = {
    "4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270",
    "ciphertext": "[secret]",
}
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_STACK = "urn:pulumi:prod::gpu-platform::"


def urn(manifest: Manifest, name: str) -> str:
    return f"{_STACK}{kind(manifest)}::{name}"


def kind(manifest: Manifest) -> str:
    version = manifest["apiVersion"]
    version = version if "/" in version else f"core/{version}"
    return f"kubernetes:{version}:{manifest['kind']}"


def step(
    operation: str,
    old: Manifest | None = None,
    new: Manifest | None = None,
    *,
    name: str | None = None,
    outputs: Manifest | None = None,
    protect: bool = False,
    retain: bool = False,
    keys: list[str] | None = None,
    provider: str = "",
) -> dict[str, Any]:
    """Return a `resourcePreEvent`. The name defaults to the object's name."""
    manifest = new or old
    assert manifest is not None
    flags = {"protect": protect, "retainOnDelete": retain, "provider": provider}
    before = None if old is None else {"inputs": old, "outputs": outputs or old, **flags}
    after = None if new is None else {"inputs": new, "outputs": {}, **flags}
    return {
        "resourcePreEvent": {
            "metadata": {
                "op": operation,
                "urn": urn(manifest, name or manifest["metadata"]["name"]),
                "type": kind(manifest),
                "old": before,
                "new": after,
                "keys": keys,
                "detailedDiff": None,
            },
            "planning": True,
        }
    }


def refreshed(
    operation: str, old: Manifest, new: Manifest | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Return the events that a refresh emits for an object: the read, then the result."""
    (begin,) = step("refresh", old, old, **options).values()
    (result,) = step(operation, old, new, **options).values()
    return [{"resourcePreEvent": begin}, {"resOutputsEvent": result}]


def created(manifest: Manifest, outputs: Manifest) -> list[dict[str, Any]]:
    """Return the events of a new resource: the step, then the response to the dry run."""
    begin, result = step("create", new=manifest), step("create", new=manifest)
    (registered,) = result.values()
    registered["metadata"]["new"]["outputs"] = outputs
    return [begin, {"resOutputsEvent": registered}]


def same(manifest: Manifest, **options: Any) -> dict[str, Any]:
    return step("same", manifest, manifest, **options)


def policy(rule: str, message: str, *, level: str = "mandatory") -> dict[str, Any]:
    return {
        "policyEvent": {
            "policyName": rule,
            "enforcementLevel": level,
            "message": message,
            "severity": "high",
            "color": "never",
        }
    }


def diagnostic(severity: str, message: str) -> dict[str, Any]:
    return {"diagnosticEvent": {"severity": severity, "message": message, "color": "never"}}


def summary(result: str = "succeeded") -> dict[str, Any]:
    return {"summaryEvent": {"result": result, "resourceChanges": {}}}


def policy_summary() -> dict[str, Any]:
    """Return the event that the engine writes when everything has been registered."""
    return {"policyAnalyzeStackSummaryEvent": {"policyPackName": "gpu-platform"}}


def plan(*found: dict[str, Any], result: str = "succeeded", complete: bool = True) -> events.Plan:
    return events.plan([*found, *([policy_summary()] if complete else []), summary(result)])


def metadata(name: str, **fields: Any) -> Manifest:
    return {"name": name, "namespace": "ml", **fields}


def claim(name: str = "checkpoints", volume: str = "shared", size: str = "5Gi") -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(name),
        "spec": {"volumeName": volume, "resources": {"requests": {"storage": size}}},
    }


def claim_of_class(storage_class: str, size: str = "100Gi", name: str = "datasets") -> Manifest:
    made = claim(name, size=size)
    del made["spec"]["volumeName"]
    made["spec"]["storageClassName"] = storage_class
    return made


def agents() -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata("agents"),
        "spec": {"template": {"spec": pod(gpus=0)}},
    }


def pod(gpus: int = 1, product: str | None = None, **fields: Any) -> Manifest:
    resources = {"nvidia.com/gpu": str(gpus), "cpu": "4", "memory": "16Gi"}
    selector = {"nodeSelector": {"nvidia.com/gpu.product": product}} if product else {}
    container = {"name": "main", "resources": {"limits": resources}}
    return {"containers": [container], **selector, **fields}


def volcano_job(name: str = "run-00000000", pods: int = 2, **pod_fields: Any) -> Manifest:
    task = {"name": "worker", "replicas": pods, "template": {"spec": pod(**pod_fields)}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": metadata(name),
        "spec": {"queue": "research", "tasks": [task]},
    }


def deployment(name: str = "digits", replicas: int | None = 2, **pod_fields: Any) -> Manifest:
    labels = {"gpu-platform.dev/workload": "inference"}
    template = {"metadata": {"labels": labels}, "spec": pod(**pod_fields)}
    count = {} if replicas is None else {"replicas": replicas}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(name),
        "spec": {**count, "template": template},
    }


def queue(name: str = "research", gpus: int = 16, **spec: str) -> Manifest:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": 1, "capability": {"nvidia.com/gpu": str(gpus)}, **spec},
    }


def quota(**hard: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata("workloads"),
        "spec": {"hard": {"requests.nvidia.com/gpu": "16", **hard}},
    }
