"""Specification of the embedded cluster: nodes, simulated GPUs and addresses."""

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """Node kind. Real nodes run containers; simulated nodes exist only in the API server."""

    REAL = "real"
    SIMULATED = "simulated"


@dataclass(frozen=True)
class RealNode:
    """A node with a separate kubelet, containerd and namespaces."""

    name: str
    address: str
    pod_range: str
    control_plane: bool
    gpus: int = 4

    @property
    def gpu_uuids(self) -> list[str]:
        """UUIDs of the node's GPUs, unique in the cluster."""
        return [f"GPU-simulated-{self.name}-{index}" for index in range(self.gpus)]


@dataclass(frozen=True)
class Network:
    """Addresses of the embedded cluster in one private block, so that conflicts are easy to detect.

    The nodes and the host share a link. Each node has a /24 for its pods.
    """

    block: str = "10.250.0.0/16"
    host: str = "10.250.76.1"
    link_prefix: int = 24
    services: str = "10.250.128.0/20"
    api_service: str = "10.250.128.1"
    dns: str = "10.250.128.10"
    host_interface: str = "gpu-platform"
    registry_port: int = 5000
    chart_port: int = 8879
    api_port: int = 6443


@dataclass(frozen=True)
class ClusterSpec:
    """Specification of an embedded cluster. Both kinds run the same API server."""

    kind: Kind
    simulated_nodes: int
    network: Network = field(default_factory=Network)
    real_nodes: tuple[RealNode, ...] = ()
    kubernetes: str = "v1.34.3"
    gpu_product: str = "Simulated-A100-SXM4-80GB"
    gpu_memory_mib: int = 81920

    @property
    def context(self) -> str:
        """Name of the kubectl context. Stacks verify it before they deploy."""
        return "gpu-platform-dev" if self.kind is Kind.REAL else "gpu-platform-simulated"

    @property
    def control_plane(self) -> RealNode:
        """The real node with the control plane, the registry and the Docker engine."""
        return next(node for node in self.real_nodes if node.control_plane)


REAL_NODES = (
    RealNode("gpu-node-0", "10.250.76.2", "10.250.0.0/24", control_plane=True),
    RealNode("gpu-node-1", "10.250.76.3", "10.250.1.0/24", control_plane=False),
)


def cluster_spec(kind: Kind, simulated_nodes: int | None = None) -> ClusterSpec:
    """Return the specification of a cluster. Simulated clusters have four nodes by default."""
    if kind is Kind.REAL:
        return ClusterSpec(kind, simulated_nodes or 0, real_nodes=REAL_NODES)
    return ClusterSpec(kind, 4 if simulated_nodes is None else simulated_nodes)
