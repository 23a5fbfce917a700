"""Evasions that disguise a workload so that fewer rules apply to it."""

from tests.policies.harness import REMOVED
from tests.policies.ways.way import Way, way

SERVER = "0/spec/template/spec/containers/0"
LABEL = "gpu-platform.dev~workload"
COMPONENT = "app.kubernetes.io~component"
NO_PROBES = ("readinessProbe", "livenessProbe", "startupProbe")
JOB = "1/spec/template"
GANG = f"{JOB}/metadata/annotations"
NO_QUEUE = (
    (f"{GANG}/scheduling.volcano.sh~queue-name", REMOVED),
    (f"{GANG}/scheduling.k8s.io~group-name", REMOVED),
    (f"{JOB}/spec/schedulerName", REMOVED),
)
LAUNCHER, WORKERS = (
    f"0/spec/mpiReplicaSpecs/{replicas}/template/spec/containers/0/resources"
    for replicas in ("Launcher", "Worker")
)
QUEUE_RULES = "training-queue-named training-scheduler"


def without_probes(container: str = SERVER) -> tuple[tuple[str, object], ...]:
    """Return edits that remove the probes of a container."""
    return tuple((f"{container}/{probe}", REMOVED) for probe in NO_PROBES)


def _labeled_server(value: str) -> Way:
    label = (f"0/spec/template/metadata/labels/{LABEL}", value)
    name = f"a model server labeled {value!r} without probes"
    return way(name, "vllm_tensor_parallel", "inference-probes", label, *without_probes())


def _labeled_job(value: str) -> Way:
    labels = {"gpu-platform.dev/workload": value}
    edits = ((f"{JOB}/metadata/labels", labels), *NO_QUEUE)
    return way(f"a gang labeled {value!r} without a queue", "volcano_queue", QUEUE_RULES, *edits)


RAY_GROUPS = (
    "0/spec/rayClusterConfig/headGroupSpec/template/spec/containers",
    "0/spec/rayClusterConfig/workerGroupSpecs/0/template/spec/containers",
)
HARMLESS = [
    way(
        "a RayService with probes added by the operator",
        "ray_service",
        "",
        *(edit for containers in RAY_GROUPS for edit in without_probes(f"{containers}/0")),
    ),
]
WAYS = [
    way(
        "a second RayService container without probes",
        "ray_service",
        "inference-probes",
        (
            f"{RAY_GROUPS[1]}/1",
            {"name": "a", "image": "registry.example.com/a:1", "ports": [{"containerPort": 8000}]},
        ),
    ),
    way(
        "a RayService probe that cannot fail",
        "ray_service",
        "inference-probes",
        (f"{RAY_GROUPS[1]}/0/livenessProbe", {"exec": {"command": ["true"]}}),
    ),
    *map(_labeled_server, ["interactive", "batch", "system", "other", "INFERENCE", ""]),
    *map(_labeled_job, ["inference", "serving", "interactive", "batch", "system", "none"]),
    way(
        "two contradicting role labels",
        "vllm_tensor_parallel",
        "",
        (f"0/spec/template/metadata/labels/{COMPONENT}", "training"),
        (f"0/spec/template/metadata/labels/{LABEL}", "inference"),
    ),
    way(
        "the role label on the Job instead of its pod template",
        "volcano_queue",
        QUEUE_RULES,
        (f"1/metadata/labels/{LABEL}", "interactive"),
        *NO_QUEUE,
    ),
    way(
        "a StatefulSet without probes", "vllm_stateful_cache", "inference-probes", *without_probes()
    ),
    way("a Rollout without probes", "argo_rollout", "inference-probes", *without_probes()),
    way(
        "a Knative Service without probes", "knative_service", "inference-probes", *without_probes()
    ),
    way(
        "a LeaderWorkerSet without probes",
        "vllm_multi_node",
        "inference-probes",
        *without_probes("0/spec/leaderWorkerTemplate/leaderTemplate/spec/containers/0"),
    ),
    way(
        "a custom predictor of KServe without probes",
        "kserve_custom_predictor",
        "inference-probes",
        *without_probes("0/spec/predictor/containers/0"),
    ),
    way(
        "a ReplicaSet without probes",
        "vllm_tensor_parallel",
        "inference-probes",
        ("0/kind", "ReplicaSet"),
        *without_probes(),
    ),
    way(
        "a DaemonSet of model servers without probes",
        "vllm_tensor_parallel",
        "inference-probes",
        ("0/kind", "DaemonSet"),
        *without_probes(),
    ),
    way(
        "a ReplicationController without probes",
        "vllm_tensor_parallel",
        "inference-probes",
        ("0/kind", "ReplicationController"),
        ("0/apiVersion", "v1"),
        *without_probes(),
    ),
    way(
        "a bare Pod that is always restarted, without a queue or probes",
        "gpu_smoke_test",
        "",
        ("0/spec/restartPolicy", "Always"),
    ),
    way(
        "a smoke test with eight GPUs",
        "gpu_smoke_test",
        "",
        ("0/spec/containers/0/resources/limits/nvidia.com~gpu", 8),
        ("0/spec/containers/0/resources/requests/nvidia.com~gpu", 8),
    ),
    way(
        "a JobSet without a queue",
        "jobset_training",
        "training-queue-named",
        ("0/spec/replicatedJobs/0/template/spec/template/metadata/annotations", {}),
    ),
    way(
        "a JobSet without a gang scheduler",
        "jobset_training",
        "training-scheduler",
        ("0/spec/replicatedJobs/0/template/spec/template/spec/schedulerName", REMOVED),
    ),
    way(
        "a Kubeflow Trainer runtime without a queue",
        "train_job_with_runtime",
        "training-queue-named",
        (
            "0/spec/template/spec/replicatedJobs/0/template/spec/template/metadata/annotations",
            {},
        ),
    ),
    way(
        "a RayJob without a queue",
        "ray_job_volcano",
        "training-queue-named",
        ("0/metadata/labels", {}),
        ("0/spec/rayClusterSpec/headGroupSpec/template/metadata/labels", {}),
        ("0/spec/rayClusterSpec/workerGroupSpecs/0/template/metadata/labels", {}),
    ),
    way(
        "a RayJob whose workers share 64 MiB",
        "ray_job_volcano",
        "shm-mounted",
        ("0/spec/rayClusterSpec/workerGroupSpecs/0/template/spec/containers/0/volumeMounts", []),
    ),
    way(
        "a HyperJob without a queue",
        "volcano_hyper_job",
        "training-queue-named",
        ("0/spec/replicatedJobs/0/templateSpec/queue", REMOVED),
    ),
    way(
        "a Volcano CronJob without a queue",
        "volcano_cron_job",
        "training-queue-named",
        ("0/spec/jobTemplate/spec/queue", REMOVED),
    ),
    way(
        "a HyperJob with a gang minimum of one",
        "volcano_hyper_job",
        "training-gang-whole",
        ("0/spec/replicatedJobs/0/templateSpec/minAvailable", 1),
    ),
    way(
        "a Volcano CronJob with a gang minimum of one",
        "volcano_cron_job",
        "training-gang-whole",
        ("0/spec/jobTemplate/spec/minAvailable", 1),
    ),
    way(
        "a JobFlow step without a queue",
        "volcano_job_flow",
        "training-queue-named",
        ("1/spec/queue", REMOVED),
    ),
    way(
        "a PyTorchJob in an AppWrapper without a queue",
        "app_wrapper",
        "training-queue-named",
        ("0/metadata/labels", {}),
        ("0/spec/components/0/template/spec/runPolicy/schedulingPolicy/queue", REMOVED),
    ),
    way(
        "an MPI launcher with a GPU but without shared memory",
        "nccl_tests_mpi_job",
        "shm-mounted",
        (f"{LAUNCHER}/limits/nvidia.com~gpu", 8),
    ),
    way(
        "an MPI launcher with a GPU, and workers without one",
        "nccl_tests_mpi_job",
        "gpu-limit-present",
        (f"{LAUNCHER}/limits/nvidia.com~gpu", 1),
        (f"{WORKERS}/limits/nvidia.com~gpu", REMOVED),
        (f"{WORKERS}/requests/nvidia.com~gpu", REMOVED),
    ),
    way(
        "a Kueue Job without a queue",
        "kueue_single_pod_job",
        "training-queue-named",
        ("0/metadata/labels", {}),
        training_scheduler={"schedulers": ["volcano", "default-scheduler"]},
    ),
    way(
        "a Kueue gang with partial admission",
        "nccl_tests_jobset",
        "training-gang-whole training-queue-named",
        ("0/metadata/labels", {}),
        training_scheduler={"schedulers": ["volcano", "default-scheduler"]},
    ),
    way(
        "a training CronJob without a queue",
        "cron_job_data",
        QUEUE_RULES,
        ("0/spec/jobTemplate/spec/template/spec/containers/0/resources/limits/nvidia.com~gpu", 8),
    ),
    way(
        "a training ScaledJob without a queue",
        "keda_scaled_job",
        QUEUE_RULES,
        ("0/spec/jobTargetRef/template/spec/containers/0/resources/limits/nvidia.com~gpu", 8),
    ),
    way(
        "a Job with a node name",
        "kueue_single_pod_job",
        "",
        ("0/spec/template/spec/nodeName", "gpu-node-7"),
    ),
]
