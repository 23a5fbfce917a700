"""Kubernetes' built-in kinds, and kinds that refer to devices or images but run no pods."""

from __future__ import annotations

from typing import Final

from kube.workloads.control import ClaimTemplates, Job, Rollout, Scaler
from kube.workloads.record import Count, Pods, Role, WorkloadKind

TEMPLATE: Final = "spec.template.spec"
BATCH_ROLES: Final[tuple[Role, ...]] = ("training", "batch")
REPLICAS: Final = Count(paths=("spec.replicas",))
NOT_RUN: Final = (Count(paths=(), default=0),)
"""Pod count of objects that specify pods for other objects, but run no pods themselves."""

CONCURRENCY: Final = Count(
    paths=("spec.concurrencyPolicy",), words={"Forbid": 1, "Replace": 1}, default=None
)


def job_count(spec: str) -> Count:
    """Return the number of pods that a Job runs in parallel."""
    return Count(paths=(f"{spec}.parallelism",), limit=f"{spec}.completions")


def batch_job(at: str) -> Job:
    """Return the record for the Job specification at a path."""
    return Job(
        at=at,
        member_annotation=at == "spec",
        retries="backoffLimit",
        retries_default=False,
        retries_each="backoffLimitPerIndex",
        each_pod=True,
        deadline="activeDeadlineSeconds",
    )


_CRON_JOB: Final = "spec.jobTemplate.spec"

WORKLOADS: Final = [
    WorkloadKind(group="", kind="Pod", pods=(Pods(at="spec"),), awaited=True),
    WorkloadKind(group="", kind="PodTemplate", pods=(Pods(at="template.spec", count=NOT_RUN),)),
    *(
        WorkloadKind(group=group, kind=kind, pods=(Pods(at=TEMPLATE, count=(REPLICAS,)),))
        for group, kind in [("", "ReplicationController"), ("apps", "ReplicaSet")]
    ),
    WorkloadKind(
        group="apps",
        kind="Deployment",
        pods=(Pods(at=TEMPLATE, count=(REPLICAS,)),),
        rollout=Rollout(
            at="spec.strategy.rollingUpdate",
            type="spec.strategy.type",
            surge="25%",
            unavailable="25%",
        ),
    ),
    WorkloadKind(
        group="apps",
        kind="StatefulSet",
        pods=(Pods(at=TEMPLATE, count=(REPLICAS,)),),
        # A StatefulSet deletes a pod before it creates the replacement.
        rollout=Rollout(
            at="spec.updateStrategy.rollingUpdate",
            type="spec.updateStrategy.type",
            stopping=(),
            unavailable=1,
            least=1,
        ),
        claims=(
            ClaimTemplates(at="spec.volumeClaimTemplates.*", spec="spec", name="metadata.name"),
        ),
    ),
    # One pod per node; a manifest does not state the number of nodes.
    WorkloadKind(
        group="apps",
        kind="DaemonSet",
        pods=(Pods(at=TEMPLATE, count=(Count(paths=(), default=None),)),),
    ),
    WorkloadKind(
        group="batch",
        kind="Job",
        pods=(Pods(at=TEMPLATE, count=(job_count("spec"),)),),
        roles=BATCH_ROLES,
        ends=True,
        job=batch_job("spec"),
        awaited=True,
    ),
    WorkloadKind(
        group="batch",
        kind="CronJob",
        pods=(Pods(at=f"{_CRON_JOB}.template.spec", count=(CONCURRENCY, job_count(_CRON_JOB))),),
        roles=BATCH_ROLES,
        ends=True,
        job=batch_job(_CRON_JOB),
    ),
    WorkloadKind(
        group="autoscaling",
        kind="HorizontalPodAutoscaler",
        scaler=Scaler(
            target="spec.scaleTargetRef", minimum="spec.minReplicas", maximum="spec.maxReplicas"
        ),
    ),
    WorkloadKind(
        group="keda.sh",
        kind="ScaledObject",
        scaler=Scaler(
            target="spec.scaleTargetRef",
            target_kind="Deployment",
            minimum="spec.minReplicaCount",
            maximum="spec.maxReplicaCount",
            default_minimum=0,
            default_maximum=100,
            fixed="metadata.annotations[autoscaling.keda.sh/paused-replicas]",
        ),
    ),
    WorkloadKind(
        group="http.keda.sh",
        kind="HTTPScaledObject",
        scaler=Scaler(
            target="spec.scaleTargetRef",
            target_kind="Deployment",
            minimum="spec.replicas.min",
            maximum="spec.replicas.max",
            default_minimum=0,
            default_maximum=100,
        ),
    ),
    WorkloadKind(
        group="autoscaling.aibrix.ai",
        kind="PodAutoscaler",
        scaler=Scaler(
            target="spec.scaleTargetRef",
            minimum="spec.minReplicas",
            maximum="spec.maxReplicas",
            scheduled=("spec.schedules.*.maxReplicas",),
            part="spec.subTargetSelector.roleName",
        ),
    ),
    WorkloadKind(
        group="datadoghq.com",
        kind="DatadogPodAutoscaler",
        scaler=Scaler(
            target="spec.targetRef",
            minimum="spec.constraints.minReplicas",
            maximum="spec.constraints.maxReplicas",
        ),
    ),
    WorkloadKind(
        group="keda.sh",
        kind="ScaledJob",
        pods=(
            Pods(
                at="spec.jobTargetRef.template.spec",
                count=(
                    Count(paths=("spec.maxReplicaCount",), default=100),
                    job_count("spec.jobTargetRef"),
                ),
            ),
        ),
        roles=BATCH_ROLES,
        ends=True,
        job=batch_job("spec.jobTargetRef"),
    ),
    WorkloadKind(group="", kind="ConfigMap", texts=("data.*",)),
    # Pods that use one of these objects get its tolerations.
    *(
        WorkloadKind(
            group=group,
            kind=kind,
            pods=(Pods(at=at, count=NOT_RUN, partial=True),),
            namespaced=False,
        )
        for group, kind, at in (
            ("node.k8s.io", "RuntimeClass", "scheduling"),
            ("kueue.x-k8s.io", "ResourceFlavor", "spec"),
        )
    ),
    # A Binding assigns a pod to a node and bypasses the scheduler.
    WorkloadKind(group="", kind="Binding", opaque=("target",)),
]

_PLAIN_KINDS: Final = {
    "": "Secret Service ServiceAccount Namespace Node PersistentVolume PersistentVolumeClaim "
    "LimitRange ResourceQuota Event Endpoints",
    "apps": "ControllerRevision",
    "resource.k8s.io": "DeviceClass DeviceTaintRule ResourceClaim ResourceClaimTemplate "
    "ResourceSlice",
    "scheduling.volcano.sh": "PodGroup Queue",
    "topology.volcano.sh": "HyperNode",
    "nodeinfo.volcano.sh": "Numatopology",
    "kueue.x-k8s.io": "AdmissionCheck ClusterQueue Cohort LocalQueue MultiKueueCluster "
    "MultiKueueConfig ProvisioningRequestConfig Topology WorkloadPriorityClass",
    "scheduling.x-k8s.io": "PodGroup ElasticQuota",
    "scheduling.k8s.io": "PriorityClass",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "resource.nvidia.com": "ComputeDomain",
    "topology.node.k8s.io": "NodeResourceTopology",
    "karpenter.sh": "NodePool NodeClaim",
    "karpenter.k8s.aws": "EC2NodeClass",
    "infrastructure.cluster.x-k8s.io": "GCPMachineTemplate",
    "image.toolkit.fluxcd.io": "ImageRepository ImagePolicy",
    "monitoring.coreos.com": "PrometheusRule ServiceMonitor PodMonitor Probe ScrapeConfig "
    "AlertmanagerConfig",
    "caching.internal.knative.dev": "Image",
    "kubeflow.org": "Profile",
}

PLAIN: Final = [
    WorkloadKind(group=group, kind=kind)
    for group, kinds in _PLAIN_KINDS.items()
    for kind in kinds.split()
]
"""Kinds that run no pods, even if they refer to resources or images."""

_CHANGES_OBJECTS: Final = "it changes objects when they are created"
_CREATES_OBJECTS: Final = "it creates additional objects when other objects are created"
_MUTATIONS: Final = tuple(f"spec.rules.*.mutate{depth * '.foreach.*'}" for depth in range(3))
_PATCHED_POD_SPECS: Final = (
    *("spec", "spec.template.spec", "spec.jobTemplate.spec.template.spec"),
    *("spec.*.*.template.spec", "spec.*.*.template.spec.template.spec"),
)
"""Paths of pod specifications in most kinds."""


def _patched_pods(spec: str) -> tuple[Pods, Pods]:
    """Return the locations of a pod in a patch: its specification, and the object that contains it.

    The second location covers patches that contain only the pod's metadata.
    """
    parent = spec.removesuffix(".spec")
    return (
        Pods(at=spec, count=NOT_RUN, partial=True),
        Pods(at=parent, metadata=f"{parent}.metadata", count=NOT_RUN, partial=True),
    )


PATTERNS: Final = [
    WorkloadKind(group="apiextensions.k8s.io", kind="CustomResourceDefinition", patterns=("",)),
    *(
        WorkloadKind(
            group="kyverno.io",
            kind=kind,
            pods=tuple(
                pods
                for at in _MUTATIONS
                for spec in _PATCHED_POD_SPECS
                for pods in _patched_pods(f"{at}.patchStrategicMerge.{spec}")
            ),
            anchors=True,
            generators=("spec.rules.*.generate", "spec.rules.*.generate.foreach.*"),
            json_patches=tuple(f"{at}.patchesJson6902" for at in _MUTATIONS),
            opaque=(f"{_MUTATIONS[-1]}.foreach",),
            patterns=(
                *("spec.rules.*.validate", "spec.rules.*.match"),
                *("spec.rules.*.exclude", "spec.rules.*.preconditions", "spec.rules.*.context"),
                *("spec.rules.*.verifyImages", "spec.rules.*.imageExtractors"),
            ),
        )
        for kind in ("ClusterPolicy", "Policy")
    ),
    # Tool configuration files, which API servers do not accept.
    *(
        WorkloadKind(group=group, kind=kind, patterns=("",))
        for group, kind in (
            ("kind.x-k8s.io", "Cluster"),
            ("k3d.io", "Simple"),
            ("eksctl.io", "ClusterConfig"),
            ("skaffold", "Config"),
        )
    ),
    WorkloadKind(group="policies.kyverno.io", kind="*", patterns=("",)),
    WorkloadKind(group="constraints.gatekeeper.sh", kind="*", patterns=("",)),
    WorkloadKind(group="templates.gatekeeper.sh", kind="ConstraintTemplate", patterns=("",)),
    WorkloadKind(group="mutations.gatekeeper.sh", kind="*", unseen=_CHANGES_OBJECTS),
    *(
        WorkloadKind(group="policies.kyverno.io", kind=f"{scope}{kind}", unseen=unseen)
        for scope in ("", "Namespaced")
        for kind, unseen in (
            ("MutatingPolicy", _CHANGES_OBJECTS),
            ("GeneratingPolicy", _CREATES_OBJECTS),
        )
    ),
    WorkloadKind(group="admissionregistration.k8s.io", kind="*", patterns=("",)),
    WorkloadKind(
        group="admissionregistration.k8s.io",
        kind="MutatingAdmissionPolicy",
        unseen=_CHANGES_OBJECTS,
    ),
]
