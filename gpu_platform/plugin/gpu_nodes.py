"""Arguments of the plugin's components that are not settings of a stack, such as `gpuNodes`."""

from typing import Literal, Self

from pydantic import Field

from infra.pods import GpuNodes
from infra.settings.cluster import TolerationSettings
from infra.settings.types import DeviceName, DnsLabel, DnsName, Labels, PortNumber, Settings
from kube.accelerators import NVIDIA_GPU


class GpuTolerationSettings(TolerationSettings):
    """A toleration for a taint on the GPU nodes."""

    # The output omits the effect if every effect is tolerated, so the default is None, unlike in
    # TolerationSettings.
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint. By default, every effect is tolerated."
    )


class GpuNodesSettings(Settings):
    """GPU resource, node selector, tolerations and RuntimeClass for pods with GPUs."""

    resource: DeviceName = Field(
        description="Resource that a container requests, such as nvidia.com/gpu."
    )
    node_selector: Labels = Field(default={}, description="Labels of the GPU nodes.")
    tolerations: list[GpuTolerationSettings] = Field(
        default=[], description="Tolerations for the taints of these nodes."
    )
    runtime_class: str | None = Field(
        default=None, description="RuntimeClass for pods with GPUs. Omit it if they need none."
    )

    @classmethod
    def of(cls, nodes: GpuNodes) -> Self:
        """Build the settings from the GPU nodes of a component."""
        return cls.model_validate(
            {
                "resource": nodes.resource,
                "node_selector": dict(nodes.node_selector),
                "tolerations": [dict(toleration) for toleration in nodes.tolerations],
                "runtime_class": nodes.runtime_class,
            }
        )

    @property
    def output(self) -> dict[str, object]:
        """Value of a component's output, which is also valid as an argument."""
        return self.model_dump(exclude_none=True)

    @property
    def nodes(self) -> GpuNodes:
        """The GPU nodes for a component."""
        return GpuNodes(
            resource=self.resource,
            node_selector=self.node_selector,
            tolerations=[toleration.manifest for toleration in self.tolerations],
            runtime_class=self.runtime_class,
        )


class AdditionalSettings(Settings):
    """Arguments of the components that are not settings of a stack."""

    namespace: DnsLabel | None = None
    runs_namespace: DnsLabel | None = None
    volcano_namespace: DnsLabel | None = None
    claims: dict[str, DnsName] | None = None
    service_account: DnsName | None = None
    domain: DnsName | None = None
    ports: list[PortNumber] | None = None
    gpu_resource: DeviceName | None = None
    gpu_nodes: GpuNodesSettings = GpuNodesSettings(resource=NVIDIA_GPU)
