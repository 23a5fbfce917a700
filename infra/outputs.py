"""What other stacks can read from this one: the outputs' names, types and meanings.

docs/reuse.md has a table that is generated from it.
"""

from typing import Annotated, Final, Literal, NotRequired, cast

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from infra.pods import GpuNodes
from kube.kinds import JobKind

# An output that a later version adds must not break a stack that reads an earlier one's.
_OPEN: Final = ConfigDict(extra="ignore")


@with_config(_OPEN)
class TolerationOutput(TypedDict):
    """A taint of the GPU nodes that pods have to tolerate."""

    key: Annotated[str, Field(description="key of the taint")]
    operator: Annotated[Literal["Exists", "Equal"], Field(description="how the value is compared")]
    value: NotRequired[Annotated[str, Field(description="value of the taint, with Equal")]]
    effect: NotRequired[
        Annotated[str, Field(description="effect of the taint; without one, every effect")]
    ]


@with_config(_OPEN)
class GpuNodesOutput(TypedDict):
    """How pods get GPUs."""

    resource: Annotated[str, Field(description="resource that a container asks for")]
    nodeSelector: Annotated[dict[str, str], Field(description="labels of the nodes that have GPUs")]
    tolerations: Annotated[list[TolerationOutput], Field(description="taints of those nodes")]
    runtimeClass: NotRequired[
        Annotated[
            str,
            Field(description="runtime class of pods with GPUs; absent where they need none"),
        ]
    ]


@with_config(_OPEN)
class RunOutput(TypedDict):
    """The present run of a training job."""

    name: Annotated[str, Field(description="name of the run and of its folder: `<job>-<8 digits>`")]
    kind: Annotated[JobKind, Field(description="what the job is made of (docs/jobs.md)")]
    namespace: Annotated[str, Field(description="namespace of its pods")]
    queue: Annotated[str, Field(description="queue that it waits in")]
    nodes: Annotated[int, Field(description="pods")]
    gpusPerNode: Annotated[int, Field(description="GPUs of each pod")]


class VersionOutput(TypedDict):
    """Which model is served. What it says of itself is asked at `GET /v2/models/<model>`."""

    run: NotRequired[
        Annotated[str, Field(description="run whose export is served; absent beside `export`")]
    ]
    export: NotRequired[
        Annotated[str, Field(description="address in an object store, where pods fetch the export")]
    ]
    digest: NotRequired[
        Annotated[
            str,
            Field(
                description="sha256 of the weights, where the settings insist on one; otherwise "
                "it is known when the run has ended"
            ),
        ]
    ]


@with_config(_OPEN)
class CanaryOutput(VersionOutput):
    """A new version beside the served one."""

    service: Annotated[str, Field(description="name of its Service")]
    weight: Annotated[int, Field(description="percent of the requests that it gets")]


@with_config(_OPEN)
class InferenceOutput(VersionOutput):
    """A model that is served."""

    url: Annotated[str, Field(description="where pods of the cluster reach it")]
    service: Annotated[str, Field(description="name of the Service")]
    namespace: Annotated[str, Field(description="namespace of the Service")]
    model: Annotated[str, Field(description="name of the model in the protocol")]
    canary: NotRequired[
        Annotated[CanaryOutput, Field(description="the new version, where there is one")]
    ]


@with_config(_OPEN)
class PlatformOutputs(TypedDict):
    """All outputs of the stack."""

    namespace: Annotated[str, Field(description="namespace of the workloads")]
    queues: Annotated[list[str], Field(description="queues in which jobs may wait, sorted")]
    claims: Annotated[
        dict[str, str], Field(description="claims by logical name: their names in the cluster")
    ]
    gpuNodes: Annotated[GpuNodesOutput, Field(description="how pods get GPUs")]
    images: Annotated[dict[str, str], Field(description="images by name, pinned by digest")]
    runs: Annotated[dict[str, RunOutput], Field(description="the jobs' present runs by job")]
    inference: Annotated[dict[str, InferenceOutput], Field(description="services by name")]


PLATFORM_OUTPUTS: Final = TypeAdapter(PlatformOutputs)
"""Checks what was read from another stack."""


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
