"""Kinds that serve: KServe, Knative, Argo Rollouts, NVIDIA NIM, Dynamo and the GPU Operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kube.workloads.kubernetes import NOT_RUN, REPLICAS, TEMPLATE, job_count
from kube.workloads.record import Count, Devices, Pods, Role, WorkloadKind

_SERVING: Final[tuple[Role, ...]] = ("serving",)
# Names of model formats: fields of KServe's first predictors.
_MODELS: Final = (
    "model",
    "sklearn",
    "xgboost",
    "tensorflow",
    "pytorch",
    "triton",
    "onnx",
    "huggingface",
    "pmml",
    "lightgbm",
    "paddle",
    "alibi",
    "art",
    "feast",
    "mlserver",
)


def _components() -> Iterator[Pods]:
    """Yield the pods of an InferenceService; without a maximum, Knative scales without limit."""
    for name in ("predictor", "transformer", "explainer"):
        at = f"spec.{name}"
        replicas = Count(paths=(f"{at}.minReplicas",), maxima=(f"{at}.maxReplicas",), default=None)
        yield Pods(
            at=at,
            containers=_MODELS,
            metadata=at,
            count=(replicas,),
            images=tuple(f"{model}.storageUri" for model in _MODELS),
            partial=True,
        )
    workers = Count(
        paths=("spec.predictor.workerSpec.pipelineParallelSize",), less_with="spec.predictor"
    )
    yield Pods(
        at="spec.predictor.workerSpec",
        count=(
            Count(
                paths=("spec.predictor.minReplicas",),
                maxima=("spec.predictor.maxReplicas",),
                default=None,
            ),
            workers,
        ),
        partial=True,
    )


def _llm_pods(at: str, metadata: str, *count: Count) -> Pods:
    """Return pods to which KServe's own configuration adds the probes."""
    probes = ("readinessProbe", "livenessProbe", "startupProbe")
    return Pods(at=at, metadata=metadata, count=count, supplied=probes, partial=True)


def _llm() -> Iterator[Pods]:
    for at in ("spec", "spec.prefill"):
        replicas = Count(paths=(f"{at}.replicas",), maxima=(f"{at}.scaling.maxReplicas",))
        # With workers, a replica is a group of nodes.
        nodes = (
            Count(paths=(f"{at}.parallelism.pipeline",), less_with=f"{at}.template"),
            Count(
                paths=(f"{at}.parallelism.data",),
                divisor=f"{at}.parallelism.dataLocal",
                less_with=f"{at}.template",
            ),
        )
        yield _llm_pods(f"{at}.template", at, replicas)
        yield _llm_pods(f"{at}.worker", at, replicas, *nodes)
    scheduler = "spec.router.scheduler"
    replicas = Count(paths=(f"{scheduler}.replicas",))
    yield Pods(at=f"{scheduler}.template", count=(replicas,), partial=True)
    yield Pods(at=f"{scheduler}.tokenizer.template", partial=True)


KSERVE: Final = [
    WorkloadKind(
        group="serving.kserve.io",
        kind="InferenceService",
        pods=tuple(_components()),
        roles=_SERVING,
        ends=False,
    ),
    WorkloadKind(
        group="serving.kserve.io",
        kind="LLMInferenceService",
        pods=tuple(_llm()),
        roles=_SERVING,
        ends=False,
    ),
    WorkloadKind(
        group="serving.kserve.io",
        kind="LLMInferenceServiceConfig",
        pods=tuple(Pods(at=pods.at, count=NOT_RUN, partial=True) for pods in _llm()),
        roles=_SERVING,
        ends=False,
    ),
    *(
        WorkloadKind(
            group="serving.kserve.io",
            kind=kind,
            pods=tuple(
                Pods(at=at, metadata=at, count=NOT_RUN) for at in ("spec", "spec.workerSpec")
            ),
            roles=_SERVING,
            ends=False,
            namespaced=kind == "ServingRuntime",
        )
        for kind in ("ServingRuntime", "ClusterServingRuntime")
    ),
    WorkloadKind(group="serving.kserve.io", kind="InferenceGraph"),
    WorkloadKind(
        group="serving.kserve.io",
        kind="ClusterStorageContainer",
        pods=(Pods(at="", containers=("spec.container",), count=NOT_RUN, partial=True),),
    ),
]

_REVISIONS: Final = Count(
    paths=(),
    maxima=("spec.template.metadata.annotations[autoscaling.knative.dev/max-scale]",),
    default=None,
)

KNATIVE: Final = [
    *(
        WorkloadKind(
            group="serving.knative.dev",
            kind=kind,
            pods=(Pods(at=TEMPLATE, count=(_REVISIONS,)),),
            roles=_SERVING,
            ends=False,
        )
        for kind in ("Service", "Configuration")
    ),
    WorkloadKind(
        group="serving.knative.dev",
        kind="Revision",
        pods=(Pods(at="spec", count=NOT_RUN),),
        roles=_SERVING,
        ends=False,
    ),
]


def _analysis(kind: str) -> WorkloadKind:
    spec = "spec.metrics.*.provider.job.spec"
    pods = Pods(at=f"{spec}.template.spec", count=(job_count(spec),))
    return WorkloadKind(
        group="argoproj.io", kind=kind, pods=(pods,), roles=("batch", "training"), ends=True
    )


ROLLOUTS: Final = [
    WorkloadKind(group="argoproj.io", kind="Rollout", pods=(Pods(at=TEMPLATE, count=(REPLICAS,)),)),
    WorkloadKind(
        group="argoproj.io",
        kind="Experiment",
        pods=(
            Pods(
                at="spec.templates.*.template.spec",
                count=(Count(paths=("spec.templates.*.replicas",)),),
            ),
        ),
    ),
    *(_analysis(kind) for kind in ("AnalysisRun", "AnalysisTemplate", "ClusterAnalysisTemplate")),
]


def _nim(spec: str) -> Pods:
    """Return the pods of a NIM service; the operator adds what the object does not state."""
    return Pods(
        at=spec,
        containers=("", "sidecarContainers.*"),
        metadata=spec,
        count=(
            Count(paths=(f"{spec}.replicas",), maxima=(f"{spec}.scale.hpa.maxReplicas",)),
            Count(paths=(f"{spec}.multiNode.parallelism.pipeline",)),
        ),
        partial=True,
    )


def _images(at: str, *images: str) -> Pods:
    """Return pods of which an object states only the images."""
    return Pods(at=at, images=images, count=NOT_RUN, partial=True)


_NEMO: Final = ("NemoCustomizer", "NemoDatastore", "NemoEntitystore", "NemoEvaluator")
NIM: Final = [
    *(
        WorkloadKind(
            group="apps.nvidia.com", kind=kind, pods=(_nim("spec"),), roles=_SERVING, ends=False
        )
        for kind in ("NIMService", *_NEMO, "NemoGuardrail")
    ),
    WorkloadKind(
        group="apps.nvidia.com",
        kind="NIMPipeline",
        pods=(_nim("spec.services.*.spec"),),
        roles=_SERVING,
        ends=False,
    ),
    WorkloadKind(
        group="apps.nvidia.com",
        kind="NIMCache",
        pods=(
            Pods(
                at="spec.source",
                images=("ngc.modelPuller", "dataStore.modelPuller"),
                count=NOT_RUN,
                partial=True,
            ),
        ),
    ),
    WorkloadKind(group="apps.nvidia.com", kind="NIMBuild", pods=(_images("spec", "image"),)),
]


def _dynamo(component: str) -> Iterator[Pods]:
    """Yield the pods of a component, in the first and the second version of the API."""
    replicas = (
        Count(paths=(f"{component}.replicas",), maxima=(f"{component}.autoscaling.maxReplicas",)),
        Count(paths=(f"{component}.multinode.nodeCount",)),
    )
    yield Pods(
        at=f"{component}.extraPodSpec",
        containers=("mainContainer",),
        metadata=f"{component}.extraPodMetadata",
        count=replicas,
        partial=True,
    )
    yield Pods(
        at=component,
        metadata=component,
        count=replicas,
        devices=(
            # The limits count where both are stated.
            Devices(each="resources.requests", resource="nvidia.com/gpu", count="gpu"),
            Devices(each="resources.limits", resource="nvidia.com/gpu", count="gpu"),
        ),
        machine=True,
    )
    yield Pods(at=f"{component}.podTemplate.spec", count=replicas, partial=True)


DYNAMO: Final = [
    WorkloadKind(
        group="nvidia.com",
        kind="DynamoGraphDeployment",
        pods=(*_dynamo("spec.services.*"), *_dynamo("spec.components.*")),
        roles=_SERVING,
        ends=False,
    ),
    WorkloadKind(
        group="nvidia.com",
        kind="DynamoComponentDeployment",
        pods=tuple(_dynamo("spec")),
        roles=_SERVING,
        ends=False,
    ),
    WorkloadKind(
        group="nvidia.com",
        kind="DynamoGraphDeploymentRequest",
        unseen="it makes a DynamoGraphDeployment of a profile",
    ),
]

_OPERANDS: Final = (
    "driver",
    "driver.manager",
    "toolkit",
    "devicePlugin",
    "dcgm",
    "dcgmExporter",
    "nodeStatusExporter",
    "gfd",
    "migManager",
    "validator",
    "gdrcopy",
    "gds",
    "vgpuManager",
    "vgpuManager.driverManager",
    "vgpuDeviceManager",
    "vfioManager",
    "vfioManager.driverManager",
    "kataManager",
    "kataSandboxDevicePlugin",
    "sandboxDevicePlugin",
    "ccManager",
    "operator.initContainer",
)

GPU_OPERATOR: Final = [
    WorkloadKind(group="nvidia.com", kind="ClusterPolicy", pods=(_images("spec", *_OPERANDS),)),
    WorkloadKind(
        group="nvidia.com",
        kind="GPUCluster",
        pods=(_images("spec", "dcgm", "dcgmExporter", "draDriver"),),
    ),
    WorkloadKind(
        group="nvidia.com",
        kind="NVIDIADriver",
        pods=(_images("spec", "", "gdrcopy", "gds", "manager"),),
    ),
]

KINDS: Final = [*KSERVE, *KNATIVE, *ROLLOUTS, *NIM, *DYNAMO, *GPU_OPERATOR]
