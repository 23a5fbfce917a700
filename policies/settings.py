"""Configuration that several rules share; each rule's own schema includes what it reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from kube.names import COMPONENT_LABEL, WORKLOAD_LABEL
from kube.quantities import parse_quantity
from policies.rule import RuleConfig


def _quantity(value: str) -> str:
    parse_quantity(value)
    return value


Quantity = Annotated[str, AfterValidator(_quantity)]
"""Quantity as Kubernetes writes it, such as `8Gi`."""

GPU_RESOURCES = [
    "nvidia.com/gpu",
    "nvidia.com/gpu.*",
    "nvidia.com/mig-*",
    "amd.com/gpu",
    "amd.com/gpu.*",
    "baidu.com/*cgpu*",
    "gpu.intel.com/*",
    "habana.ai/gaudi",
]


class NoConfig(RuleConfig):
    """Configuration of rules without settings."""


class GpuConfig(RuleConfig):
    """Names of the extended resources that are GPUs."""

    gpu_resources: list[str] = Field(
        default=GPU_RESOURCES,
        description="Names of the resources that are GPUs; `*` matches anything.",
    )


class RoleConfig(GpuConfig):
    """Labels that identify training and inference."""

    component_labels: list[str] = Field(
        default=[COMPONENT_LABEL, WORKLOAD_LABEL],
        description="Labels that state the role of a pod; the first existing one decides.",
    )
    training_components: list[str] = Field(
        default=["training"], description="Values of the label that mean training."
    )
    inference_components: list[str] = Field(
        default=["inference"], description="Values of the label that mean inference."
    )


class SystemConfig(RuleConfig):
    """Workloads that may do what the rule forbids to all others."""

    system_workloads: list[str] = Field(
        default=[],
        description="Workloads that are exempt from the rule, each as `namespace/Kind/name`; `*` "
        "matches anything.",
    )
