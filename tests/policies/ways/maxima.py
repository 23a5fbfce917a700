"""Ways to run more pods than the replica count suggests, such as surges and pauses."""

from typing import Any

from tests.policies.harness import REMOVED, changed
from tests.policies.ways.demand import over_budget
from tests.policies.ways.way import documents, way

GPU = {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}, "requests": {"cpu": "8"}}
POD: Any = documents("vllm_tensor_parallel")[0]["spec"]["template"]["spec"]
ROLLOUT = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Rollout",
    "metadata": {"name": "vllm", "namespace": "team"},
    "spec": {
        "replicas": 50,
        "workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"},
        "strategy": {"canary": {"maxUnavailable": 0}},
    },
}


def machine(kind: str, spec: dict[str, Any], group: str = "kubevirt.io/v1") -> dict[str, Any]:
    """Return a virtual machine object of a kind."""
    metadata = {"name": "vm", "namespace": "team"}
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec}


VM = {"domain": {"devices": {"gpus": [{"name": "a", "deviceName": "nvidia.com/GH100_H100"}]}}}

ADAPTER = "DynamoGraphDeploymentScalingAdapter"


def scaled(api_version: str, kind: str, spec: dict[str, Any]) -> tuple[str, Any]:
    """Return an edit that adds an object that scales Dynamo's service `decode`."""
    metadata = {"name": "disagg-decode", "namespace": "team"}
    return "1", {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


HIDDEN: Any = changed(
    documents("vllm_tensor_parallel")[0], ("metadata/name", "hidden"), ("spec/replicas", -50)
)

WAYS = [
    # negative numbers
    over_budget(
        "a Deployment next to one with negative replicas",
        "vllm_tensor_parallel",
        12,
        ("0/spec/replicas", 20),
        ("3", HIDDEN),
    ),
    over_budget(
        "a Deployment next to one with negative replicas of an autoscaler",
        "vllm_tensor_parallel",
        12,
        ("0/spec/replicas", 20),
        ("3", changed(HIDDEN, ("spec/replicas", REMOVED))),
        (
            "4",
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "hidden", "namespace": "team"},
                "spec": {
                    "scaleTargetRef": {"kind": "Deployment", "name": "hidden"},
                    "minReplicas": -50,
                    "maxReplicas": -50,
                },
            },
        ),
    ),
    # adapters
    over_budget(
        "an autoscaler of an adapter",
        "dynamo_services",
        20,
        scaled(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            {
                "scaleTargetRef": {"kind": ADAPTER, "name": "disagg-decode"},
                "minReplicas": 1,
                "maxReplicas": 100,
            },
        ),
    ),
    over_budget(
        "an adapter of a service",
        "dynamo_services",
        20,
        scaled(
            "nvidia.com/v1alpha1",
            ADAPTER,
            {"replicas": 100, "dgdRef": {"name": "disagg", "serviceName": "decode"}},
        ),
    ),
    # rollouts
    over_budget(
        "the update surge of a Deployment",
        "vllm_tensor_parallel",
        12,
        ("0/spec/strategy/rollingUpdate/maxSurge", 50),
    ),
    over_budget(
        "the update surge of a Deployment in percent",
        "vllm_tensor_parallel",
        12,
        ("0/spec/strategy/rollingUpdate/maxSurge", "300%"),
    ),
    over_budget(
        "the update surge of a Rollout",
        "argo_rollout",
        8,
        ("0/spec/strategy/canary/maxSurge", "900%"),
    ),
    over_budget(
        "the second half of a blue-green Rollout",
        "argo_rollout",
        3,
        ("0/spec/strategy", {"blueGreen": {"activeService": "canary"}}),
    ),
    over_budget(
        "the update surge of a LeaderWorkerSet",
        "vllm_multi_node",
        32,
        ("0/spec/rolloutStrategy/rollingUpdateConfiguration/maxSurge", 10),
    ),
    over_budget(
        "the second cluster of a RayService",
        "ray_service",
        8,
        ("0/spec/rayClusterConfig/workerGroupSpecs/0/maxReplicas", 6),
    ),
    # scalers
    over_budget(
        "a ScaledObject paused at a number of replicas",
        "keda_scaled_object",
        4,
        ("2/metadata/annotations", {"autoscaling.keda.sh/paused-replicas": "50"}),
    ),
    over_budget(
        "a Rollout that refers to a Deployment", "vllm_tensor_parallel", 12, ("3", ROLLOUT)
    ),
    over_budget(
        "two autoscalers for one Deployment",
        "text_generation_inference",
        9,
        (
            "2",
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "second", "namespace": "team"},
                "spec": {
                    "maxReplicas": 90,
                    "scaleTargetRef": {
                        "apiVersion": "apps/v1",
                        "kind": "Deployment",
                        "name": documents("text_generation_inference")[0]["metadata"]["name"],
                    },
                },
            },
        ),
    ),
    # pipelines
    way(
        "the GPUs of a Tekton step",
        "tekton_task_run",
        "gpu-budget",
        (
            "0/spec/taskSpec",
            {
                "steps": [
                    {**documents("tekton_task")[0]["spec"]["steps"][0], "computeResources": GPU}
                ]
            },
        ),
        gpu_budget={"maxGpus": 1},
    ),
    way(
        "the GPUs of a Tekton step set in the run",
        "tekton_task_run",
        "gpu-budget",
        ("0/spec/stepSpecs", [{"name": "clone", "computeResources": GPU}]),
        gpu_budget={"maxGpus": 1},
    ),
    way(
        "the GPUs of all steps of a run",
        "tekton_task_run",
        "gpu-budget",
        ("0/spec/computeResources", GPU),
        gpu_budget={"maxGpus": 1},
    ),
    way(
        "Spark executors set in the Spark configuration",
        "spark_rapids",
        "kind-known",
        ("0/spec/sparkConf/spark.dynamicAllocation.maxExecutors", "500"),
    ),
    way(
        "the Spark image set in the Spark configuration",
        "spark_application",
        "",
        ("0/spec/sparkConf", {"spark.kubernetes.executor.container.image": "evil:latest"}),
    ),
    way(
        "a host path in the Spark configuration",
        "spark_application",
        "",
        (
            "0/spec/sparkConf",
            {
                "spark.kubernetes.executor.volumes.hostPath.root.mount.path": "/host",
                "spark.kubernetes.executor.volumes.hostPath.root.options.path": "/",
            },
        ),
    ),
    way(
        "a pod template set in the Spark configuration",
        "spark_application",
        "",
        ("0/spec/sparkConf", {"spark.kubernetes.driver.podTemplateFile": "s3a://evil/pod.yaml"}),
    ),
    way(
        "the patch of a workflow's artifact garbage collection pod",
        "argo_workflow_steps",
        "",
        (
            "0/spec/artifactGC",
            {"strategy": "OnWorkflowDeletion", "podSpecPatch": '{"hostPID": true}'},
        ),
    ),
    way(
        "devices through the metadata of all pods in a workflow",
        "argo_workflow_steps",
        "gpu-limit-present",
        ("0/spec/podMetadata", {"annotations": {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}}),
    ),
    way(
        "a step with unlimited retries",
        "argo_workflow_dag",
        "training-retries-bounded",
        ("0/spec/templates/2/container/resources/limits/nvidia.com~gpu", 8),
        ("0/spec/templates/2/retryStrategy", {"retryPolicy": "Always"}),
    ),
    # training
    way(
        "a JobFlow step whose patch sets the retries",
        "volcano_job_flow",
        "",
        ("2/spec/flows/1/patch", {"jobSpec": {"maxRetry": 100_000}}),
    ),
    way(
        "a JobFlow step whose patch sets the queue",
        "volcano_job_flow",
        "kind-known",
        ("2/spec/flows/1/patch", {"jobSpec": {"queue": "other"}}),
    ),
    way(
        "a JobFlow step whose patch changes the pods",
        "volcano_job_flow",
        "kind-known",
        ("2/spec/flows/1/patch", {"jobSpec": {"tasks": [{"name": "worker", "replicas": 500}]}}),
    ),
    way(
        "a Volcano Job task with unlimited retries",
        "volcano_pytorch_plugin",
        "training-retries-bounded",
        ("0/spec/tasks/1/maxRetry", 100_000),
    ),
    way(
        "a Volcano Job that uses another PodGroup",
        "volcano_pytorch_plugin",
        "training-queue-named",
        ("0/spec/queue", REMOVED),
        *(
            (
                f"0/spec/tasks/{task}/template/metadata",
                {"annotations": {"scheduling.k8s.io/group-name": "other"}},
            )
            for task in (0, 1)
        ),
        (
            "1",
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "metadata": {"name": "other", "namespace": "team"},
                "spec": {"minMember": 4, "queue": "team"},
            },
        ),
    ),
    way(
        "a minimum below the number of pods in each task",
        "volcano_pytorch_plugin",
        "training-gang-whole",
        ("0/spec/minAvailable", 1),
    ),
    way(
        "a minimum of zero pods",
        "volcano_pytorch_plugin",
        "training-gang-whole",
        ("0/spec/minAvailable", 0),
    ),
    way(
        "a PodGroup with a minimum of one pod for a gang",
        "volcano_queue",
        "training-pod-group-whole",
        ("2/spec/minMember", 1),
    ),
    way(
        "a PodGroup in a queue that does not exist",
        "volcano_queue",
        "training-queue-declared",
        ("2/spec/queue", "other"),
    ),
    way(
        "a PodGroup without a queue",
        "volcano_queue",
        "training-pod-group-whole",
        ("2/spec/queue", REMOVED),
    ),
    way(
        "a Kueue queue label without a value",
        "kueue_single_pod_job",
        "training-queue-named",
        ("0/metadata/labels/kueue.x-k8s.io~queue-name", ""),
    ),
    way(
        "a Kueue queue label on the pods of a gang",
        "nccl_tests_jobset",
        "training-queue-named training-gang-whole",
        ("0/metadata/labels", {}),
        (
            "0/spec/replicatedJobs/1/template/spec/template/metadata",
            {"labels": {"kueue.x-k8s.io/queue-name": "team"}},
        ),
    ),
    way(
        "a gang with partial admission through a Kueue annotation",
        "volcano_queue",
        "training-gang-whole",
        ("1/metadata/labels", {"kueue.x-k8s.io/queue-name": "team"}),
        ("1/metadata/annotations/kueue.x-k8s.io~job-min-parallelism", "1"),
    ),
    way(
        "a JobSet whose restarts are not counted",
        "jobset_training",
        "training-retries-bounded",
        (
            "0/spec/failurePolicy/rules",
            [{"name": "a", "action": "RestartJobSetAndIgnoreMaxRestarts"}],
        ),
    ),
    way(
        "a Job that ignores pod failures",
        "jobset_training",
        "training-retries-bounded",
        (
            "0/spec/replicatedJobs/0/template/spec/podFailurePolicy",
            {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "Ready"}]}]},
        ),
    ),
    way(
        "unlimited torchrun restarts",
        "pytorch_job_elastic",
        "training-retries-bounded",
        ("0/spec/elasticPolicy/maxRestarts", 100_000),
    ),
    way(
        "a RayJob with unlimited retries",
        "ray_job_volcano",
        "training-retries-bounded",
        ("0/spec/backoffLimit", 100_000),
    ),
    over_budget(
        "the pods of a Job with invalid completions",
        "volcano_queue",
        16,
        ("1/spec/parallelism", 50),
        ("1/spec/completions", 50),
    ),
    way(
        "a quota below the GPUs used in its namespace",
        "tenant_namespace",
        "namespace-gpu-quota",
        ("1/spec/hard/requests.nvidia.com~gpu", 8),
        ("4/spec/replicas", 100),
    ),
    # machines
    over_budget(
        "a virtual machine pool",
        "vllm_tensor_parallel",
        12,
        (
            "3",
            machine("VirtualMachineInstanceReplicaSet", {"replicas": 50, "template": {"spec": VM}}),
        ),
    ),
    over_budget(
        "a virtual machine",
        "vllm_tensor_parallel",
        12,
        ("3", machine("VirtualMachine", {"runStrategy": "Always", "template": {"spec": VM}})),
    ),
    over_budget(
        "an init container",
        "volcano_pytorch_plugin",
        32,
        (
            "0/spec/tasks/0/template/spec/initContainers",
            [{"name": "train", "resources": {"limits": {"nvidia.com/gpu": 16}}}],
        ),
    ),
    over_budget("a DaemonSet", "vllm_tensor_parallel", 12, ("0/kind", "DaemonSet")),
    way(
        "a host disk in a virtual machine",
        "vllm_tensor_parallel",
        "no-host-path",
        (
            "3",
            machine(
                "VirtualMachineInstance",
                {
                    "domain": {"devices": {"disks": []}},
                    "volumes": [{"name": "h", "hostDisk": {"path": "/dev/sda", "type": "Disk"}}],
                },
            ),
        ),
    ),
    way(
        "the image of a virtual machine has no version",
        "vllm_tensor_parallel",
        "image-tag-fixed",
        (
            "3",
            machine(
                "VirtualMachineInstance",
                {
                    "domain": {"devices": {"disks": []}},
                    "volumes": [{"name": "d", "containerDisk": {"image": "quay.io/team/disk"}}],
                },
            ),
        ),
    ),
    # operators
    way(
        "the Thanos sidecar of a Prometheus has no version",
        "prometheus_operator",
        "image-tag-fixed",
        ("0/spec/thanos", {"image": "quay.io/thanos/thanos"}),
    ),
    way(
        "GPU claims in a Dynamo service",
        "dynamo_services",
        "gpu-budget",
        ("0/spec/services/decode/resources", {"limits": {"gpu": "64"}}),
        gpu_budget={"maxGpus": 8},
    ),
    way(
        "a NIMCache with a host path",
        "nim_cache",
        "no-host-path no-host-volume",
        ("0/spec/storage", {"hostPath": "/"}),
    ),
    way(
        "a gang whose pods share one DRA claim",
        "dra_resource_claim",
        "gpu-budget",
        (
            "0/spec/spec/devices/requests/0",
            {
                "name": "gpu",
                "firstAvailable": [
                    {"name": "a", "deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}
                ],
            },
        ),
        gpu_budget={"maxGpus": 4},
    ),
]
