"""Paths of the embedded cluster: cache and state, outside the checkout.

The cache (tools, image layers, charts) can be rebuilt, but the state (etcd, checkpoints, Pulumi's
stack) cannot. `make down PURGE=1` keeps the cache and deletes the state.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from devcluster import DevclusterError
from devcluster.spec import ClusterSpec, Kind
from simulation.configuration import Settings, pki

CHECKOUT = Path(__file__).resolve().parent.parent


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `$GPU_PLATFORM_CACHE`; default: `gpu-platform` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if named := environment.get("GPU_PLATFORM_CACHE"):
        return _expanded(named)
    base = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '~')}/.cache"
    return _expanded(f"{base}/gpu-platform")


def state_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `$GPU_PLATFORM_STATE`, by default `state` in the cache directory."""
    if named := environment.get("GPU_PLATFORM_STATE"):
        return _expanded(named)
    return cache_root(environment) / "state"


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser().resolve()
    except RuntimeError as error:
        raise DevclusterError(
            f"{path} cannot be resolved: {error} Set GPU_PLATFORM_CACHE (or GPU_PLATFORM_STATE, if "
            "set) to another directory"
        ) from None


@dataclass(frozen=True)
class Layout:
    """All paths of a cluster."""

    cache: Path
    state: Path

    @classmethod
    def of(cls, kind: str) -> "Layout":
        """Return the layout of the `real` or the `simulated` cluster."""
        return cls(cache_root(), state_root() / kind)

    @property
    def logs(self) -> Path:
        """Directory with one log file per process."""
        return self.state / "logs"

    @property
    def record(self) -> Path:
        """JSON record of the running cluster: process, boot ID and cgroups."""
        return self.state / "cluster.json"

    @property
    def events(self) -> Path:
        """Log of the startup steps, one JSON object per line."""
        return self.state / "events.jsonl"

    @property
    def lock(self) -> Path:
        """Lock held by the command that changes the cluster or its stack."""
        return self.state / "lock"

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig for the user."""
        return self.state / "kubeconfig"

    @property
    def node_kubeconfig(self) -> Path:
        """Kubeconfig for the nodes. Nodes start their kubelets once this file exists."""
        return self.state / "node-kubeconfig"

    @property
    def scheduler_configuration(self) -> Path:
        """Configuration of Volcano's scheduler in a cluster with simulated nodes."""
        return self.state / "volcano" / "scheduler.conf"

    @property
    def docker_socket(self) -> Path:
        """Socket of the Docker engine."""
        return self.state / "docker.sock"

    @property
    def volumes(self) -> Path:
        """Directory of the volumes, which real nodes mount at /var/lib/shared-volumes."""
        return self.state / "volumes"

    @property
    def control_plane(self) -> Path:
        """HOME of kwokctl, with etcd's data, certificates and component logs."""
        return self.state / "control-plane"

    @property
    def pki(self) -> Path:
        """Directory of kwokctl's certificates."""
        return pki(self.control_plane)

    def control_plane_settings(self, spec: ClusterSpec, binaries: Path, port: int) -> Settings:
        """Return the settings of the control plane."""
        address = spec.control_plane.address if spec.kind is Kind.REAL else ""
        network, home = spec.network, self.control_plane
        settings = Settings(home, self.logs, binaries, port, spec.context, spec.kubernetes)
        return replace(
            settings, services=network.services, api_service=network.api_service, address=address
        )

    @property
    def pulumi_backend(self) -> Path:
        """Directory with the state of Pulumi's stacks."""
        return self.state / "pulumi"

    @property
    def registry(self) -> Path:
        """Storage of the cluster's registry, kept as a cache."""
        return self.cache / "registry"

    @property
    def images(self) -> Path:
        """Images that devcluster builds, as OCI layouts."""
        return self.cache / "images"

    def node(self, name: str) -> Path:
        """Return the directory that contains a real node's files, except its image stores."""
        return self.state / "nodes" / name

    def gpu_faults(self, node: str) -> Path:
        """Return the file that defines the GPU faults of a real node (nodes/gpus.py)."""
        return self.node(node) / "gpu-faults.json"

    @property
    def node_stores(self) -> Path:
        """Image stores of the real nodes, kept as a cache."""
        return self.cache / "nodes"

    def node_store(self, name: str) -> Path:
        """Return the directory of a real node's image stores."""
        return self.node_stores / name
