"""Resources that the components of a stack share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.outputs import gpu_nodes_output
from infra.pods import GpuNodes


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
