"""Image stores of the real nodes. The base image is unpacked only once for all of them.

The containerd of each node and the Docker engine each have a store. Layers are read-only, so the
files of the base image can be hard links to a single copy.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import psutil

from devcluster import DevclusterError
from devcluster.environment import DOCKER_DEFAULTS
from devcluster.host import GIB
from devcluster.images.base_image import PYTORCH
from devcluster.images.oci import Layout as Image
from devcluster.launcher import running_elsewhere
from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, Kind, RealNode

MIN_FREE_BYTES: Final = 3 * GIB
"""Free disk space (bytes) below which the stores are emptied."""

DOCKER: Final = "/usr/bin/docker"
"""Debian's CLI. Another CLI on the PATH may not match the engine."""

_LINKED_IMAGES_FILE: Final = "base-images"
"""File with the names of the base images in the stores, one per line."""

_CONTAINERD: Final = Path("/var/lib/containerd")
_DOCKER_HOME: Final = Path("/var/lib/docker")


def free_disk_space(layout: Layout) -> str:
    """Empty the stores if disk space is low or the base image has changed.

    Return a message if they were emptied, otherwise an empty string. While a cluster is running,
    all stores are kept.
    """
    if not layout.node_stores.exists() or running_elsewhere(Kind.REAL):
        return ""
    free = shutil.disk_usage(layout.cache).free
    if free < MIN_FREE_BYTES:
        reason = f"only {free / GIB:.1f} GiB were free"
    elif _linked_images(layout) != [PYTORCH.name]:
        reason = "the base image has changed"
    else:
        return ""
    shutil.rmtree(layout.node_stores, ignore_errors=True)
    freed = (shutil.disk_usage(layout.cache).free - free) / GIB
    return f"removed the nodes' cached images ({freed:.1f} GiB), because {reason}"


def link_base(layout: Layout, spec: ClusterSpec, reference: str) -> None:
    """Link the layers of PyTorch's base image into all stores that do not contain them.

    `reference` is the image's name in the registry. Raise CalledProcessError if a command fails.
    """
    linked = _linked_images(layout)
    if PYTORCH.name in linked:
        return
    trees = _fill_nodes(layout, spec, Image(layout.images / PYTORCH.name))
    _link_docker(layout, layout.node_store(spec.control_plane.name), reference, trees)
    (layout.node_stores / _LINKED_IMAGES_FILE).write_text("\n".join([*linked, PYTORCH.name]) + "\n")


def _linked_images(layout: Layout) -> list[str]:
    file = layout.node_stores / _LINKED_IMAGES_FILE
    return file.read_text().split() if file.exists() else []


@dataclass(frozen=True)
class _Containerd:
    """Snapshots in a node's containerd, accessed with `ctr` through /proc/<pid>/root."""

    command: Sequence[str]
    store: Path

    @classmethod
    def of(cls, layout: Layout, node: RealNode) -> "_Containerd":
        configuration = str(layout.node(node.name) / "containerd.toml")
        for process in psutil.process_iter(["cmdline"]):
            if process.info["cmdline"] == ["containerd", "-c", configuration]:
                socket = f"/proc/{process.pid}/root/run/containerd/containerd.sock"
                command = ["ctr", f"--address={socket}", "--namespace=k8s.io", "snapshots"]
                return cls(command, layout.node_store(node.name) / "containerd")
        raise DevclusterError(f"containerd of {node.name} is not running; see {layout.logs}")

    def has(self, name: str) -> bool:
        """Return whether a snapshot with this name exists."""
        return _run([*self.command, "info", name], check=False).returncode == 0

    def fill(self, key: str, parent: str, layer: Path, tree: Path | None) -> None:
        """Create the snapshot of a layer.

        The files are hard links to those in `tree`. If `tree` is None, the files are extracted
        from the `layer` archive.
        """
        draft = f"{key}-draft"
        _run([*self.command, "remove", draft], check=False)  # left over from an interrupted start
        directories = self._directories("prepare", draft, parent)
        _copy(tree, next(directories)) if tree else _unpack(layer, next(directories))
        _run([*self.command, "commit", key, draft])

    def trees(self, name: str) -> list[Path]:
        """Return the directories of a snapshot's layers, starting with the lowest layer."""
        view = f"{name}-view"
        directories = list(self._directories("view", view, name))
        _run([*self.command, "remove", view])
        return directories[::-1]

    def _directories(self, command: str, key: str, parent: str) -> Iterator[Path]:
        """Create a snapshot and yield its writable directory or, for a view, its read-only ones."""
        mount = json.loads(_run([*self.command, command, "--mounts", key, parent]).stdout)[0]
        options = dict(option.partition("=")[::2] for option in mount["Options"])
        sources = options.get("upperdir") or options.get("lowerdir") or mount["Source"]
        for source in sources.split(":"):
            yield self.store / Path(source).relative_to(_CONTAINERD)


def _fill_nodes(layout: Layout, spec: ClusterSpec, image: Image) -> list[Path]:
    """Fill the stores of all nodes; return the directories of the layers in the first store."""
    trees: list[Path] = []
    for node in spec.real_nodes:
        containerd, parent = _Containerd.of(layout, node), ""
        for index, layer in enumerate(image.layers()):
            key = _chain_id(parent, layer.diff_id)
            if not containerd.has(key):
                containerd.fill(key, parent, layer.file, trees[index] if trees else None)
            parent = key
        trees = trees or containerd.trees(parent)
    return trees


def _link_docker(layout: Layout, store: Path, reference: str, trees: Sequence[Path]) -> None:
    """Let Docker pull the image, then replace its copies of the layers with hard links."""
    defaults = [f"{name}={value}" for name, value in DOCKER_DEFAULTS.items()]
    docker = ["env", *defaults, DOCKER, f"--host=unix://{layout.docker_socket}"]
    _run([*docker, "pull", "--quiet", reference])
    template = "{{.GraphDriver.Data.UpperDir}}:{{.GraphDriver.Data.LowerDir}}"
    output = _run([*docker, "image", "inspect", f"--format={template}", reference]).stdout
    for tree, inside in zip(reversed(trees), output.strip().split(":"), strict=True):
        directory = store / "docker" / Path(inside).relative_to(_DOCKER_HOME)
        linked, old = directory.with_name("linked"), directory.with_name("old")
        _copy(tree, linked)
        directory.rename(old)
        linked.rename(directory)
        shutil.rmtree(old)


def _chain_id(parent: str, diff_id: str) -> str:
    """Return a layer's chain ID (OCI image specification), which is the name of its snapshot."""
    return f"sha256:{sha256(f'{parent} {diff_id}'.encode()).hexdigest()}" if parent else diff_id


def _unpack(layer: Path, to: Path) -> None:
    options = ["--numeric-owner", "--same-permissions", "--xattrs", "--xattrs-include=*"]
    unpack = ["tar", "--extract", "--use-compress-program=pigz", *options]
    _run([*unpack, f"--file={layer}", f"--directory={to}"])


def _copy(tree: Path, to: Path) -> None:
    _run(["cp", "--archive", "--link", "--no-target-directory", str(tree), str(to)])


def _run(command: list[str], *, check: bool = True) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, check=check, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
