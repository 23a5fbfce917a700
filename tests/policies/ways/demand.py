"""Ways to run more pods than the budget counts."""

from typing import Any

from tests.policies.harness import REMOVED
from tests.policies.ways.way import Way, way


def over_budget(description: str, base: str, gpus: int, *edits: tuple[str, Any]) -> Way:
    """Return an edit that exceeds the number of GPUs used by the good manifest."""
    return way(
        f"GPUs beyond the budget through {description}",
        base,
        "gpu-budget",
        *edits,
        gpu_budget={"maxGpus": gpus},
    )


KNATIVE = "0/spec/template/metadata/annotations/autoscaling.knative.dev~"
RAY = "0/spec/rayClusterSpec/workerGroupSpecs/0"
SERVE = "0/spec/rayClusterConfig/workerGroupSpecs/0"

TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tgi"}
SCALERS = [
    (
        "http.keda.sh/v1alpha1",
        "HTTPScaledObject",
        {"scaleTargetRef": TARGET, "replicas": {"min": 0, "max": 100}},
    ),
    (
        "autoscaling.aibrix.ai/v1alpha1",
        "PodAutoscaler",
        {"scaleTargetRef": TARGET, "minReplicas": 1, "maxReplicas": 100},
    ),
    (
        "datadoghq.com/v1alpha2",
        "DatadogPodAutoscaler",
        {"targetRef": TARGET, "constraints": {"maxReplicas": 100}},
    ),
]
UNKNOWN_SCALERS = [
    (
        "autoscaling.alibabacloud.com/v1beta1",
        "CronHorizontalPodAutoscaler",
        {"scaleTargetRef": TARGET, "jobs": [{"name": "a", "targetSize": 100}]},
    ),
    (
        "workload.serving.volcano.sh/v1alpha1",
        "AutoscalingPolicyBinding",
        {"homogeneousTarget": {"target": {"targetRef": TARGET}, "maxReplicas": 100}},
    ),
]


def scaler(version: str, kind: str, spec: dict[str, Any]) -> tuple[str, Any]:
    """Return an edit that replaces an autoscaler with one of another kind."""
    metadata = {"name": "tgi", "namespace": "team"}
    return ("1", {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})


WAYS = [
    *(
        over_budget(f"a {kind}", "text_generation_inference", 5, scaler(version, kind, spec))
        for version, kind, spec in SCALERS
    ),
    *(
        way(
            f"a {kind}",
            "text_generation_inference",
            "kind-known",
            scaler(version, kind, spec),
        )
        for version, kind, spec in UNKNOWN_SCALERS
    ),
    over_budget(
        "an autoscaler with a schedule",
        "text_generation_inference",
        5,
        scaler(
            "autoscaling.aibrix.ai/v1alpha1",
            "PodAutoscaler",
            {"scaleTargetRef": TARGET, "maxReplicas": 1, "schedules": [{"maxReplicas": 100}]},
        ),
    ),
    over_budget("an autoscaler", "text_generation_inference", 5, ("1/spec/maxReplicas", 100)),
    over_budget(
        "the minimum of an autoscaler",
        "text_generation_inference",
        5,
        ("1/spec/minReplicas", 100),
        ("1/spec/maxReplicas", 100),
    ),
    over_budget(
        "an autoscaler with another API version",
        "text_generation_inference",
        5,
        ("1/apiVersion", "autoscaling/v1"),
        ("1/spec/maxReplicas", 100),
    ),
    over_budget(
        "an autoscaler for a StatefulSet",
        "text_generation_inference",
        5,
        ("0/kind", "StatefulSet"),
        ("1/spec/scaleTargetRef/kind", "StatefulSet"),
        ("1/spec/maxReplicas", 100),
    ),
    over_budget(
        "an autoscaler for a LeaderWorkerSet",
        "vllm_multi_node",
        32,
        (
            "2",
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "vllm", "namespace": "team"},
                "spec": {
                    "minReplicas": 1,
                    "maxReplicas": 50,
                    "scaleTargetRef": {
                        "apiVersion": "leaderworkerset.x-k8s.io/v1",
                        "kind": "LeaderWorkerSet",
                        "name": "vllm",
                    },
                },
            },
        ),
    ),
    over_budget("a ScaledObject", "keda_scaled_object", 4, ("2/spec/maxReplicaCount", 100)),
    over_budget(
        "a ScaledObject without a maximum",
        "keda_scaled_object",
        4,
        ("2/spec/maxReplicaCount", REMOVED),
    ),
    over_budget(
        "a ScaledJob",
        "keda_scaled_job",
        5,
        ("0/spec/jobTargetRef/template/spec/containers/0/resources/limits/nvidia.com~gpu", 8),
    ),
    over_budget(
        "a ScaledJob without a maximum",
        "keda_scaled_job",
        5,
        ("0/spec/jobTargetRef/template/spec/containers/0/resources/limits/nvidia.com~gpu", 1),
        ("0/spec/maxReplicaCount", REMOVED),
    ),
    over_budget("a Knative Service", "knative_service", 4, (f"{KNATIVE}max-scale", "100")),
    over_budget(
        "a Knative Service without a maximum",
        "knative_service",
        4,
        (f"{KNATIVE}max-scale", REMOVED),
    ),
    over_budget(
        "a Knative Service with a maximum of zero",
        "knative_service",
        4,
        (f"{KNATIVE}max-scale", "0"),
    ),
    over_budget(
        "an InferenceService", "kserve_custom_predictor", 4, ("0/spec/predictor/maxReplicas", 50)
    ),
    over_budget(
        "an InferenceService without a maximum",
        "kserve_custom_predictor",
        4,
        ("0/spec/predictor/maxReplicas", REMOVED),
    ),
    over_budget(
        "the minimum of an InferenceService",
        "kserve_model_format",
        4,
        ("0/spec/predictor/minReplicas", 50),
        ("0/spec/predictor/maxReplicas", 50),
    ),
    over_budget(
        "a KServe model",
        "kserve_model_format",
        4,
        ("0/spec/predictor/model/resources/limits/nvidia.com~gpu", 8),
    ),
    over_budget(
        "a multi-node KServe worker",
        "kserve_custom_predictor",
        4,
        (
            "0/spec/predictor/workerSpec",
            {
                "pipelineParallelSize": 8,
                "containers": [
                    {"name": "worker-container", "resources": {"limits": {"nvidia.com/gpu": 8}}}
                ],
            },
        ),
    ),
    over_budget("an LLMInferenceService", "llmisvc_single_gpu", 4, ("0/spec/replicas", 50)),
    over_budget(
        "the prefill of an LLMInferenceService",
        "llmisvc_prefill_decode",
        5,
        ("0/spec/prefill/replicas", 50),
    ),
    over_budget(
        "the data parallelism of an LLMInferenceService",
        "llmisvc_data_parallel",
        16,
        ("0/spec/parallelism/data", 800),
    ),
    over_budget(
        "the workers of a RayService",
        "ray_service",
        8,
        ("0/spec/rayClusterConfig/enableInTreeAutoscaling", True),
        (f"{SERVE}/maxReplicas", 100),
    ),
    over_budget(
        "the workers of a RayCluster",
        "ray_cluster_cpu",
        64,
        ("0/spec/enableInTreeAutoscaling", True),
        ("0/spec/workerGroupSpecs/0/maxReplicas", 800),
        (
            "0/spec/workerGroupSpecs/0/template/spec/containers/0/resources/limits/nvidia.com~gpu",
            1,
        ),
    ),
    over_budget("the hosts of a Ray worker group", "ray_service", 8, (f"{SERVE}/numOfHosts", 16)),
    over_budget(
        "the workers of a RayJob",
        "ray_job_volcano",
        32,
        ("0/spec/rayClusterSpec/enableInTreeAutoscaling", True),
        (f"{RAY}/maxReplicas", 100),
    ),
    over_budget(
        "a RayJob without a maximum",
        "ray_job_volcano",
        32,
        ("0/spec/rayClusterSpec/enableInTreeAutoscaling", True),
        (f"{RAY}/maxReplicas", REMOVED),
    ),
    over_budget("the groups of a LeaderWorkerSet", "vllm_multi_node", 32, ("0/spec/replicas", 50)),
    over_budget(
        "the group size of a LeaderWorkerSet",
        "vllm_multi_node",
        32,
        ("0/spec/leaderWorkerTemplate/size", 50),
    ),
    over_budget("the replicas of a Rollout", "argo_rollout", 3, ("0/spec/replicas", 50)),
    over_budget("the replicas of a StatefulSet", "vllm_stateful_cache", 2, ("0/spec/replicas", 50)),
    over_budget(
        "the Jobs of a JobSet", "jobset_training", 32, ("0/spec/replicatedJobs/0/replicas", 50)
    ),
    over_budget(
        "the parallelism of a JobSet",
        "jobset_training",
        32,
        ("0/spec/replicatedJobs/0/template/spec/parallelism", 50),
        ("0/spec/replicatedJobs/0/template/spec/completions", 50),
    ),
    over_budget(
        "the jobs of a HyperJob", "volcano_hyper_job", 64, ("0/spec/replicatedJobs/0/replicas", 50)
    ),
    over_budget(
        "the tasks of a Volcano Job", "volcano_pytorch_plugin", 32, ("0/spec/tasks/1/replicas", 50)
    ),
    over_budget(
        "the workers of an MPIJob",
        "nccl_tests_mpi_job",
        16,
        ("0/spec/mpiReplicaSpecs/Worker/replicas", 50),
    ),
    over_budget(
        "an elastic PyTorchJob", "pytorch_job_elastic", 32, ("0/spec/elasticPolicy/maxReplicas", 50)
    ),
    over_budget(
        "a PyTorchJob in an AppWrapper",
        "app_wrapper",
        16,
        ("0/spec/components/0/template/spec/pytorchReplicaSpecs/Worker/replicas", 50),
    ),
    over_budget(
        "the nodes of a TrainJob", "train_job_platform_runtime", 8, ("0/spec/trainer/numNodes", 50)
    ),
    over_budget(
        "more TrainJob nodes than in its runtime",
        "train_job_with_runtime",
        16,
        ("2/spec/trainer/numNodes", 50),
    ),
    over_budget(
        "the nodes of a runtime",
        "train_job_with_runtime",
        16,
        ("0/spec/mlPolicy/numNodes", 50),
        ("2/spec/trainer/numNodes", REMOVED),
    ),
    over_budget(
        "a second JobFlow with the same JobTemplate",
        "volcano_job_flow",
        16,
        (
            "3",
            {
                "apiVersion": "flow.volcano.sh/v1alpha1",
                "kind": "JobFlow",
                "metadata": {"name": "second", "namespace": "team"},
                "spec": {"flows": [{"name": "train"}]},
            },
        ),
    ),
    over_budget(
        "concurrent Jobs of a CronJob",
        "volcano_cron_job",
        16,
        ("0/spec/concurrencyPolicy", "Allow"),
    ),
    over_budget(
        "concurrent Jobs of a CronJob with the default policy",
        "volcano_cron_job",
        16,
        ("0/spec/concurrencyPolicy", REMOVED),
    ),
    over_budget(
        "the replicas inside a ManifestWork",
        "ocm_manifest_work",
        1,
        ("0/spec/workload/manifests/0/spec/parallelism", 50),
        ("0/spec/workload/manifests/0/spec/completions", 50),
        (
            "0/spec/workload/manifests/0/spec/template/spec/containers/0/resources/limits/nvidia.com~gpu",
            1,
        ),
    ),
    way(
        "the queue of the PodGroup",
        "volcano_queue",
        "gpu-budget",
        ("1/spec/parallelism", 50),
        ("1/spec/completions", 50),
        gpu_budget={"maxGpusPerQueue": {"team": 16}},
    ),
    way(
        "a ClusterQueue without a limit",
        "kueue_quotas",
        "",
        ("1/spec/resourceGroups/0/flavors/0/resources/2/nominalQuota", 1_000_000),
    ),
]
