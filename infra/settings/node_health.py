"""The controller that cordons nodes with unhealthy GPUs."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from infra.settings.tenancy import DedicatedNamespace
from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    HttpUrl,
    Labels,
    MemoryQuantity,
    PortNumber,
    PositiveInt,
    Settings,
)


class NodeHealthSettings(Settings):
    """A controller that cordons nodes with unhealthy GPUs and moves their runs to other nodes.

    Its image must be one of `images.workloads`, and the user who runs `pulumi up` needs
    permission to grant `patch nodes`. docs/node-health.md describes the controller.
    """

    image: DnsLabel = Field(
        default="recorder", description="Key of the image, which is built from recorder/."
    )
    namespace: DedicatedNamespace = Field(
        default="gpu-node-health",
        description="Namespace of the controller, created by the stack. Anyone who may create pods "
        "there can use the controller's permissions.",
    )
    max_nodes: PositiveInt = Field(
        default=1, description="Maximum number of nodes that the controller keeps cordoned at once."
    )
    fault_seconds: PositiveInt = Field(
        default=360,
        description="Time (s) that a fault must last before its node is cordoned. Set it to more "
        "than 310: after a change to time_slicing, the kubelet keeps counting the previous "
        "devices for five minutes. This delay does not apply to slow-node reports.",
    )
    settle_seconds: PositiveInt = Field(
        default=600, description="Time (s) that a node must be healthy before it is uncordoned."
    )
    slow_reports: PositiveInt | None = Field(
        default=None,
        description="Number of run starts within 24 hours that must report a node as slow "
        "(`preflight: strict`, termination message `slow node NODE: …`) before the node is "
        "cordoned. If null, these reports are ignored.",
    )
    prometheus: HttpUrl | None = Field(
        default=None,
        description="URL of a Prometheus server that scrapes the DCGM exporter, the source of Xid "
        "errors. If null, only the device plugin's health reports are used.",
    )
    xids: list[PositiveInt] = Field(
        default=[48, 64, 74, 79, 95],
        min_length=1,
        description="Xid errors that count as node faults, if `prometheus` is set. The defaults "
        "are uncorrectable ECC errors, failed row remapping, NVLink errors, and GPUs that fell off "
        "the bus.",
    )
    cpu: CpuQuantity = Field(default="50m", description="CPU request.")
    memory: MemoryQuantity = Field(default="256Mi", description="Memory request and limit.")
    node_selector: Labels = Field(default={}, description="Node labels that the pod requires.")
    api_ports: Annotated[list[PortNumber], Field(min_length=1)] = Field(
        default=[443, 6443],
        description="Ports of the API server. With network isolation, the pod may connect only to "
        "these ports, DNS and the port in the URL of Prometheus. If the pods of Prometheus use "
        "a different port than its Service, add the pods' port.",
    )

    @model_validator(mode="after")
    def _xids_are_read(self) -> Self:
        if self.prometheus is None and "xids" in self.model_fields_set:
            raise ValueError(
                "sets xids, but not prometheus, from which Xid errors are read: set prometheus to "
                "the URL of a server"
            )
        return self
