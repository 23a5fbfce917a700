"""What is kept of what failed pods have said."""

from typing import Annotated

from pydantic import Field

from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    Labels,
    MemoryQuantity,
    PositiveInt,
    Settings,
)

PortNumber = Annotated[int, Field(ge=1, le=65535)]


class RecorderSettings(Settings):
    """A pod of the namespace that follows the pods of runs and keeps what failed ones have said.

    It needs an image, which `images.workloads` has under the name written here, and whoever runs
    `pulumi up` needs the right to grant `get pods/log`.
    """

    image: DnsLabel = Field(
        default="recorder", description="name of its image, built from recorder/"
    )
    claims: list[DnsLabel] = Field(
        default=["checkpoints"],
        min_length=1,
        description="claims of runs, which must be ReadWriteMany: it writes beside the trainings",
    )
    lines: PositiveInt = Field(default=500, le=100_000, description="last lines of a container")
    kib: PositiveInt = Field(default=64, le=10_240, description="most KiB of these lines")
    failures: PositiveInt = Field(default=10, le=1000, description="of a run, the latest ones")
    pods: PositiveInt = Field(
        default=16, le=1000, description="of a failure, those that ended first"
    )
    cpu: CpuQuantity = Field(default="50m", description="CPU request")
    memory: MemoryQuantity = Field(default="256Mi", description="memory request and limit")
    node_selector: Labels = Field(default={}, description="labels of nodes that it may run on")
    api_ports: list[PortNumber] = Field(
        default=[443, 6443],
        min_length=1,
        description="ports of the API server, the only ones that it may reach where the network "
        "is isolated",
    )


class LogsSettings(Settings):
    """Where logs go beyond the nodes; docs/logs.md."""

    recorder: RecorderSettings | None = Field(
        default=None,
        description="keeps last lines and events of failed pods beside the checkpoints",
    )
