"""Outputs of the stack: names, types, descriptions, and the resources that they describe.

`docs/reuse.md` contains a table that `make generate` writes from these types.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, cast

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from infra.pods import GpuNodes
from kube.kinds import JobKind

# Later versions may add outputs, which stacks that use this version must ignore.
_EXTENSIBLE: Final = ConfigDict(extra="ignore")


@with_config(_EXTENSIBLE)
class TolerationOutput(TypedDict):
    """A toleration for a taint on the GPU nodes."""

    key: Annotated[str, Field(description="Key of the taint.")]
    operator: Annotated[
        Literal["Exists", "Equal"],
        Field(
            description="Operator: `Exists` tolerates every value of the taint, `Equal` only "
            "`value`."
        ),
    ]
    value: NotRequired[
        Annotated[str, Field(description="Value of the taint if `operator` is Equal.")]
    ]
    effect: NotRequired[
        Annotated[
            str, Field(description="Effect of the taint. Absent if all effects are tolerated.")
        ]
    ]


@with_config(_EXTENSIBLE)
class GpuNodesOutput(TypedDict):
    """GPU resource, node selector, tolerations and RuntimeClass for pods with GPUs."""

    resource: Annotated[str, Field(description="Name of the GPU resource.")]
    nodeSelector: Annotated[dict[str, str], Field(description="Labels of the GPU nodes.")]
    tolerations: Annotated[
        list[TolerationOutput], Field(description="Tolerations for the nodes' taints.")
    ]
    runtimeClass: NotRequired[
        Annotated[
            str, Field(description="RuntimeClass for pods with GPUs. Absent if none is needed.")
        ]
    ]


@with_config(_EXTENSIBLE)
class ClusterOutput(TypedDict):
    """The cluster that the stack is deployed to."""

    uid: Annotated[str, Field(description="UID of the kube-system namespace.")]
    identifier: Annotated[
        str,
        Field(
            description="Cluster identifier of the Pulumi Kubernetes provider. It does not change "
            "during the lifetime of the cluster."
        ),
    ]


@with_config(_EXTENSIBLE)
class RunOutput(TypedDict):
    """The current run of a training job."""

    name: Annotated[
        str,
        Field(description="Name of the run: `<job>-<8 hex digits>`, or the job's `run` setting."),
    ]
    kind: Annotated[JobKind, Field(description="Job kind (docs/jobs.md).")]
    namespace: Annotated[str, Field(description="Namespace of the pods.")]
    queue: Annotated[str, Field(description="Volcano queue of the run.")]
    nodes: Annotated[int, Field(description="Number of pods.")]
    gpusPerNode: Annotated[int, Field(description="Number of GPUs per pod.")]


class VersionOutput(TypedDict):
    """A version of a served model."""

    run: NotRequired[
        Annotated[
            str,
            Field(
                description="Run whose export is served. Absent if the model comes from a sweep, a "
                "URL or another source."
            ),
        ]
    ]
    export: NotRequired[
        Annotated[str, Field(description="URL of the export. Absent if none is configured.")]
    ]
    digest: NotRequired[
        Annotated[
            str,
            Field(description="SHA-256 of the weights. Absent if the settings do not specify it."),
        ]
    ]


@with_config(_EXTENSIBLE)
class CanaryOutput(VersionOutput):
    """The canary of a service."""

    service: Annotated[str, Field(description="Name of the canary's Service.")]
    weight: Annotated[
        int, Field(description="Percentage of the requests that the canary receives.")
    ]


@with_config(_EXTENSIBLE)
class InferenceOutput(VersionOutput):
    """An inference service."""

    url: Annotated[str, Field(description="URL inside the cluster.")]
    service: Annotated[str, Field(description="Name of the Service.")]
    namespace: Annotated[str, Field(description="Namespace of the Service.")]
    model: Annotated[str, Field(description="Name of the model in requests.")]
    runtime: Annotated[str, Field(description="Runtime that serves the model.")]
    sweep: NotRequired[
        Annotated[
            str,
            Field(description="Sweep whose winning run is served after the sweep has finished."),
        ]
    ]
    canary: NotRequired[
        Annotated[CanaryOutput, Field(description="The canary. Absent if there is none.")]
    ]


@with_config(_EXTENSIBLE)
class PlatformOutputs(TypedDict):
    """All outputs of the stack."""

    namespace: Annotated[str, Field(description="Namespace of the workloads.")]
    queues: Annotated[
        list[str],
        Field(description="Names of the queues that accept jobs (queues without child queues)."),
    ]
    claims: Annotated[
        dict[str, str], Field(description="Names of the claims in the cluster, by key.")
    ]
    cluster: NotRequired[
        Annotated[
            ClusterOutput, Field(description="The cluster. Absent if manifests are only rendered.")
        ]
    ]
    gpuNodes: Annotated[
        GpuNodesOutput,
        Field(
            description="GPU resource, node selector, tolerations and RuntimeClass for pods with "
            "GPUs."
        ),
    ]
    images: Annotated[dict[str, str], Field(description="Images by key, pinned by digest.")]
    runs: Annotated[dict[str, RunOutput], Field(description="Current run of each job, by job key.")]
    startedRuns: NotRequired[
        Annotated[
            list[str],
            Field(
                description="Names of the runs whose jobs were found or created by the last "
                "successful update. These runs do not start again if their jobs are deleted."
            ),
        ]
    ]
    inference: Annotated[dict[str, InferenceOutput], Field(description="Services by key.")]


PLATFORM_OUTPUTS: Final = TypeAdapter(PlatformOutputs)
"""Validator for outputs of another stack."""


def gpu_nodes_output(nodes: GpuNodes) -> GpuNodesOutput:
    """Return the GPU nodes as an output for other stacks."""
    output: GpuNodesOutput = {
        "resource": nodes.resource,
        "nodeSelector": dict(nodes.node_selector),
        "tolerations": [cast(TolerationOutput, dict(each)) for each in nodes.tolerations],
    }
    if nodes.runtime_class is not None:
        output["runtimeClass"] = nodes.runtime_class
    return output


def gpu_nodes_input(output: GpuNodesOutput) -> GpuNodes:
    """Return the GPU nodes from the output of another stack."""
    return GpuNodes(
        resource=output["resource"],
        node_selector=output["nodeSelector"],
        tolerations=[dict(cast(dict[str, str], each)) for each in output["tolerations"]],
        runtime_class=output.get("runtimeClass"),
    )


@dataclass(frozen=True, kw_only=True)
class SharedResources:
    """Namespace, queues, claims, GPU nodes and images of a stack.

    `images` maps keys to image references, which are strings or Pulumi outputs. `identities` maps
    the same keys to strings that identify the images. These strings are known even in a preview,
    and do not change with a new release of this project. `claims` maps keys to names in the
    cluster.
    """

    namespace: str
    queues: Sequence[str]
    claims: Mapping[str, str]
    gpu_nodes: GpuNodes
    images: Mapping[str, Any]
    identities: Mapping[str, str]
    pull_secret: str | None
    """Name of the Secret with the registry's login, or None if no login is configured."""

    @property
    def outputs(self) -> dict[str, Any]:
        """The stack outputs that describe these resources."""
        return {
            "namespace": self.namespace,
            "queues": self.queues,
            "claims": self.claims,
            "gpuNodes": gpu_nodes_output(self.gpu_nodes),
            "images": self.images,
        }
