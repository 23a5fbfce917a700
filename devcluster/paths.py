"""Where the embedded cluster keeps its files: one cache folder outside the checkout.

The cache (tools, image layers, downloaded charts) can be made again and is kept by
`make down PURGE=1`; the state (etcd, checkpoints, Pulumi's stack) can not, and is not.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """`$GPU_PLATFORM_CACHE`, else `gpu-platform` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if named := environment.get("GPU_PLATFORM_CACHE"):
        return Path(named).expanduser().resolve()
    base = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '~')}/.cache"
    return (Path(base).expanduser() / "gpu-platform").resolve()


def state_root(environment: Mapping[str, str] = os.environ) -> Path:
    """`$GPU_PLATFORM_STATE`, else `state` in the cache folder."""
    if named := environment.get("GPU_PLATFORM_STATE"):
        return Path(named).expanduser().resolve()
    return cache_root(environment) / "state"


@dataclass(frozen=True)
class Layout:
    """Every path of one cluster; nothing else builds paths of its own."""

    cache: Path
    state: Path

    @classmethod
    def of(cls, kind: str) -> "Layout":
        """The layout of the cluster of a kind (`real` or `simulated`)."""
        return cls(cache_root(), state_root() / kind)

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.state / "logs"

    @property
    def record(self) -> Path:
        """What was started: process, boot, cgroups (JSON)."""
        return self.state / "cluster.json"

    @property
    def events(self) -> Path:
        """Steps of the start, a JSON object a line, written inside, read outside."""
        return self.state / "events.jsonl"

    @property
    def lock(self) -> Path:
        """Held while a command changes the cluster or its stack."""
        return self.state / "lock"

    @property
    def kubeconfig(self) -> Path:
        """For the user's side of the cluster."""
        return self.state / "kubeconfig"

    @property
    def scheduler_configuration(self) -> Path:
        """Volcano's own file format, for the scheduler beside a simulated cluster."""
        return self.state / "volcano" / "scheduler.conf"

    @property
    def docker_socket(self) -> Path:
        """Of the Docker engine on the control plane's node."""
        return self.state / "docker.sock"

    @property
    def volumes(self) -> Path:
        """Seen by every real node as /var/lib/shared-volumes: checkpoints live here."""
        return self.state / "volumes"

    @property
    def control_plane(self) -> Path:
        """HOME of kwokctl: etcd's data, certificates, component logs."""
        return self.state / "control-plane"

    @property
    def pki(self) -> Path:
        """Certificates that kwokctl made."""
        return self.control_plane / ".kwok" / "clusters" / "cluster" / "pki"

    @property
    def pulumi_backend(self) -> Path:
        """Pulumi's stacks of this cluster."""
        return self.state / "pulumi"

    @property
    def registry(self) -> Path:
        """Storage of the registry inside, kept as a cache."""
        return self.cache / "registry"

    @property
    def images(self) -> Path:
        """Images that devcluster makes itself, as OCI layouts."""
        return self.cache / "images"

    def node(self, name: str) -> Path:
        """What a real node writes outside its images and pods."""
        return self.state / "nodes" / name

    def gpu_faults(self, node: str) -> Path:
        """What is to be wrong with a real node's GPUs, where it is there (simulated_gpus.py)."""
        return self.node(node) / "gpu-faults.json"

    @property
    def node_stores(self) -> Path:
        """The real nodes' image stores, kept as a cache."""
        return self.cache / "nodes"

    def node_store(self, name: str) -> Path:
        """A real node's image stores."""
        return self.node_stores / name
