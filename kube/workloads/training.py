"""Training and batch kinds: Kubeflow, KubeRay, JobSet, LeaderWorkerSet and Kueue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kube.names import LEADER_WORKER_SET_GROUP, QUEUE_ANNOTATION
from kube.workloads.control import ClaimTemplates, Job, Rollout, RuntimeReference
from kube.workloads.kubernetes import BATCH_ROLES, CONCURRENCY, NOT_RUN, REPLICAS, job_count
from kube.workloads.record import Count, Pods, Role, WorkloadKind
from kube.workloads.serving import PROBES

_ROLES: Final[tuple[Role, ...]] = ("training", "serving", "batch", "interactive")
_POD: Final = "template.spec"


_TRAINING_OPERATOR: Final = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
    "MXJob": "mxReplicaSpecs",
}


# The operator's default restart policy is OnFailure for these kinds, and Never for all other kinds.
_ON_FAILURE_KINDS: Final = ("PyTorchJob", "PaddleJob")


def _replica(specs: str, name: str, maximum: tuple[str, ...] = (), *, restart: str) -> Pods:
    at = f"spec.{specs}.{name}"
    count = Count(paths=(f"{at}.replicas",), maxima=maximum)
    return Pods(
        at=f"{at}.{_POD}",
        priority=("spec.runPolicy.schedulingPolicy.priorityClass",),
        count=(count,),
        restart=f"{at}.restartPolicy",
        restart_default=restart,
    )


def _training_operator() -> Iterator[WorkloadKind]:
    for kind, specs in _TRAINING_OPERATOR.items():
        default = "OnFailure" if kind in _ON_FAILURE_KINDS else "Never"
        maximum = ("spec.elasticPolicy.maxReplicas",)
        workers = _replica(specs, "Worker", maximum, restart=default)
        # The restart policy of a v2beta1 MPIJob's launcher defaults to OnFailure.
        other_replicas = _replica(specs, "*", restart="OnFailure" if kind == "MPIJob" else default)
        yield WorkloadKind(
            group="kubeflow.org",
            kind=kind,
            pods=(workers, other_replicas),
            roles=BATCH_ROLES,
            ends=True,
            always=True,
            suspend=("spec.runPolicy.suspend",),
            job=Job(
                at="spec.runPolicy",
                queue="schedulingPolicy.queue",
                gang="schedulingPolicy.minAvailable",
                whole=True,
                retries="backoffLimit",
                retries_default=False,
                each_pod=True,
                extra=1,  # The operator fails a job when its retries reach the limit.
                deadline="activeDeadlineSeconds",
            ),
        )


def _job_set(spec: str) -> Pods:
    job = f"{spec}.replicatedJobs.*"
    replicas = Count(paths=(f"{job}.replicas",))
    return Pods(at=f"{job}.{_POD}.{_POD}", count=(replicas, job_count(f"{job}.{_POD}")))


_RESTARTS: Final = "failurePolicy.maxRestarts"
_PATCH_POD: Final = f"trainingRuntimeSpec.{_POD}.replicatedJobs.*.{_POD}.{_POD}"


def _train_job(spec: str) -> tuple[Pods, ...]:
    overrides = (
        f"{spec}.podTemplateOverrides.*.spec",
        f"{spec}.podSpecOverrides.*",
        f"{spec}.runtimePatches.*.{_PATCH_POD}",
    )
    return (
        Pods(
            at=f"{spec}.trainer",
            containers=("",),
            fields={"resources": "resourcesPerNode"},
            count=(Count(paths=(f"{spec}.trainer.numNodes",), elsewhere=True),),
            partial=True,
        ),
        *(Pods(at=at, count=NOT_RUN, override=True) for at in overrides),
        *(
            # Overrides that change only metadata.
            Pods(at=at, metadata=f"{at}.metadata", count=NOT_RUN, partial=True, additional=True)
            for at in (
                f"{spec}.podTemplateOverrides.*",
                f"{spec}.runtimePatches.*.{_PATCH_POD.removesuffix('.spec')}",
            )
        ),
    )


def _queue_overrides(spec: str) -> tuple[str, ...]:
    """Return the paths of annotations that override the queue of a runtime's PodGroup."""
    patch = f"{spec}.runtimePatches.*.trainingRuntimeSpec.template.metadata"
    return tuple(f"{at}.annotations[{QUEUE_ANNOTATION}]" for at in (spec, patch))


KUBEFLOW: Final = [
    *_training_operator(),
    *(
        WorkloadKind(
            group="trainer.kubeflow.org",
            kind=kind,
            pods=(_job_set("spec.template.spec"),),
            roles=BATCH_ROLES,
            ends=True,
            always=True,
            job=Job(
                grouped="podGroupPolicy.volcano",
                group_queue=f"template.metadata.annotations[{QUEUE_ANNOTATION}]",
                retries=f"{_POD}.{_RESTARTS}",
            ),
            namespaced=kind == "TrainingRuntime",
            completed=True,
        )
        for kind in ("TrainingRuntime", "ClusterTrainingRuntime")
    ),
    WorkloadKind(
        group="trainer.kubeflow.org",
        kind="TrainJob",
        pods=_train_job("spec"),
        runs=RuntimeReference(
            kind="spec.runtimeRef.kind",
            name="spec.runtimeRef.name",
            kind_default="ClusterTrainingRuntime",
            nodes="spec.trainer.numNodes",
            nodes_default="spec.mlPolicy.numNodes",
        ),
        opaque=_queue_overrides("spec"),
        roles=BATCH_ROLES,
        ends=True,
        always=True,
    ),
    WorkloadKind(
        group="trainer.kubeflow.org",
        kind="OptimizationJob",
        pods=_train_job("spec.trainJobTemplate.spec"),
        opaque=_queue_overrides("spec.trainJobTemplate.spec"),
        roles=BATCH_ROLES,
        ends=True,
        always=True,
    ),
    # Katib creates one object, of a configurable kind, for each trial.
    *(
        WorkloadKind(
            group="kubeflow.org",
            kind=kind,
            pods=(
                Pods(at=collector, containers=("customCollector",), count=NOT_RUN, partial=True),
            ),
            objects=objects,
            copies=copies,
            shares_namespace=True,
            opaque=("spec.trialTemplate.configMap",),
        )
        for kind, collector, objects, copies in (
            (
                "Experiment",
                "spec.metricsCollectorSpec.collector",
                ("spec.trialTemplate.trialSpec",),
                Count(paths=("spec.parallelTrialCount",), default=3),
            ),
            ("Trial", "spec.metricsCollector.collector", ("spec.runSpec",), None),
        )
    ),
    # Kubeflow adds the fields of a PodDefault to the pods that the PodDefault selects.
    WorkloadKind(
        group="kubeflow.org",
        kind="PodDefault",
        pods=(
            Pods(
                at="spec",
                containers=("", "sidecars.*"),
                copied=("spec",),
                count=NOT_RUN,
                partial=True,
            ),
        ),
    ),
    WorkloadKind(
        group="kubeflow.org",
        kind="Notebook",
        pods=(Pods(at="spec.template.spec", copied=("metadata",)),),
        roles=("interactive",),
        ends=False,
    ),
]


_RAY_PRIORITY: Final = ("metadata.labels[ray.io/priority-class-name]",)


def _ray(cluster: str, *submitters: str, outer: tuple[Count, ...] = ()) -> tuple[Pods, ...]:
    """Return the pods of a Ray cluster, and the pods at the paths in `submitters`.

    KubeRay adds readiness and liveness probes to the first container of the head and each
    worker. No startup probe is needed, because Ray answers these probes before it loads a model.
    """
    group = f"{cluster}.workerGroupSpecs.*"
    workers = (
        Count(
            paths=(f"{group}.replicas", f"{group}.minReplicas"),
            maxima=(f"{group}.maxReplicas",),
            default=None,
        ),
        Count(paths=(f"{group}.numOfHosts",)),
    )
    return (
        *(
            Pods(
                at=f"{at}.{_POD}",
                priority=_RAY_PRIORITY,
                count=count,
                supplied=PROBES,
                first_supplied=True,
            )
            for at, count in ((f"{cluster}.headGroupSpec", outer), (group, (*outer, *workers)))
        ),
        *(Pods(at=at, priority=_RAY_PRIORITY, count=outer) for at in submitters),
        # Containers that the operator adds to the head pod.
        Pods(
            at=cluster,
            containers=("autoscalerOptions", "historyServerOptions.collectorOptions"),
            count=NOT_RUN,
            partial=True,
        ),
    )


RAY: Final = [
    WorkloadKind(group="ray.io", kind="RayCluster", pods=_ray("spec"), roles=_ROLES, ends=False),
    WorkloadKind(
        group="ray.io",
        kind="RayJob",
        pods=_ray("spec.rayClusterSpec", "spec.submitterPodTemplate.spec"),
        roles=BATCH_ROLES,
        ends=True,
        job=Job(retries="backoffLimit"),
    ),
    WorkloadKind(
        group="ray.io",
        kind="RayCronJob",
        pods=_ray(
            "spec.jobTemplate.rayClusterSpec",
            "spec.jobTemplate.submitterPodTemplate.spec",
            outer=(CONCURRENCY,),
        ),
        roles=BATCH_ROLES,
        ends=True,
        job=Job(at="spec.jobTemplate", retries="backoffLimit"),
    ),
    WorkloadKind(
        group="ray.io",
        kind="RayService",
        pods=_ray("spec.rayClusterConfig"),
        roles=("serving",),
        ends=False,
        # An update starts a second cluster before it stops the first one.
        rollout=Rollout(double="spec.upgradeStrategy.type", single=("None",)),
    ),
]


def _leader_worker_set(spec: str, labels: Mapping[str, str]) -> tuple[Pods, ...]:
    template = f"{spec}.leaderWorkerTemplate"
    replicas = Count(paths=(f"{spec}.replicas",))
    leader = f"{template}.leaderTemplate"
    # The size includes the leader.
    workers = Count(paths=(f"{template}.size",), less_with=leader)
    return (
        Pods(at=f"{leader}.spec", labels=labels, count=(replicas,)),
        Pods(at=f"{template}.workerTemplate.spec", labels=labels, count=(replicas, workers)),
    )


SETS: Final = [
    WorkloadKind(
        group="jobset.x-k8s.io",
        kind="JobSet",
        pods=(_job_set("spec"),),
        roles=BATCH_ROLES,
        ends=True,
        job=Job(retries=_RESTARTS),
        claims=(
            ClaimTemplates(
                at="spec.volumeClaimPolicies.*.templates.*", spec="spec", name="metadata.name"
            ),
        ),
    ),
    WorkloadKind(
        group=LEADER_WORKER_SET_GROUP,
        kind="LeaderWorkerSet",
        pods=_leader_worker_set("spec", {"leaderworkerset.sigs.k8s.io/name": "{name}"}),
        roles=("serving", "training", "batch"),
        ends=False,
        rollout=Rollout(
            at="spec.rolloutStrategy.rollingUpdateConfiguration", stopping=(), unavailable=1
        ),
        claims=(
            ClaimTemplates(
                at="spec.leaderWorkerTemplate.volumeClaimTemplates.*",
                spec="spec",
                name="metadata.name",
            ),
        ),
    ),
    WorkloadKind(
        group="disaggregatedset.x-k8s.io",
        kind="DisaggregatedSet",
        pods=_leader_worker_set("spec.roles.*.spec", {}),
        roles=("serving",),
        ends=False,
    ),
    # Kueue's description of pods that another object runs.
    WorkloadKind(
        group="kueue.x-k8s.io",
        kind="Workload",
        pods=(Pods(at="spec.podSets.*.template.spec", count=NOT_RUN),),
    ),
]

HYPERPOD: Final = [
    WorkloadKind(
        group="sagemaker.amazonaws.com",
        kind="HyperPodPyTorchJob",
        pods=(
            Pods(
                at=f"spec.replicaSpecs.*.{_POD}",
                count=(
                    Count(
                        paths=("spec.replicaSpecs.*.replicas",),
                        maxima=(
                            "spec.replicaSpecs.*.maxReplicas",
                            "spec.elasticPolicy.maxReplicas",
                        ),
                    ),
                ),
            ),
        ),
        roles=BATCH_ROLES,
        ends=True,
        always=True,
        job=Job(at="spec.runPolicy", retries="jobMaxRetryCount", retries_default=False),
    )
]

_AIBRIX: Final = "orchestration.aibrix.ai"


def _role_set(spec: str, *outer: Count) -> Pods:
    """Return the pods of AIBrix's role sets; `podGroupSize` pods form one replica of a role."""
    role = f"{spec}.roles.*"
    replicas = Count(paths=(f"{role}.replicas",), part=f"{role}.name")
    size = Count(paths=(f"{role}.podGroupSize",))
    return Pods(at=f"{role}.{_POD}", count=(*outer, replicas, size))


AIBRIX: Final = [
    WorkloadKind(
        group=_AIBRIX, kind="RoleSet", pods=(_role_set("spec"),), roles=("serving",), ends=False
    ),
    WorkloadKind(
        group=_AIBRIX,
        kind="StormService",
        pods=(_role_set("spec.template.spec", REPLICAS),),
        roles=("serving",),
        ends=False,
    ),
    *(
        WorkloadKind(
            group=_AIBRIX,
            kind=kind,
            pods=_ray("spec.template.spec", outer=(REPLICAS,)),
            roles=("serving",),
            ends=False,
        )
        for kind in ("RayClusterFleet", "RayClusterReplicaSet")
    ),
]

# Sandboxes of the Kubernetes agent-sandbox project. Each Sandbox runs one pod.
SANDBOXES: Final = [
    WorkloadKind(
        group=group,
        kind=kind,
        pods=(Pods(at="spec.podTemplate.spec", count=(count,)),),
        roles=("interactive",),
        ends=False,
        claims=(
            ClaimTemplates(at="spec.volumeClaimTemplates.*", spec="spec", name="metadata.name"),
        ),
    )
    for group, kind, count in (
        ("agents.x-k8s.io", "Sandbox", Count(paths=("spec.replicas",))),
        # Claims and warm pools may create any number of sandboxes.
        ("extensions.agents.x-k8s.io", "SandboxTemplate", Count(paths=(), default=None)),
    )
]

KINDS: Final = [*KUBEFLOW, *RAY, *SETS, *HYPERPOD, *AIBRIX, *SANDBOXES]
