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
"""A quantity as Kubernetes writes it, such as `8Gi`."""

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
    """For rules with nothing to configure."""


class GpuConfig(RuleConfig):
    """Which extended resources are GPUs."""

    gpu_resources: list[str] = Field(
        default=GPU_RESOURCES,
        description="Names of the resources that are GPUs; `*` stands for anything.",
    )


class RoleConfig(GpuConfig):
    """How training and inference are told from everything else."""

    component_labels: list[str] = Field(
        default=[COMPONENT_LABEL, WORKLOAD_LABEL],
        description="The labels that say what a pod is for; the first that is there decides.",
    )
    training_components: list[str] = Field(
        default=["training"], description="Values of the label that mean training."
    )
    inference_components: list[str] = Field(
        default=["inference"], description="Values of the label that mean inference."
    )


class SystemConfig(RuleConfig):
    """Which workloads are trusted with what the rule forbids to all others."""

    system_workloads: list[str] = Field(
        default=[],
        description="Workloads that may do it all the same, each as `namespace/Kind/name`, in "
        "which `*` stands for anything.",
    )
