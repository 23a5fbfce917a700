"""Labels, annotations, volume names and paths that several parts of the platform use."""

from typing import Final

WORKLOAD_LABEL: Final = "gpu-platform.dev/workload"
RUN_LABEL: Final = "gpu-platform.dev/run"
SERVICE_LABEL: Final = "gpu-platform.dev/service"
ROLE_LABEL: Final = "gpu-platform.dev/role"
"""Label with the role of a pod: `leader` is the MPI launcher or Ray head, and `serving-leader` is
the pod that receives the requests in a replica with several pods. The other pods of the job or
replica have the `worker` role."""

SWEEP_PARALLEL_ANNOTATION: Final = "gpu-platform.dev/sweep-parallel"
SWEEP_TRIALS_ANNOTATION: Final = "gpu-platform.dev/sweep-trials"
SWEEP_GPU_HOURS_ANNOTATION: Final = "gpu-platform.dev/sweep-gpu-hours"
SWEEP_MONEY_ANNOTATION: Final = "gpu-platform.dev/sweep-money"
SWEEP_SHARE_ANNOTATION: Final = "gpu-platform.dev/sweep-expected-share"
"""Annotations of the template for a sweep's trials: the number of parallel trials, the total number
of trials, the budgets in GPU-hours and in money, and the fraction of the trials' epochs or steps
that is expected to run (1 without early stopping)."""
SWEEP_SUMMARY_ANNOTATION: Final = "gpu-platform.dev/sweep-summary"
"""Annotation of the template for a sweep's trials: the state of the sweep, as JSON."""

COMPONENT_LABEL: Final = "app.kubernetes.io/component"

GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"
MIN_MEMBER_ANNOTATION: Final = "scheduling.volcano.sh/group-min-member"
QUEUE_ANNOTATION: Final = "scheduling.volcano.sh/queue-name"
QUEUE_LABEL: Final = "volcano.sh/queue-name"
KUEUE_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
KUEUE_MINIMUM_ANNOTATION: Final = "kueue.x-k8s.io/job-min-parallelism"
RAY_SCHEDULER_LABEL: Final = "ray.io/scheduler-name"
RAY_NODE_LABEL: Final = "ray.io/node-type"
"""Label with which KubeRay distinguishes the head of a Ray cluster (`head`) from its workers."""
TASK_LABEL: Final = "volcano.sh/task-spec"
"""Label with the name of the Volcano Job task that a pod belongs to."""

GPU_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
GPU_COUNT_LABEL: Final = "nvidia.com/gpu.count"
"""Node labels that NVIDIA's GPU feature discovery sets: the GPU model, and the number of GPUs."""

PREEMPTABLE_ANNOTATION: Final = "volcano.sh/preemptable"
"""Annotation that states whether Volcano may preempt or reclaim the pods."""

BATCH_GROUP: Final = "batch.volcano.sh"
"""API group of Volcano's Jobs."""
BUS_GROUP: Final = "bus.volcano.sh"
"""API group of Volcano's Commands."""
FLOW_GROUP: Final = "flow.volcano.sh"
"""API group of Volcano's JobFlows and JobTemplates."""
SCHEDULING_GROUP: Final = "scheduling.volcano.sh"
"""API group of Volcano's Queues and PodGroups."""

RBAC_GROUP: Final = "rbac.authorization.k8s.io"
ADMISSION_GROUP: Final = "admissionregistration.k8s.io"
GATEWAY_GROUP: Final = "gateway.networking.k8s.io"
"""API group of the Gateway API."""

SYSTEM_PRIORITY_CLASSES: Final = ("system-cluster-critical", "system-node-critical")
"""PriorityClasses that exist in every cluster."""

KEDA_GROUP: Final = "keda.sh"
MONITORING_GROUP: Final = "monitoring.coreos.com"
"""API group of the Prometheus operator."""

LEADER_WORKER_SET_GROUP: Final = "leaderworkerset.x-k8s.io"
"""API group of LeaderWorkerSets, whose replicas each have several pods."""

INDEX_ANNOTATION: Final = "batch.kubernetes.io/job-completion-index"

PULUMI_ANNOTATION: Final = "pulumi.com/"
"""Prefix of annotations for Pulumi's Kubernetes provider. If a manifest refers to an object that
does not exist yet, such as a queue, one of these annotations has an unknown value, so that the
provider does not request a dry run of the manifest."""
SKIP_AWAIT_ANNOTATION: Final = f"{PULUMI_ANNOTATION}skipAwait"
PATCH_FORCE_ANNOTATION: Final = f"{PULUMI_ANNOTATION}patchForce"

STACK_ANNOTATION: Final = "gpu-platform.dev/stack"
"""Annotation of a cluster-wide object: the project and the stack that created it."""

CANARY_ANNOTATION: Final = "gpu-platform.dev/canary"
CANARY_IMAGE_ANNOTATION: Final = "gpu-platform.dev/canary-image"
"""Annotations of a route: a digest of the canary's settings and limits, and the canary's image."""
ROLLED_BACK_ANNOTATION: Final = "gpu-platform.dev/rolled-back"
"""Annotation of a route: the canary that was rolled back, and the reason."""
CANARY_SPAN: Final = "$span"
"""Placeholder in a canary's queries for the period over which requests are evaluated."""

PROMETHEUS_ANNOTATION: Final = "prometheus.io/"
"""Prefix of the `scrape`, `port`, `path` and `scheme` annotations."""
SCHEME_ANNOTATION: Final = f"{PROMETHEUS_ANNOTATION}scheme"
SCRAPE_ANNOTATION: Final = f"{PROMETHEUS_ANNOTATION}scrape"
PORT_ANNOTATION: Final = f"{PROMETHEUS_ANNOTATION}port"
PATH_ANNOTATION: Final = f"{PROMETHEUS_ANNOTATION}path"
METRICS_PATH: Final = "/metrics"
"""Default URL path of metrics."""

USER_ID: Final = 10001
"""User and group ID of every container; the images define no other user."""

SHM_VOLUME: Final = "shm"
SHM_PATH: Final = "/dev/shm"  # noqa: S108  a path in the container
TMP_VOLUME: Final = "tmp"
TMP_PATH: Final = "/tmp"  # noqa: S108  a path in the container
CHECKPOINTS_VOLUME: Final = "checkpoints"
CHECKPOINTS_PATH: Final = "/checkpoints"
DATASETS_VOLUME: Final = "datasets"
DATASETS_PATH: Final = "/data"
SSH_VOLUME: Final = "ssh"
SSH_PATH: Final = "/ssh"
"""Mount path of the SSH keys that Volcano's `ssh` plugin creates for the pods of an MPI job."""

HOSTS_PATH: Final = "/etc/volcano"
"""Mount path of the files with host names that Volcano's `svc` plugin adds to the pods of a job."""

HOMES_VOLUME: Final = "notebook-home"
HOMES_PATH: Final = "/home"
"""Mount path of the claim that contains one home directory per notebook key."""
TOKEN_VOLUME: Final = "notebook-token"  # noqa: S105  the name of a volume

MODELS_VOLUME: Final = "models"
MODELS_PATH: Final = "/models"
EXPORT_VOLUME: Final = "export"
"""Name of the volume for a model that is not stored on a claim. It differs from MODELS_VOLUME, so
that server-side apply never merges a claim with an `emptyDir`."""
CACHE_VOLUME: Final = "model-cache"
CACHE_PATH: Final = "/model-cache"
"""Mount path of the cache; only the init container that downloads models mounts it."""
TLS_VOLUME: Final = "tls"
API_KEYS_VOLUME: Final = "api-keys"
SECRETS_PATH: Final = "/secrets"
"""Directory below which TLS certificates, API keys and tokens are mounted."""

PROGRAM_PATH: Final = "/app"
"""Directory of the program in every image."""

ADMISSION_PREFIX: Final = "gpu-platform-"
"""Prefix of the names of the stack's ValidatingAdmissionPolicies and their bindings."""
