"""Image stores of the real nodes: a cache in which the base image is unpacked once.

containerd of each node and the Docker engine have a store each. Layers are read-only, so that the
files of the base image are hard links to one copy.
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
from devcluster.host import GIB
from devcluster.images.base_image import PYTORCH
from devcluster.images.oci import Layout as Image
from devcluster.launcher import running_elsewhere
from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, Kind, RealNode

ENOUGH: Final = 3 * GIB
"""Free bytes below which the stores are emptied."""

DOCKER: Final = "/usr/bin/docker"
"""Debian's CLI; another one on PATH may not match the engine."""

_LINKED: Final = "base-images"
"""File with the names of the base images in the stores, one per line."""

_CONTAINERD: Final = Path("/var/lib/containerd")
_DOCKER_HOME: Final = Path("/var/lib/docker")


def free_space(layout: Layout) -> str:
    """Empty the stores if the disk is nearly full or if they hold layers of other base images.

    Return a message about it, or nothing. While a cluster runs, all stores stay.
    """
    if not layout.node_stores.exists() or running_elsewhere(Kind.REAL):
        return ""
    free = shutil.disk_usage(layout.cache).free
    if free < ENOUGH:
        reason = f"only {free / GIB:.1f} GiB were free"
    elif _linked(layout) != [PYTORCH.name]:
        reason = "the base image has changed"
    else:
        return ""
    shutil.rmtree(layout.node_stores, ignore_errors=True)
    gained = (shutil.disk_usage(layout.cache).free - free) / GIB
    return f"removed the nodes' cached images ({gained:.1f} GiB), because {reason}"


def link_base(layout: Layout, spec: ClusterSpec, reference: str) -> None:
    """Put the layers of PyTorch's base image into all stores, unless they are there.

    `reference` is its name in the registry. Raises CalledProcessError.
    """
    linked = _linked(layout)
    if PYTORCH.name in linked:
        return
    trees = _fill_nodes(layout, spec, Image(layout.images / PYTORCH.name))
    _link_docker(layout, layout.node_store(spec.control_plane.name), reference, trees)
    (layout.node_stores / _LINKED).write_text("\n".join([*linked, PYTORCH.name]) + "\n")


def _linked(layout: Layout) -> list[str]:
    file = layout.node_stores / _LINKED
    return file.read_text().split() if file.exists() else []


@dataclass(frozen=True)
class _Containerd:
    """Snapshots of a node's containerd, which `ctr` reaches through its process's root."""

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
        raise DevclusterError(f"containerd of {node.name} does not run; see {layout.logs}")

    def has(self, name: str) -> bool:
        """Return True if there is a snapshot of this name."""
        return _run([*self.command, "info", name], check=False).returncode == 0

    def fill(self, key: str, parent: str, layer: Path, tree: Path | None) -> None:
        """Create the snapshot of a layer: linked from `tree`, else unpacked from its file."""
        draft = f"{key}-draft"
        _run([*self.command, "remove", draft], check=False)  # of an interrupted start
        directories = self._directories("prepare", draft, parent)
        _copy(tree, next(directories)) if tree else _unpack(layer, next(directories))
        _run([*self.command, "commit", key, draft])

    def trees(self, name: str) -> list[Path]:
        """Return the directories of the layers of a snapshot, the lowest first."""
        view = f"{name}-view"
        found = list(self._directories("view", view, name))
        _run([*self.command, "remove", view])
        return found[::-1]

    def _directories(self, command: str, key: str, parent: str) -> Iterator[Path]:
        """Create a snapshot; return the directory to write to, else those to read from."""
        mount = json.loads(_run([*self.command, command, "--mounts", key, parent]).stdout)[0]
        options = dict(option.partition("=")[::2] for option in mount["Options"])
        sources = options.get("upperdir") or options.get("lowerdir") or mount["Source"]
        for source in sources.split(":"):
            yield self.store / Path(source).relative_to(_CONTAINERD)


def _fill_nodes(layout: Layout, spec: ClusterSpec, image: Image) -> list[Path]:
    """Fill the stores of all nodes; return the directories of the layers in the first one."""
    trees: list[Path] = []
    for node in spec.real_nodes:
        containerd, parent = _Containerd.of(layout, node), ""
        for index, layer in enumerate(image.layers()):
            key = _chain(parent, layer.diff_id)
            if not containerd.has(key):
                containerd.fill(key, parent, layer.file, trees[index] if trees else None)
            parent = key
        trees = trees or containerd.trees(parent)
    return trees


def _link_docker(layout: Layout, store: Path, reference: str, trees: Sequence[Path]) -> None:
    """Let Docker pull the image, then replace its copies of the layers, which nobody uses yet."""
    docker = [DOCKER, f"--host=unix://{layout.docker_socket}"]
    _run([*docker, "pull", "--quiet", reference])
    form = "{{.GraphDriver.Data.UpperDir}}:{{.GraphDriver.Data.LowerDir}}"
    found = _run([*docker, "image", "inspect", f"--format={form}", reference]).stdout
    for tree, inside in zip(reversed(trees), found.strip().split(":"), strict=True):
        directory = store / "docker" / Path(inside).relative_to(_DOCKER_HOME)
        linked, old = directory.with_name("linked"), directory.with_name("old")
        _copy(tree, linked)
        directory.rename(old)
        linked.rename(directory)
        shutil.rmtree(old)


def _chain(parent: str, diff_id: str) -> str:
    """Return the chain ID of a layer (OCI image specification), by which snapshots are named."""
    return f"sha256:{sha256(f'{parent} {diff_id}'.encode()).hexdigest()}" if parent else diff_id


def _unpack(layer: Path, to: Path) -> None:
    exactly = ["--numeric-owner", "--same-permissions", "--xattrs", "--xattrs-include=*"]
    unpack = ["tar", "--extract", "--use-compress-program=pigz", *exactly]
    _run([*unpack, f"--file={layer}", f"--directory={to}"])


def _copy(tree: Path, to: Path) -> None:
    _run(["cp", "--archive", "--link", "--no-target-directory", str(tree), str(to)])


def _run(command: list[str], *, check: bool = True) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, check=check, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
