"""Which cluster the stack is for."""

from typing import Literal, Self

from pydantic import Field, model_validator

from infra.settings.types import (
    DnsLabel,
    DnsName,
    Labels,
    LabelValue,
    QualifiedName,
    Settings,
    VersionedImage,
)


class ClusterSettings(Settings):
    """The one cluster that this stack may touch, or a folder to render manifests into."""

    context: str | None = Field(
        default=None,
        min_length=1,
        description="context of the kubeconfig; named here so that this stack can never reach "
        "another cluster, whatever the current context is",
    )
    kubeconfig: str | None = Field(
        default=None,
        min_length=1,
        description="path of the kubeconfig file; without it $KUBECONFIG or ~/.kube/config is read",
    )
    render_to: str | None = Field(
        default=None,
        min_length=1,
        description="folder that receives plain manifests instead of a cluster; "
        "nothing is sent to a cluster, and chart releases are left out",
    )
    domain: DnsName = Field(
        default="cluster.local", description="DNS domain of the cluster's services"
    )

    @property
    def rendering(self) -> bool:
        """True if manifests are written instead of sent to a cluster."""
        return self.render_to is not None

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.render_to is None and self.context is None:
            raise ValueError(
                "names no cluster: write `context`, the kubeconfig context to deploy to, or "
                "`render_to`, a folder to write manifests into"
            )
        return self


MigStrategy = Literal["none", "single", "mixed"]


class TolerationSettings(Settings):
    """A node taint that pods of this stack may ignore."""

    key: QualifiedName = Field(description="the taint's key")
    operator: Literal["Exists", "Equal"] = Field(
        default="Exists", description="how the value is compared"
    )
    value: LabelValue | None = Field(default=None, description="the taint's value; only with Equal")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default="NoSchedule", description="the taint's effect; null tolerates every effect"
    )

    @model_validator(mode="after")
    def _value_fits_operator(self) -> Self:
        if (self.operator == "Equal") != (self.value is not None):
            raise ValueError("contradicts itself: `value` is written with operator Equal, only")
        return self


class TimeSlicingSettings(Settings):
    """Several pods take turns on one GPU, without isolation of memory."""

    replicas: int = Field(ge=2, le=64, description="how many pods share one GPU")
    rename: bool = Field(
        default=True,
        description="offer shared GPUs under their own name (nvidia.com/gpu.shared), so that "
        "nobody takes one for a whole GPU",
    )
    refuse_more_than_one: bool = Field(
        default=True, description="refuse pods that ask for several shares, which may be one device"
    )


class RuntimeClassSettings(Settings):
    """The container runtime that gives pods their GPU devices."""

    name: DnsLabel = Field(default="nvidia", description="name of the RuntimeClass")
    handler: DnsLabel = Field(
        default="nvidia", description="handler in the node's container runtime"
    )
    create: bool = Field(
        default=True, description="make the RuntimeClass; false where the cluster already has it"
    )


class GpuSettings(Settings):
    """NVIDIA's device plugin, the runtime class, and the nodes that have GPUs."""

    install: bool = Field(
        default=True,
        description="run the device plugin; false where the cluster has it, for example from the "
        "GPU operator",
    )
    namespace: DnsLabel = Field(default="gpu-system", description="namespace of the device plugin")
    image: VersionedImage = Field(
        default="nvcr.io/nvidia/k8s-device-plugin:v0.20.0", description="image of the device plugin"
    )
    resource: QualifiedName = Field(
        default="nvidia.com/gpu",
        description="name under which pods ask for a GPU, unless a job says otherwise",
    )
    runtime_class: RuntimeClassSettings | None = Field(
        default=None, description="null where containers get GPUs from the node's default runtime"
    )
    node_selector: Labels = Field(
        default={"nvidia.com/gpu.present": "true"}, description="labels of the nodes that have GPUs"
    )
    tolerations: list[TolerationSettings] = Field(
        default=[TolerationSettings(key="nvidia.com/gpu")],
        description="taints of those nodes; the device plugin and all workloads tolerate them",
    )
    mig_strategy: MigStrategy = Field(
        default="none",
        description="how slices of MIG are named: single as whole GPUs, mixed as "
        "nvidia.com/mig-<profile>",
    )
    time_slicing: TimeSlicingSettings | None = Field(
        default=None, description="share whole GPUs by turns; null gives each pod its own"
    )
