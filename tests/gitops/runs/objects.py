"""Objects of runs as an API server returns them."""

from typing import Any

GPU = "nvidia.com/gpu"
NAMESPACE = "ml"


def volcano_job(run: str, phase: str, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": _metadata(run),
        "spec": {"queue": "vision"},
        "status": {"state": {"phase": phase}, **status},
    }


def job_flow(run: str, phase: str = "", **steps: str) -> dict[str, Any]:
    """Return a JobFlow with the phases of its jobs, by step."""
    jobs = [
        {"name": f"{run}-{run.rpartition('-')[2]}-{step}", "state": state, "restartCount": 1}
        for step, state in steps.items()
    ]
    return {
        "apiVersion": "flow.volcano.sh/v1alpha1",
        "kind": "JobFlow",
        "metadata": _metadata(run),
        "spec": {},
        "status": {
            "state": {"phase": phase},
            "jobStatusList": jobs,
            # A mapping, unlike the conditions of other kinds.
            "conditions": {step["name"]: {"phase": step["state"]} for step in jobs},
        },
    }


def step_job(run: str, step: str, phase: str) -> dict[str, Any]:
    """Return a step's job, which a JobFlow creates without the run's label."""
    owners = [{"kind": "JobFlow", "name": run, "controller": True}]
    name = f"{run}-{run.rpartition('-')[2]}-{step}"
    job = volcano_job(run, phase)
    job["metadata"] |= {"name": name, "labels": {}, "ownerReferences": owners}
    return job


def batch_job(run: str, *conditions: str, owner: str = "") -> dict[str, Any]:
    metadata = _metadata(run)
    if owner:
        metadata |= {"ownerReferences": [{"name": owner, "controller": True}]}
    true = [{"type": kind, "status": "True"} for kind in conditions]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {},
        "status": {"conditions": true},
    }


def pod(run: str, number: int = 0, phase: str = "Running", **more: Any) -> dict[str, Any]:
    """Return a pod with two GPUs that is waiting or was placed on node `n` at 08:00."""
    placed = phase != "Pending"
    metadata = _metadata(run) | {"name": f"{run}-worker-{number}"}
    metadata["annotations"] = {"scheduling.k8s.io/group-name": run}
    scheduled = {
        "type": "PodScheduled",
        "status": str(placed),
        "lastTransitionTime": "2026-01-01T08:00:00Z",
    }
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "nodeName": "n" if placed else None,
            "containers": [{"resources": {"limits": {GPU: "2", "cpu": "1"}}}],
            "priority": more.pop("priority", 0),
        },
        "status": {"phase": phase, "conditions": [scheduled], **more},
    }


def ended(message: str = "", at: str = "2026-01-01T09:00:00Z") -> dict[str, Any]:
    """Return the status of a pod whose container has ended."""
    over = {"finishedAt": at, "message": message, "exitCode": 1}
    return {"containerStatuses": [{"restartCount": 0, "state": {"terminated": over}}]}


def group(
    run: str, phase: str = "Running", min_member: int = 1, created: str = "", queue: str = "vision"
) -> dict[str, Any]:
    metadata = _metadata(run) | ({"creationTimestamp": created} if created else {})
    return {
        "kind": "PodGroup",
        "metadata": metadata | {"uid": f"uid-{run}"},
        "spec": {"queue": queue, "minMember": min_member},
        "status": {"phase": phase},
    }


def node(product: str = "NVIDIA-L4", gpus: int = 8, **labels: str) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": product, **labels}},
        "status": {"allocatable": {GPU: str(gpus)}},
    }


def queue(name: str = "vision") -> dict[str, Any]:
    return {"kind": "Queue", "metadata": {"name": name}, "spec": {}, "status": {}}


def priority_class(name: str, value: int) -> dict[str, Any]:
    return {"kind": "PriorityClass", "metadata": {"name": name}, "value": value}


def _metadata(run: str) -> dict[str, Any]:
    return {
        "namespace": NAMESPACE,
        "name": run,
        "labels": {"gpu-platform.dev/run": run},
        "creationTimestamp": "2026-01-01T07:00:00Z",
    }
