"""The cluster and its GPUs."""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from infra.settings.node_health import NodeHealthSettings
from infra.settings.types import (
    AbsolutePath,
    Annotations,
    ChartRepository,
    ChartVersion,
    DeviceName,
    DnsLabel,
    DnsName,
    Labels,
    LabelValue,
    PositiveInt,
    QualifiedName,
    Settings,
    VersionedImage,
    matching,
)
from kube.accelerators import MIG_PREFIX, NVIDIA_GPU, SHARED_SUFFIX

IN_CLUSTER: Final = "in-cluster"
"""Value of `context` that selects the cluster in which the program itself runs."""


MOVE_ERROR: Final = "would move to another cluster"
"""Part of the error message for a stack that is already deployed to another cluster."""


_DriverVersion = Annotated[
    str, matching(re.compile(r"\d+(\.\d+)*"), 64, "a driver version, such as 580.95.05")
]

_RESERVED_DOMAINS: Final = ("gpu-platform.dev", "app.kubernetes.io", "volcano.sh", "pulumi.com")


class ClusterSettings(Settings):
    """The cluster that the stack deploys to, or a directory to render manifests into."""

    context: str | None = Field(
        default=None,
        min_length=1,
        description="Context in the kubeconfig. The stack never deploys to another cluster, "
        f"regardless of the current context. `{IN_CLUSTER}` selects the cluster in which Pulumi "
        "runs as a pod.",
    )
    kubeconfig: str | None = Field(
        default=None,
        min_length=1,
        description="Path of the kubeconfig file. Defaults to $KUBECONFIG or ~/.kube/config.",
    )
    render_to: str | None = Field(
        default=None,
        min_length=1,
        description="Directory to write plain manifests to. Nothing is sent to a cluster, and "
        "chart releases are skipped.",
    )
    allow_move: bool = Field(
        default=False,
        description="Allow the next update to move the stack to another cluster: all objects are "
        "created there and deleted from the previous cluster (docs/moving.md).",
    )
    labels: Labels = Field(
        default={},
        description="Labels that your site requires on every object and pod of the stack. A change "
        "does not start a new run or affect the pods of existing runs. For charts, set them in "
        "`values`: `custom.common_labels` for Volcano, `commonLabels` for kube-prometheus-stack.",
    )
    annotations: Annotations = Field(
        default={},
        description="Annotations that your site requires on every object and pod of the stack, "
        "except for objects created by charts. A change does not start a new run or affect the "
        "pods of existing runs.",
    )
    domain: DnsName = Field(
        default="cluster.local", description="DNS domain of the cluster's Services."
    )

    @field_validator("labels", "annotations")
    @classmethod
    def _keys_are_not_reserved(cls, entries: dict[str, str]) -> dict[str, str]:
        for key in entries:
            domain = key.rpartition("/")[0]
            if any(
                domain == reserved or domain.endswith(f".{reserved}")
                for reserved in _RESERVED_DOMAINS
            ):
                raise ValueError(
                    f"contains {key}, but keys with the prefix {domain} are reserved: remove it"
                )
        return entries

    @property
    def rendering(self) -> bool:
        """True if manifests are written to a directory instead of being sent to a cluster."""
        return self.render_to is not None

    @field_validator("context", "kubeconfig", "render_to")
    @classmethod
    def _one_line(cls, text: str | None) -> str | None:
        if text is not None and len(text.splitlines()) > 1:
            raise ValueError("must be a name or a path on a single line")
        return text

    @field_validator("kubeconfig")
    @classmethod
    def _path(cls, text: str | None) -> str | None:
        # The provider accepts the contents as well, but the state would contain the credentials.
        if text is not None and text.lstrip().startswith("{"):
            raise ValueError("must be the path of the kubeconfig file, not its contents")
        return text

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.render_to is None and self.context is None:
            raise ValueError(
                "names no cluster: set `context`, the kubeconfig context to deploy to, or "
                "`render_to`, a directory to write manifests to"
            )
        unused = [key for key in ("context", "kubeconfig") if getattr(self, key) is not None]
        if self.render_to is not None and unused:
            raise ValueError(
                f"sets both render_to ({self.render_to!r}), which sends nothing to a cluster, and "
                f"{unused[0]} ({getattr(self, unused[0])!r}): remove one of them"
            )
        return self


GpuProvider = Literal["device-plugin", "gpu-operator", "existing"]
MigStrategy = Literal["none", "single", "mixed"]
DeviceListStrategy = Literal["envvar", "cdi-annotations", "cdi-cri"]


class TolerationSettings(Settings):
    """A toleration for a node taint."""

    key: QualifiedName = Field(description="Key of the taint.")
    operator: Literal["Exists", "Equal"] = Field(
        default="Exists",
        description="Operator: `Exists` tolerates every value of the taint, `Equal` only `value`.",
    )
    value: LabelValue | None = Field(
        default=None, description="Value of the taint. Only with `operator: Equal`."
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default="NoSchedule", description="Effect of the taint. If null, all effects are tolerated."
    )

    @property
    def manifest(self) -> dict[str, str]:
        """The toleration in the format of the Kubernetes API."""
        return self.model_dump(exclude_none=True)

    @model_validator(mode="after")
    def _value_fits_operator(self) -> Self:
        if (self.operator == "Equal") != (self.value is not None):
            raise ValueError("must set `value` if, and only if, operator is Equal")
        return self


class TimeSlicingSettings(Settings):
    """Time slicing: several pods share a GPU, without memory isolation."""

    replicas: int = Field(ge=2, le=64, description="Number of pods that share a GPU.")
    rename: bool = Field(
        default=True,
        description="Offer shared GPUs as a separate resource (nvidia.com/gpu.shared), so that "
        "they are not mistaken for whole GPUs.",
    )
    refuse_more_than_one: bool = Field(
        default=True,
        description="Reject pods that request several shares, which may all belong to one GPU.",
    )


class RuntimeClassSettings(Settings):
    """The RuntimeClass of the container runtime that passes GPUs to pods."""

    name: DnsLabel = Field(default="nvidia", description="Name of the RuntimeClass.")
    handler: DnsLabel = Field(
        default="nvidia", description="Handler in the node's container runtime."
    )
    create: bool = Field(
        default=True,
        description="Create the RuntimeClass. Set to false if the cluster already has it.",
    )


_DEVICE_PLUGIN_KEYS: Final = frozenset(
    {"namespace", "image", "device_lists", "pass_device_specs", "driver_root"}
)


class GpuOperatorSettings(Settings):
    """The chart of NVIDIA's GPU Operator: driver, container toolkit, device plugin and labels."""

    namespace: DnsLabel = Field(
        default="gpu-operator", description="Namespace of the release, created by the stack."
    )
    chart: str = Field(default="gpu-operator", min_length=1, description="Name of the chart.")
    repository: ChartRepository = Field(
        default="https://helm.ngc.nvidia.com/nvidia",
        description="URL of the chart's repository.",
    )
    version: ChartVersion = Field(
        default="v26.7.0",
        description="Exact version of the chart.",
    )
    driver: bool = Field(
        default=True,
        description="Install the driver in containers. Set to false if the driver is already "
        "part of the node image, as in most clouds.",
    )
    driver_version: _DriverVersion | None = Field(
        default=None,
        description="Version of the driver. If null, the chart's default applies.",
    )
    toolkit: bool = Field(
        default=True,
        description="Install the NVIDIA Container Toolkit. Set to false if the nodes already have "
        "it.",
    )
    node_feature_discovery: bool = Field(
        default=True,
        description="Install Node Feature Discovery, whose labels the operator uses to find GPU "
        "nodes. Set to false if the cluster already has it.",
    )
    gpu_feature_discovery: bool = Field(
        default=True,
        description="Label nodes with their GPU model. The `gpu_product` job setting requires this "
        "label.",
    )
    cdi: bool = Field(
        default=True,
        description="Pass GPUs to containers through the Container Device Interface (CDI).",
    )
    dcgm_exporter: bool = Field(
        default=True,
        description="Install the DCGM exporter. If monitoring.prometheus is not none, also set "
        "monitoring.dcgm_exporter: {install: false, existing: {}}.",
    )
    values: dict[str, Any] = Field(
        default={},
        description="Additional chart values, which override the values that the stack sets.",
    )
    timeout_seconds: PositiveInt = Field(
        default=600, description="Maximum time (s) until the operator itself is ready."
    )


class GpuSettings(Settings):
    """NVIDIA's device plugin or GPU Operator, the RuntimeClass and the GPU nodes."""

    provider: GpuProvider = Field(
        default="device-plugin",
        description="GPU provider: `device-plugin` installs NVIDIA's device plugin; `gpu-operator` "
        "installs NVIDIA's GPU Operator; `existing` installs nothing, for clusters that already "
        "have one of them.",
    )
    operator: GpuOperatorSettings = Field(
        default=GpuOperatorSettings(),
        description="Settings of the GPU Operator; only with `provider: gpu-operator`.",
    )
    namespace: DnsLabel = Field(default="gpu-system", description="Namespace of the device plugin.")
    image: VersionedImage = Field(
        default="nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
        description="Image of the device plugin.",
    )
    resource: DeviceName = Field(
        default=NVIDIA_GPU,
        description="Name of the GPU resource, unless a job or service sets another one.",
    )
    runtime_class: RuntimeClassSettings | None = Field(
        default=None,
        description="RuntimeClass for pods with GPUs. If null, the node's default runtime is used.",
    )
    node_selector: Labels = Field(
        default={"nvidia.com/gpu.present": "true"}, description="Labels of the GPU nodes."
    )
    tolerations: list[TolerationSettings] = Field(
        default=[TolerationSettings(key="nvidia.com/gpu")],
        description="Tolerations for the taints of GPU nodes. They are added to pods with GPUs and "
        "to NVIDIA's pods on the GPU nodes.",
    )
    mig_strategy: MigStrategy = Field(
        default="none",
        description="Resource names of MIG devices: `none` ignores MIG, `single` offers MIG "
        "devices under the name of whole GPUs, and `mixed` offers them as "
        "`nvidia.com/mig-<profile>`.",
    )
    device_lists: Annotated[list[DeviceListStrategy], Field(min_length=1)] | None = Field(
        default=None,
        description="Methods by which the device plugin passes GPUs to containers. `cdi-cri` "
        "requires a container runtime with CDI; containers then keep their GPUs when systemd "
        "reloads. Defaults to envvar, which requires NVIDIA's runtime.",
    )
    pass_device_specs: bool = Field(
        default=False,
        description="Also report device files to the kubelet. Required by the kubelet's static CPU "
        "manager policy if device_lists is envvar. Makes the device plugin privileged.",
    )
    driver_root: AbsolutePath | None = Field(
        default=None,
        description="Directory of the driver on the node, such as /run/nvidia/driver for a "
        "containerized driver. Defaults to the root directory, which is mounted only for CDI.",
    )
    time_slicing: TimeSlicingSettings | None = Field(
        default=None, description="Time slicing of whole GPUs. If null, pods do not share GPUs."
    )
    node_health: NodeHealthSettings | None = Field(
        default=None,
        description="Cordon nodes with unhealthy GPUs, and move the runs on them to other nodes.",
    )

    @property
    def offered(self) -> str:
        """Name of the GPU resource that nodes offer, with a suffix if time slicing renames it."""
        renames = self.time_slicing is not None and self.time_slicing.rename
        return self.resource + SHARED_SUFFIX if renames else self.resource

    @property
    def system_namespace(self) -> str | None:
        """Namespace that the stack creates for the provider, if any."""
        if self.provider == "existing":
            return None
        return self.namespace if self.provider == "device-plugin" else self.operator.namespace

    @model_validator(mode="after")
    def _only_settings_of_the_provider(self) -> Self:
        configured = self.model_fields_set
        if self.provider != "gpu-operator" and "operator" in configured:
            raise ValueError(
                f"sets operator, but provider is {self.provider}: set provider: gpu-operator, or "
                "remove operator"
            )
        unused = sorted(configured & _DEVICE_PLUGIN_KEYS)
        if self.provider == "gpu-operator" and unused:
            raise ValueError(
                f"sets {', '.join(unused)}, which the GPU Operator does not read: remove "
                f"{'it' if len(unused) == 1 else 'them'}, or use operator.values instead"
            )
        mig = self.resource.startswith(MIG_PREFIX)
        if self.provider != "existing" and self.resource != NVIDIA_GPU and not mig:
            raise ValueError(
                f"sets resource to {self.resource!r}, but provider {self.provider} does not offer "
                f"it: use {NVIDIA_GPU}, {MIG_PREFIX}<profile> with mig_strategy: mixed, or "
                "provider: existing"
            )
        if self.provider == "gpu-operator" and self.runtime_class and self.runtime_class.create:
            raise ValueError(
                "has a runtime_class with create: true, but the GPU Operator creates the "
                "RuntimeClass: set create: false"
            )
        return self


def expand_home(path: str) -> str:
    """Expand a leading `~/` in the path, as the provider does in `kubeconfig`."""
    return str(Path(path).expanduser()) if path.startswith("~/") else path
