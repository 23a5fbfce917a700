"""What other stacks and tools can read from this one."""

from collections.abc import Mapping
from typing import cast

import pulumi

from infra.gpu_stack import GpuStack
from infra.inference_service import InferenceService
from infra.output_types import GpuNodesOutput, TolerationOutput
from infra.pods import GpuNodes
from infra.storage import Storage
from infra.tenancy import Tenancy
from infra.training_job import Run
from infra.volcano import Volcano
from infra.workload_image import WorkloadImage


def export_outputs(
    gpu: GpuStack,
    tenancy: Tenancy,
    volcano: Volcano,
    storage: Storage,
    images: Mapping[str, WorkloadImage],
    runs: Mapping[str, Run],
    services: Mapping[str, InferenceService],
) -> None:
    """Export everything that `infra.output_types.PlatformOutputs` describes."""
    pulumi.export("namespace", tenancy.namespace)
    pulumi.export("queues", volcano.queues)
    pulumi.export("claims", storage.claims)
    pulumi.export("gpuNodes", gpu_nodes_output(gpu.nodes))
    pulumi.export("images", {key: image.reference for key, image in images.items()})
    pulumi.export("runs", {key: run.summary for key, run in runs.items()})
    pulumi.export("inference", {key: service.summary for key, service in services.items()})


def gpu_nodes_output(nodes: GpuNodes) -> GpuNodesOutput:
    """How pods get GPUs, as other stacks read it."""
    found: GpuNodesOutput = {
        "resource": nodes.resource,
        "nodeSelector": dict(nodes.node_selector),
        "tolerations": [cast(TolerationOutput, dict(each)) for each in nodes.tolerations],
    }
    if nodes.runtime_class is not None:
        found["runtimeClass"] = nodes.runtime_class
    return found


def gpu_nodes_input(output: GpuNodesOutput) -> GpuNodes:
    """The same, for the builders of pods."""
    return GpuNodes(
        resource=output["resource"],
        node_selector=output["nodeSelector"],
        tolerations=[dict(cast(dict[str, str], each)) for each in output["tolerations"]],
        runtime_class=output.get("runtimeClass"),
    )
