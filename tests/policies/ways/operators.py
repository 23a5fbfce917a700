"""Ways to make an operator run more pods than the budget counts."""

from typing import Any

from tests.policies.harness import REMOVED, Manifest
from tests.policies.ways.demand import over_budget
from tests.policies.ways.way import way

DAG = "0/spec/templates/0/dag/tasks/1"
RAPIDS = "0/spec/dynamicAllocation"

DEVICE = {"name": "gpu", "count": 8, "deviceClassName": "gpu.nvidia.com"}
NIM_CLAIMS = (("0/spec/resources", {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi"}}),)
TAG = "25.08"


def jobs(tag: str) -> Manifest:
    """Return the jobs of a NemoCustomizer."""
    image = {"repository": "nvcr.io/nvidia/nemo-microservices/customizer", "tag": tag}
    tools = {"image": f"nvcr.io/nvidia/nemo-microservices/nds-v2-huggingface-cli:{tag}"}
    return {"trainingConfig": {"image": image}, "nemoDatastoreTools": tools}


def picker(tag: str) -> Manifest:
    """Return the endpoint picker of a NIMService."""
    image = {"repository": "registry.k8s.io/gateway-api-inference-extension/epp", "tag": tag}
    return {"router": {"eppConfig": {"containerSpec": {"name": "epp", "image": image}}}}


def customizer(tag: str) -> tuple[tuple[str, Any], ...]:
    """Return edits that turn a NIMService into a NemoCustomizer with jobs."""
    fields = ((f"0/spec/{name}", value) for name, value in jobs(tag).items())
    return (("0/kind", "NemoCustomizer"), *fields)


def postgres(kind: str, spec: Manifest) -> tuple[str, Any]:
    """Return an edit that replaces a cluster with another CloudNativePG object."""
    metadata = {"name": "db", "namespace": "team"}
    version = "postgresql.cnpg.io/v1"
    return ("0", {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})


def pooler(**settings: Any) -> tuple[str, Any]:
    """Return an edit that replaces a cluster with a Pooler."""
    return postgres("Pooler", {"cluster": {"name": "db"}, "pgbouncer": settings})


def catalog(tag: str) -> tuple[str, Any]:
    """Return an edit that replaces a cluster with an ImageCatalog with a component image."""
    image = {"key": "pgbouncer", "image": f"ghcr.io/cloudnative-pg/pgbouncer:{tag}"}
    return postgres("ImageCatalog", {"images": [], "componentImages": [image]})


SECURE = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
HARMLESS = [
    way(
        "a model server whose image KServe adds",
        "llmisvc_single_gpu",
        "",
        ("0/spec/template/containers/0/image", REMOVED),
    ),
    way(
        "an executor template whose image Spark adds",
        "spark_application",
        "",
        (
            "0/spec/executor/template",
            {"spec": {"containers": [{"name": "executor", "securityContext": SECURE}]}},
        ),
    ),
    way("the jobs of a NemoCustomizer", "nim_service", "", *customizer(TAG)),
    way("the endpoint picker of a NIMService", "nim_service", "", ("0/spec/expose", picker(TAG))),
    way(
        "the image of a Pooler",
        "cnpg_cluster",
        "",
        pooler(image="ghcr.io/cloudnative-pg/pgbouncer:1.25.1"),
    ),
    way(
        "the image catalog of a Pooler",
        "cnpg_cluster",
        "",
        pooler(imageCatalogRef={"kind": "ImageCatalog", "name": "db", "key": "pgbouncer"}),
    ),
    way("a component image in a catalog", "cnpg_cluster", "", catalog("1.25.1")),
    way(
        "a claim created by a NIMService",
        "nim_service",
        "",
        ("0/spec/resources", {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi"}}),
        ("0/spec/draResources", [{"claimCreationSpec": {"devices": [{**DEVICE, "count": 1}]}}]),
        gpu_budget={"maxGpus": 3},
    ),
    way(
        "a network device in Dynamo",
        "dynamo_services",
        "",
        ("0/spec/services/decode/resources/limits/custom", {"rdma/ib": "50"}),
        gpu_budget={"maxGpus": 8},
    ),
]
WAYS = [
    way(
        "a moving tag in a NemoCustomizer", "nim_service", "image-tag-fixed", *customizer("latest")
    ),
    way(
        "a moving tag in an endpoint picker",
        "nim_service",
        "image-tag-fixed",
        ("0/spec/expose", picker("latest")),
    ),
    way(
        "a moving tag in a Pooler",
        "cnpg_cluster",
        "image-tag-fixed",
        pooler(image="ghcr.io/cloudnative-pg/pgbouncer:latest"),
    ),
    way("a moving tag in a catalog", "cnpg_cluster", "image-tag-fixed", catalog("latest")),
    over_budget(
        "the items of a workflow",
        "argo_workflow_dag",
        2,
        (f"{DAG}/withItems", list(range(50))),
        ("0/spec/parallelism", REMOVED),
    ),
    over_budget(
        "the sequence of a workflow",
        "argo_workflow_dag",
        2,
        (f"{DAG}/withSequence", {"count": "50"}),
        ("0/spec/parallelism", REMOVED),
    ),
    over_budget(
        "workflow items produced by another step",
        "argo_workflow_dag",
        2,
        (f"{DAG}/withParam", "{{tasks.prepare.outputs.result}}"),
        ("0/spec/parallelism", REMOVED),
    ),
    over_budget(
        "the GPUs of a workflow step",
        "argo_workflow_dag",
        2,
        ("0/spec/templates/2/container/resources/limits/nvidia.com~gpu", 8),
    ),
    over_budget(
        "the step template of a task",
        "tekton_pipeline_run",
        8,
        (
            "0/spec/pipelineSpec",
            {
                "tasks": [
                    {
                        "name": "a",
                        "taskSpec": {
                            "stepTemplate": {"computeResources": {"limits": {"nvidia.com/gpu": 8}}},
                            "steps": [{"image": "a:1.0"}, {"image": "b:1.0"}],
                        },
                    }
                ]
            },
        ),
    ),
    over_budget("Spark executors", "spark_rapids", 4, (f"{RAPIDS}/maxExecutors", 50)),
    over_budget(
        "Spark executors without a maximum",
        "spark_rapids",
        4,
        (f"{RAPIDS}/maxExecutors", REMOVED),
    ),
    over_budget(
        "a fixed number of Spark executors",
        "spark_rapids",
        4,
        (RAPIDS, REMOVED),
        ("0/spec/executor/instances", 50),
    ),
    over_budget(
        "an autoscaler in a NIMService", "nim_service", 3, ("0/spec/scale/hpa/maxReplicas", 50)
    ),
    over_budget(
        "the replicas of a NIMService",
        "nim_service",
        3,
        ("0/spec/scale", REMOVED),
        ("0/spec/replicas", 50),
    ),
    over_budget(
        "the nodes of a NIMService",
        "nim_service",
        3,
        ("0/spec/multiNode", {"backendType": "lws", "parallelism": {"pipeline": 16}}),
    ),
    over_budget(
        "the claims of a NIMService",
        "nim_service",
        3,
        *NIM_CLAIMS,
        ("0/spec/draResources", [{"claimCreationSpec": {"devices": [DEVICE]}}]),
    ),
    over_budget(
        "the default device of a NIMService's claim",
        "nim_service",
        3,
        *NIM_CLAIMS,
        ("0/spec/draResources", [{"claimCreationSpec": {"devices": [{"count": 8}]}}]),
    ),
    *(
        over_budget(
            f"the invalid count {count} of a NIMService's claim",
            "nim_service",
            3,
            *NIM_CLAIMS,
            (
                "0/spec/draResources",
                [{"claimCreationSpec": {"devices": [{**DEVICE, "count": count}]}}],
            ),
        )
        for count in ("many", -8)
    ),
    *(
        way(
            f"the {field} of a NIMService",
            "nim_service",
            "claim-declared",
            *NIM_CLAIMS,
            ("0/spec/draResources", [{field: "gpus"}]),
        )
        for field in ("resourceClaimName", "resourceClaimTemplateName")
    ),
    over_budget(
        "a service of a NIMPipeline", "nim_pipeline", 4, ("0/spec/services/1/spec/replicas", 50)
    ),
    *(
        over_budget(
            f"{field} of a TaskRun",
            "tekton_task_run",
            8,
            (f"0/spec/{field}", [{"name": "a", name: {"limits": {"nvidia.com/gpu": 50}}}]),
        )
        for field, name in (
            ("sidecarSpecs", "computeResources"),
            ("stepOverrides", "resources"),
            ("sidecarOverrides", "resources"),
        )
    ),
    *(
        over_budget(
            f"the custom {field} in Dynamo",
            "dynamo_services",
            8,
            (f"0/spec/services/Frontend/resources/{field}/custom", {"amd.com/gpu": "50"}),
        )
        for field in ("requests", "limits")
    ),
    over_budget("a Dynamo component", "dynamo_components", 3, ("0/spec/components/1/replicas", 50)),
    over_budget("a Dynamo service", "dynamo_services", 8, ("0/spec/services/prefill/replicas", 50)),
    over_budget(
        "the nodes of a Dynamo service",
        "dynamo_services",
        8,
        ("0/spec/services/decode/multinode/nodeCount", 50),
    ),
]
