"""Serving kinds: KServe, Knative, Argo Rollouts, Grove, Kthena and RoleBasedGroup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kube.workloads.control import DEFAULT_ROLLOUT, Job, Proxy, Rollout, Scaler
from kube.workloads.kubernetes import NOT_RUN, REPLICAS, TEMPLATE, job_count
from kube.workloads.record import Count, Pods, Role, WorkloadKind

PROBES: Final = ("readinessProbe", "livenessProbe", "startupProbe")
SERVING: Final[tuple[Role, ...]] = ("serving",)
# Model formats, which are field names in KServe's oldest predictor API.
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


_MODE: Final = "serving.kserve.io/deploymentMode"
_NAME_LABEL: Final = "serving.kserve.io/inferenceservice"


def _components() -> Iterator[Pods]:
    """Yield the pods of an InferenceService. Without `maxReplicas`, their number is unlimited."""
    for name in ("predictor", "transformer", "explainer"):
        at = f"spec.{name}"
        strategy = f"{at}.deploymentStrategy"
        replicas = Count(
            paths=(f"{at}.minReplicas",),
            maxima=(f"{at}.maxReplicas",),
            default=None,
            rollout=Rollout(
                at=f"{strategy}.rollingUpdate",
                type=f"{strategy}.type",
                surge="25%",
                # Knative keeps the old revision running until its traffic has moved to the new one.
                double=f"metadata.annotations[{_MODE}]",
                single=("RawDeployment", "Standard", "ModelMesh"),
            ),
        )
        yield Pods(
            at=at,
            containers=_MODELS,
            metadata=at,
            copied=("metadata",),
            labels={_NAME_LABEL: "{name}", "component": name},
            count=(replicas,),
            images=(*(f"{model}.storageUri" for model in _MODELS), "storageUris.*.uri"),
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
        copied=("metadata", "spec.predictor"),
        labels={_NAME_LABEL: "{name}", "component": "predictor"},
        partial=True,
    )


def _llm_pods(at: str, metadata: str, *count: Count) -> Pods:
    """Return pods with the image, probes and /dev/shm volume that KServe's configuration adds."""
    return Pods(
        at=at,
        metadata=metadata,
        copied=("metadata",),
        labels={
            "app.kubernetes.io/name": "{name}",
            "app.kubernetes.io/part-of": "llminferenceservice",
            "kserve.io/component": "workload",
        },
        count=count,
        supplied=("image", *PROBES, "volumeMounts"),
        partial=True,
    )


def _llm() -> Iterator[Pods]:
    models = ("uri", "lora.adapters.*.uri")
    yield Pods(at="spec.model", images=models, count=NOT_RUN, partial=True)
    for at in ("spec", "spec.prefill"):
        paths, maxima = (f"{at}.replicas",), (f"{at}.scaling.maxReplicas",)
        replicas = Count(paths=paths, maxima=maxima)
        # If there are workers, a replica spans several nodes.
        nodes = (
            Count(paths=(f"{at}.parallelism.pipeline",), less_with=f"{at}.template"),
            Count(
                paths=(f"{at}.parallelism.data",),
                divisor=f"{at}.parallelism.dataLocal",
                less_with=f"{at}.template",
            ),
        )
        # If there are workers, a LeaderWorkerSet runs the pods, and its updates do not start
        # additional pods.
        update = replace(DEFAULT_ROLLOUT, without=f"{at}.worker")
        updated = Count(paths=paths, maxima=maxima, rollout=update)
        yield _llm_pods(f"{at}.template", at, updated)
        yield _llm_pods(f"{at}.worker", at, replicas, *nodes)
    scheduler = "spec.router.scheduler"
    replicas = Count(paths=(f"{scheduler}.replicas",))
    yield Pods(at=f"{scheduler}.template", count=(replicas,), supplied=("image",), partial=True)
    yield Pods(at=f"{scheduler}.tokenizer.template", partial=True)


KSERVE: Final = [
    WorkloadKind(
        group="serving.kserve.io",
        kind="InferenceService",
        pods=tuple(_components()),
        roles=SERVING,
        ends=False,
        proxy=Proxy(annotation=_MODE, values=("Serverless", "Knative")),
    ),
    WorkloadKind(
        group="serving.kserve.io",
        kind="LLMInferenceService",
        pods=tuple(_llm()),
        roles=SERVING,
        ends=False,
    ),
    WorkloadKind(
        group="serving.kserve.io",
        kind="LLMInferenceServiceConfig",
        pods=tuple(
            Pods(
                at=pods.at,
                copied=(pods.metadata,) if pods.metadata else (),
                count=NOT_RUN,
                partial=True,
            )
            for pods in _llm()
        ),
        roles=SERVING,
        ends=False,
    ),
    *(
        WorkloadKind(
            group="serving.kserve.io",
            kind=kind,
            pods=tuple(
                Pods(at=at, metadata=at, count=NOT_RUN) for at in ("spec", "spec.workerSpec")
            ),
            roles=SERVING,
            ends=False,
            namespaced=kind == "ServingRuntime",
        )
        for kind in ("ServingRuntime", "ClusterServingRuntime")
    ),
    *(
        WorkloadKind(
            group="serving.kserve.io",
            kind=kind,
            pods=(Pods(at="spec", images=(uri,), count=NOT_RUN, partial=True),),
            roles=SERVING,
            ends=False,
            namespaced=kind != "LocalModelCache",
        )
        for kind, uri in (
            ("TrainedModel", "model.storageUri"),
            ("LocalModelCache", "sourceModelUri"),
            ("LocalModelNamespaceCache", "sourceModelUri"),
        )
    ),
    WorkloadKind(
        group="serving.kserve.io",
        kind="InferenceGraph",
        pods=(Pods(at="spec", count=NOT_RUN, partial=True, additional=True),),
        roles=SERVING,
        ends=False,
    ),
    WorkloadKind(
        group="serving.kserve.io",
        kind="ClusterStorageContainer",
        pods=(Pods(at="", containers=("spec.container",), count=NOT_RUN, partial=True),),
        namespaced=False,
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
            pods=(
                Pods(
                    at=TEMPLATE,
                    labels={f"serving.knative.dev/{kind.lower()}": "{name}"},
                    count=(_REVISIONS,),
                ),
            ),
            roles=SERVING,
            ends=False,
            proxy=Proxy(),
            # The old revision keeps running until its traffic has moved to the new one.
            rollout=Rollout(double="spec.template"),
        )
        for kind in ("Service", "Configuration")
    ),
    WorkloadKind(
        group="serving.knative.dev",
        kind="Revision",
        pods=(Pods(at="spec", count=NOT_RUN),),
        roles=SERVING,
        ends=False,
        proxy=Proxy(),
    ),
]


def _analysis(kind: str) -> WorkloadKind:
    spec = "spec.metrics.*.provider.job.spec"
    pods = Pods(at=f"{spec}.template.spec", count=(job_count(spec),))
    return WorkloadKind(
        group="argoproj.io",
        kind=kind,
        pods=(pods,),
        roles=("batch", "training"),
        ends=True,
        namespaced=kind != "ClusterAnalysisTemplate",
    )


ROLLOUTS: Final = [
    WorkloadKind(
        group="argoproj.io",
        kind="Rollout",
        pods=(Pods(at=TEMPLATE, count=(REPLICAS,)),),
        # A Rollout can take over a Deployment's pods and scale them.
        scaler=Scaler(
            target="spec.workloadRef",
            minimum="spec.replicas",
            maximum="spec.replicas",
            exclusive=False,
        ),
        rollout=Rollout(
            at="spec.strategy.canary",
            surge="25%",
            unavailable="25%",
            double="spec.strategy.blueGreen",
            routed="spec.strategy.canary.trafficRouting",
            added=(
                "spec.strategy.canary.steps.*.setCanaryScale.replicas",
                "spec.strategy.canary.steps.*.experiment.templates.*.replicas",
            ),
        ),
    ),
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


_CLIQUE: Final = "spec.template.cliques.*"
_SCALING_GROUP: Final = "spec.template.podCliqueScalingGroups.*"

# Grove. A scaling group multiplies the pods of the cliques that it names.
GROVE: Final = [
    WorkloadKind(
        group="grove.io",
        kind="PodCliqueSet",
        pods=(
            Pods(
                at=f"{_CLIQUE}.spec.podSpec",
                metadata=_CLIQUE,
                priority=("spec.template.priorityClassName",),
                count=(
                    REPLICAS,
                    Count(
                        paths=(f"{_CLIQUE}.spec.replicas",),
                        maxima=(f"{_CLIQUE}.spec.autoScalingConfig.maxReplicas",),
                    ),
                    Count(
                        paths=(f"{_SCALING_GROUP}.replicas",),
                        maxima=(f"{_SCALING_GROUP}.scaleConfig.maxReplicas",),
                        member=f"{_CLIQUE}.name",
                        members=f"{_SCALING_GROUP}.cliqueNames",
                    ),
                ),
            ),
        ),
        roles=SERVING,
        ends=False,
        # Claims that the operator adds to pods.
        opaque=tuple(f"{at}.resourceSharing" for at in ("spec.template", _CLIQUE, _SCALING_GROUP)),
    )
]


def _entry_and_workers() -> Iterator[Pods]:
    """Yield the pods of a ModelServing. Each replica of a role has one entry pod."""
    role = "spec.template.roles.*"
    replicas = REPLICAS, Count(paths=(f"{role}.replicas",))
    entry = f"{role}.entryTemplate"
    yield Pods(at=f"{entry}.spec", count=replicas)
    # The last count is 1 and only marks the entry pod as the leader: `workerReplicas` excludes it.
    workers = Count(paths=(f"{role}.workerReplicas",)), Count(paths=(), less_with=entry)
    yield Pods(at=f"{role}.workerTemplate.spec", count=(*replicas, *workers))


KTHENA: Final = [
    WorkloadKind(
        group="workload.serving.volcano.sh",
        kind="ModelServing",
        pods=tuple(_entry_and_workers()),
        roles=SERVING,
        ends=False,
        job=Job(scheduler="schedulerName"),
    )
]

_ROLE_TEMPLATES: Final = {
    "template": "leaderWorkerSet.size",  # v1alpha1
    "components.*.template": "components.*.size",  # v1alpha1
    "standalonePattern.template": "",
    "leaderWorkerPattern.template": "leaderWorkerPattern.size",
    "customComponentsPattern.components.*.template": "customComponentsPattern.components.*.size",
}
"""Maps the path of each pod template in a role to the path of its number of pods per replica."""
_ROLE_PATCHES: Final = (
    *("templateRef", "leaderWorkerSet.patchLeaderTemplate", "leaderWorkerSet.patchWorkerTemplate"),
    *("standalonePattern.templateRef", "leaderWorkerPattern.templateRef"),
    *("leaderWorkerPattern.leaderTemplatePatch", "leaderWorkerPattern.workerTemplatePatch"),
)
"""Fields of a role that refer to a pod template elsewhere, or change the pod template."""


def _role_group(kind: str, *groups: str) -> WorkloadKind:
    """Return the record of a kind with groups of roles at the paths in `groups`."""
    outer = () if kind == "RoleBasedGroup" else (REPLICAS,)
    pods = []
    for group in groups:
        for template, size in _ROLE_TEMPLATES.items():
            sizes = (Count(paths=(f"{group}.roles.*.{size}",)),) if size else ()
            role = f"{group}.roles.*"
            update = Rollout(at=f"{role}.rolloutStrategy.rollingUpdate")
            replicas = Count(paths=(f"{role}.replicas",), part=f"{role}.name", rollout=update)
            at = f"{group}.roles.*.{template}.spec"
            pods.append(Pods(at=at, count=(*outer, replicas, *sizes)))
        pods.append(Pods(at=f"{group}.roleTemplates.*.template.spec", count=NOT_RUN))
    return WorkloadKind(
        group="workloads.x-k8s.io",
        kind=kind,
        pods=tuple(pods),
        roles=SERVING,
        ends=False,
        opaque=tuple(f"{group}.roles.*.{field}" for group in groups for field in _ROLE_PATCHES),
        adapter="RoleBasedGroupScalingAdapter",
    )


ROLE_GROUPS: Final = [
    _role_group("RoleBasedGroup", "spec"),
    # v1alpha1 uses the second path.
    _role_group("RoleBasedGroupSet", "spec.groupTemplate.spec", "spec.template"),
]

KINDS: Final = [*KSERVE, *KNATIVE, *ROLLOUTS, *GROVE, *KTHENA, *ROLE_GROUPS]
