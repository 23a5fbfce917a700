"""Ways to weaken a training job: scheduling, shared memory, retries, state."""

from typing import Any

from tests.policies.harness import REMOVED
from tests.policies.ways.pods import JOB, MAIN, POD, pod
from tests.policies.ways.way import Way, way


def shm(what: str, rules: str, *edits: tuple[str, Any]) -> Way:
    """The shared memory of a training Job."""
    return way(what, "volcano_queue", rules, *edits)


WAYS = [
    # scheduling
    pod("the priority of the system", "priorityClassName", "system-node-critical"),
    pod("a priority by number", "priority", 2_000_000_000),
    pod("a node by name", "nodeName", "gpu-node-7"),
    pod("a toleration of everything", "tolerations", [{"operator": "Exists"}]),
    pod(
        "a toleration of the control plane",
        "tolerations",
        [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
    ),
    way(
        "a training Job that tolerates everything",
        "volcano_queue",
        "",
        (f"{JOB}/tolerations", [{"operator": "Exists"}]),
    ),
    way(
        "a toleration of another value",
        "volcano_queue",
        "gpu-toleration",
        (
            f"{JOB}/tolerations",
            [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule"}],
        ),
    ),
    # shared memory
    shm("a shared memory of one byte", "", (f"{JOB}/volumes/2/emptyDir/sizeLimit", 1)),
    shm(
        "a shared memory in thousandths of a byte",
        "",
        (f"{JOB}/volumes/2/emptyDir/sizeLimit", "64000000m"),
    ),
    shm(
        "a shared memory without a limit",
        "shm-bounded-memory",
        (f"{JOB}/volumes/2/emptyDir/sizeLimit", REMOVED),
    ),
    shm(
        "a shared memory on disk",
        "shm-bounded-memory",
        (f"{JOB}/volumes/2/emptyDir/medium", REMOVED),
    ),
    shm(
        "a shared memory that is only read",
        "",
        (f"{JOB}/containers/0/volumeMounts/2/readOnly", True),
    ),
    shm(
        "a shared memory larger than the container's",
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
        "retries of each index without end",
        "volcano_queue",
        "training-retries-bounded",
        ("1/spec/backoffLimitPerIndex", 100_000),
        ("1/spec/backoffLimit", REMOVED),
    ),
    way(
        "failures that are never counted",
        "volcano_queue",
        "training-retries-bounded",
        (
            "1/spec/podFailurePolicy",
            {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [0]}}]},
        ),
    ),
    way(
        "a container that restarts alone",
        "volcano_queue",
        "training-retries-bounded",
        (f"{JOB}/containers/0/restartPolicy", "Always"),
    ),
    way(
        "restarts in place of a Volcano Job",
        "volcano_pytorch_plugin",
        "training-retries-bounded",
        ("0/spec/tasks/1/template/spec/restartPolicy", "OnFailure"),
    ),
    way(
        "restarts of a JobSet without end",
        "jobset_training",
        "training-retries-bounded",
        ("0/spec/failurePolicy/maxRestarts", 100_000),
    ),
    way(
        "restarts of a runtime without end",
        "train_job_with_runtime",
        "training-retries-bounded",
        ("0/spec/template/spec/failurePolicy/maxRestarts", 100_000),
    ),
    way(
        "checkpoints that die with the pod",
        "volcano_queue",
        "",
        (f"{JOB}/volumes/0", {"name": "checkpoints", "emptyDir": {}}),
    ),
    way(
        "restarts of a runtime of the cluster without end",
        "train_cluster_runtime",
        "training-retries-bounded",
        ("0/spec/template/spec/failurePolicy/maxRestarts", 100_000),
    ),
    way(
        "a PyTorchJob that states no policy",
        "pytorch_job",
        "training-retries-bounded training-queue-named",
        ("0/spec/runPolicy", REMOVED),
    ),
    way(
        "restarts of a Volcano Job by its own policy",
        "volcano_pytorch_plugin",
        "training-retries-bounded",
        ("0/spec/policies", [{"event": "PodFailed", "action": "RestartJob"}]),
        ("0/spec/maxRetry", 100_000),
    ),
    way(
        "a memory volume of a container without a limit",
        "ordinary_web_application",
        "shm-fits-memory",
        (f"{MAIN}/resources/limits", REMOVED),
        (f"{MAIN}/volumeMounts", [{"name": "m", "mountPath": "/cache"}]),
        (f"{POD}/volumes", [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ti"}}]),
    ),
    way(
        "a memory volume larger than the whole pod's limit",
        "ordinary_web_application",
        "shm-fits-memory",
        (f"{POD}/resources", {"limits": {"memory": "1Gi"}}),
        (f"{MAIN}/resources", {"requests": {"cpu": "1"}}),
        (f"{MAIN}/volumeMounts", [{"name": "m", "mountPath": "/cache"}]),
        (f"{POD}/volumes", [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]),
    ),
]
