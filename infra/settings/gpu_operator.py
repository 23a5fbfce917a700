"""NVIDIA's GPU Operator."""

from typing import Any

from pydantic import Field

from infra.settings.types import DnsLabel, PositiveInt, Settings


class GpuOperatorSettings(Settings):
    """The chart of NVIDIA's GPU Operator: driver, container toolkit, device plugin and labels."""

    namespace: DnsLabel = Field(
        default="gpu-operator", description="Namespace of the release, created by the stack."
    )
    chart: str = Field(default="gpu-operator", min_length=1, description="Name of the chart.")
    repository: str = Field(
        default="https://helm.ngc.nvidia.com/nvidia",
        pattern=r"^(https?|oci)://\S+$",
        description="URL of the chart's repository.",
    )
    version: str = Field(
        default="v26.7.0",
        pattern=r"^v?\d+\.\d+\.\d+\S*$",
        description="Exact version of the chart.",
    )
    driver: bool = Field(
        default=True,
        description="Install the driver in containers. Set to false if the driver is already "
        "part of the node image, as in most clouds.",
    )
    driver_version: str | None = Field(
        default=None,
        pattern=r"^\d+(\.\d+)*$",
        description="Version of the driver. null uses the chart's default.",
    )
    toolkit: bool = Field(
        default=True,
        description="Install the NVIDIA Container Toolkit. Set to false if the nodes have it.",
    )
    node_feature_discovery: bool = Field(
        default=True,
        description="Install Node Feature Discovery, whose labels the operator uses to find GPU "
        "nodes. Set to false if the cluster has it.",
    )
    gpu_feature_discovery: bool = Field(
        default=True,
        description="Label nodes with their GPU model. The job setting `gpu_product` requires this "
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
