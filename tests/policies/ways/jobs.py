"""Ways to weaken a training job: scheduling, shared memory, retries and state."""

from typing import Any

from tests.policies.harness import REMOVED
from tests.policies.ways.pods import JOB, MAIN, POD, pod
from tests.policies.ways.way import Way, way


def shm(description: str, rules: str, *edits: tuple[str, Any]) -> Way:
    """Return an edit that changes the shared memory of a training Job."""
    return way(description, "volcano_queue", rules, *edits)


WAYS = [
    # scheduling
    pod("a system priority class for a Job", "priorityClassName", "system-node-critical"),
    pod("a numeric priority", "priority", 2_000_000_000),
    pod("a node name", "nodeName", "gpu-node-7"),
    pod("a toleration for every taint", "tolerations", [{"operator": "Exists"}]),
    pod(
        "a toleration for the control plane",
        "tolerations",
        [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
    ),
    way(
        "a training Job that tolerates every taint",
        "volcano_queue",
        "",
        (f"{JOB}/tolerations", [{"operator": "Exists"}]),
    ),
    way(
        "a toleration with another value",
        "volcano_queue",
        "gpu-toleration",
        (
            f"{JOB}/tolerations",
            [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule"}],
        ),
    ),
    # shared memory
    shm("shared memory with one byte", "", (f"{JOB}/volumes/2/emptyDir/sizeLimit", 1)),
    shm(
        "shared memory in milli-bytes",
        "",
        (f"{JOB}/volumes/2/emptyDir/sizeLimit", "64000000m"),
    ),
    shm(
        "shared memory without a limit",
        "shm-bounded-memory",
        (f"{JOB}/volumes/2/emptyDir/sizeLimit", REMOVED),
    ),
    shm(
        "shared memory on disk",
        "shm-bounded-memory",
        (f"{JOB}/volumes/2/emptyDir/medium", REMOVED),
    ),
    shm(
        "read-only shared memory",
        "",
        (f"{JOB}/containers/0/volumeMounts/2/readOnly", True),
    ),
    shm(
        "shared memory larger than the container's memory",
        "shm-fits-memory",
        (f"{JOB}/volumes/2/emptyDir/sizeLimit", "512Gi"),
    ),
    # retries, deadlines and state
    way(
        "retries without end",
        "volcano_queue",
        "training-retries-bounded",
        ("1/spec/backoffLimit", 100_000),
    ),
    way(
        "unlimited retries per index",
        "volcano_queue",
        "training-retries-bounded",
        ("1/spec/backoffLimitPerIndex", 100_000),
        ("1/spec/backoffLimit", REMOVED),
    ),
    way(
        "failures that are not counted",
        "volcano_queue",
        "training-retries-bounded",
        (
            "1/spec/podFailurePolicy",
            {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [0]}}]},
        ),
    ),
    way(
        "a container that restarts on its own",
        "volcano_queue",
        "training-retries-bounded",
        (f"{JOB}/containers/0/restartPolicy", "Always"),
    ),
    way(
        "in-place restarts in a Volcano Job",
        "volcano_pytorch_plugin",
        "training-retries-bounded",
        ("0/spec/tasks/1/template/spec/restartPolicy", "OnFailure"),
    ),
    way(
        "unlimited restarts of a JobSet",
        "jobset_training",
        "training-retries-bounded",
        ("0/spec/failurePolicy/maxRestarts", 100_000),
    ),
    way(
        "unlimited restarts of a training runtime",
        "train_job_with_runtime",
        "training-retries-bounded",
        ("0/spec/template/spec/failurePolicy/maxRestarts", 100_000),
    ),
    way(
        "checkpoints in an emptyDir",
        "volcano_queue",
        "",
        (f"{JOB}/volumes/0", {"name": "checkpoints", "emptyDir": {}}),
    ),
    way(
        "unlimited restarts of a cluster training runtime",
        "train_cluster_runtime",
        "training-retries-bounded",
        ("0/spec/template/spec/failurePolicy/maxRestarts", 100_000),
    ),
    way(
        "a PyTorchJob without a restart policy",
        "pytorch_job",
        "training-retries-bounded training-queue-named",
        ("0/spec/runPolicy", REMOVED),
    ),
    way(
        "unlimited restarts through a Volcano Job policy",
        "volcano_pytorch_plugin",
        "training-retries-bounded",
        ("0/spec/policies", [{"event": "PodFailed", "action": "RestartJob"}]),
        ("0/spec/maxRetry", 100_000),
    ),
    way(
        "a memory volume in a container without a memory limit",
        "ordinary_web_application",
        "shm-fits-memory",
        (f"{MAIN}/resources/limits", REMOVED),
        (f"{MAIN}/volumeMounts", [{"name": "m", "mountPath": "/cache"}]),
        (f"{POD}/volumes", [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ti"}}]),
    ),
    way(
        "a memory volume larger than the pod's memory limit",
        "ordinary_web_application",
        "shm-fits-memory",
        (f"{POD}/resources", {"limits": {"memory": "1Gi"}}),
        (f"{MAIN}/resources", {"requests": {"cpu": "1"}}),
        (f"{MAIN}/volumeMounts", [{"name": "m", "mountPath": "/cache"}]),
        (f"{POD}/volumes", [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]),
    ),
]
