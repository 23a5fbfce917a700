"""NVIDIA's kinds: NIM, NeMo, Dynamo, the GPU Operator and the Network Operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kube.workloads.control import DEFAULT_ROLLOUT, Scaler
from kube.workloads.kubernetes import NOT_RUN
from kube.workloads.record import AddedClaims, Count, Devices, Pods, WorkloadKind
from kube.workloads.serving import PROBES, SERVING


def _nim(spec: str) -> Iterator[Pods]:
    """Yield the pods of a NIM service; the operator adds omitted fields."""
    # The endpoint picker of an inference gateway, and the jobs of a NemoCustomizer.
    yield Pods(at=f"{spec}.expose.router.eppConfig", containers=("containerSpec",), partial=True)
    for name in ("trainingConfig", "modelDownloadJobs", "nemoDatastoreTools"):
        yield Pods(at=f"{spec}.{name}", containers=("",), partial=True)
    yield Pods(
        at=spec,
        containers=("", "sidecarContainers.*"),
        metadata=spec,
        context={"runAsUser": "userID", "runAsGroup": "groupID"},
        claims=AddedClaims(
            at="draResources.*",
            devices="claimCreationSpec.devices.*",
            device_class="gpu.nvidia.com",
        ),
        count=(
            Count(
                paths=(f"{spec}.replicas",),
                maxima=(f"{spec}.scale.hpa.maxReplicas",),
                # With several nodes, a LeaderWorkerSet runs the pods, and its updates do not start
                # additional pods.
                rollout=replace(DEFAULT_ROLLOUT, without=f"{spec}.multiNode"),
            ),
            Count(paths=(f"{spec}.multiNode.parallelism.pipeline",)),
        ),
        partial=True,
    )


def _images(at: str, *images: str, metadata: str = "", copied: tuple[str, ...] = ()) -> Pods:
    """Return pods for which an object specifies only the images and the metadata."""
    return Pods(at=at, images=images, metadata=metadata, copied=copied, count=NOT_RUN, partial=True)


_NEMO: Final = ("NemoCustomizer", "NemoDatastore", "NemoEntitystore", "NemoEvaluator")
NIM: Final = [
    *(
        WorkloadKind(
            group="apps.nvidia.com",
            kind=kind,
            pods=tuple(_nim("spec")),
            roles=SERVING,
            ends=False,
        )
        for kind in ("NIMService", *_NEMO, "NemoGuardrail")
    ),
    WorkloadKind(
        group="apps.nvidia.com",
        kind="NIMPipeline",
        pods=tuple(_nim("spec.services.*.spec")),
        roles=SERVING,
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


def _dynamo(component: str, part: str = "") -> Iterator[Pods]:
    """Yield the pods of a Dynamo component, in both versions of the API."""
    replicas = (
        Count(
            paths=(f"{component}.replicas",),
            maxima=(f"{component}.autoscaling.maxReplicas",),
            rollout=DEFAULT_ROLLOUT,
            part=part,
        ),
        Count(paths=(f"{component}.multinode.nodeCount",)),
    )
    extra = f"{component}.extraPodMetadata"
    yield Pods(
        at=f"{component}.extraPodSpec",
        containers=("mainContainer",),
        metadata=extra,
        count=replicas,
        partial=True,
    )
    yield _images(component, "frontendSidecar", copied=(component, extra, "spec"))
    yield Pods(
        at=component,
        metadata=component,
        count=replicas,
        devices=(
            # If requests and limits are both set, the larger number counts.
            Devices(each="resources.requests", resource="nvidia.com/gpu", count="gpu"),
            Devices(each="resources.limits", resource="nvidia.com/gpu", count="gpu"),
            Devices(each="resources.requests.custom.*"),
            Devices(each="resources.limits.custom.*"),
        ),
        machine=True,
    )
    # The operator adds the image and the probes of the `main` container.
    yield Pods(
        at=f"{component}.podTemplate.spec",
        count=replicas,
        supplied=("image", *PROBES),
        partial=True,
    )


DYNAMO: Final = [
    WorkloadKind(
        group="nvidia.com",
        kind="DynamoGraphDeployment",
        pods=(
            *_dynamo("spec.services.*", "spec.services.*"),
            *_dynamo("spec.components.*", "spec.components.*.name"),
        ),
        roles=SERVING,
        ends=False,
        adapter="DynamoGraphDeploymentScalingAdapter",
    ),
    WorkloadKind(
        group="nvidia.com",
        kind="DynamoGraphDeploymentScalingAdapter",
        scaler=Scaler(
            target="spec.dgdRef",
            target_kind="DynamoGraphDeployment",
            part="spec.dgdRef.serviceName",
            minimum="spec.replicas",
            maximum="spec.replicas",
        ),
    ),
    WorkloadKind(
        group="nvidia.com",
        kind="DynamoComponentDeployment",
        pods=tuple(_dynamo("spec")),
        roles=SERVING,
        ends=False,
    ),
    WorkloadKind(
        group="nvidia.com",
        kind="DynamoGraphDeploymentRequest",
        unseen="it creates a DynamoGraphDeployment from a profile",
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
    WorkloadKind(
        group="nvidia.com",
        kind="ClusterPolicy",
        pods=(_images("spec", *_OPERANDS, metadata="spec.daemonsets"),),
    ),
    WorkloadKind(
        group="nvidia.com",
        kind="GPUCluster",
        pods=(_images("spec", "dcgm", "dcgmExporter", "draDriver", copied=("spec.daemonsets",)),),
    ),
    WorkloadKind(
        group="nvidia.com",
        kind="NVIDIADriver",
        pods=(_images("spec", "", "gdrcopy", "gds", "manager", metadata="spec"),),
    ),
]

_NETWORK_OPERANDS: Final = (
    "ofedDriver",
    "rdmaSharedDevicePlugin",
    "sriovDevicePlugin",
    "ibKubernetes",
    "secondaryNetwork.multus",
    "secondaryNetwork.cniPlugins",
    "secondaryNetwork.ipoib",
    "secondaryNetwork.ipamPlugin",
    "nvIpam",
    "nicFeatureDiscovery",
    "docaTelemetryService",
    "nicConfigurationOperator.operator",
    "nicConfigurationOperator.configurationDaemon",
    "spectrumXOperator",
)

NETWORK_OPERATOR: Final = [
    WorkloadKind(
        group="mellanox.com",
        kind=kind,
        pods=(_images("spec", *_NETWORK_OPERANDS),),
        namespaced=False,
    )
    for kind in ("NicClusterPolicy", "NicNodePolicy")
]

KINDS: Final = [*NIM, *DYNAMO, *GPU_OPERATOR, *NETWORK_OPERATOR]
