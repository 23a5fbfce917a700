"""Image stores of the nodes: the base image is unpacked once, and old ones are removed."""

import sys
from pathlib import Path

import psutil
import pytest

from devcluster import DevclusterError
from devcluster.images.base_image import PYTORCH
from devcluster.images.oci import ImageConfig, file_layer
from devcluster.images.oci import Layout as Image
from devcluster.nodes import image_stores
from devcluster.nodes.image_stores import free_disk_space, link_base
from devcluster.paths import Layout
from devcluster.spec import Kind, cluster_spec
from tests.devcluster.conftest import Install

SPEC = cluster_spec(Kind.REAL)
REFERENCE = "127.0.0.1:5000/pytorch-cpu:2.15.0"

# Snapshots are directories of the store; `names` maps their names to them.
CTR = """
import json, sys
from pathlib import Path

nodes = {{"71": "gpu-node-0", "72": "gpu-node-1"}}
address, command, *arguments = sys.argv[1], sys.argv[4], *sys.argv[5:]
store = Path({stores!r}, nodes[address.split("/")[2]], "containerd")
names = store / "names"
names.mkdir(parents=True, exist_ok=True)

def inside(name):
    return "/var/lib/containerd/" + (names / name).read_text()

if command == "info":
    sys.exit(not (names / arguments[0]).exists())
elif command == "remove":
    (names / arguments[0]).unlink(missing_ok=True)
elif command == "commit":
    (names / arguments[1]).rename(names / arguments[0])
elif command == "prepare":
    _, key, parent = arguments
    folder = f"{{len(list(store.iterdir()))}}/fs"
    (store / folder).mkdir(parents=True)
    (names / key).write_text(folder)
    options = ["upperdir=" + inside(key), "lowerdir=" + inside(parent)] if parent else []
    print(json.dumps([{{"Source": inside(key), "Options": options}}]))
elif command == "view":
    lower = sorted(store.glob("*/fs"), reverse=True)
    paths = ["/var/lib/containerd/" + str(path.relative_to(store)) for path in lower]
    (names / arguments[1]).touch()
    print(json.dumps([{{"Source": "overlay", "Options": ["lowerdir=" + ":".join(paths)]}}]))
"""
DOCKER = """[ -z "$DOCKER_TLS_VERIFY$DOCKER_TLS" ] || exit 1  # a TLS client cannot use the socket
case "$2" in
pull)
  for layer in upper lower; do
    mkdir -p {store}/overlay2/$layer/diff; echo > {store}/overlay2/$layer/diff/its-own
  done ;;
image) echo /var/lib/docker/overlay2/upper/diff:/var/lib/docker/overlay2/lower/diff ;;
esac"""


@pytest.fixture
def stores(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A machine without a cluster, with images of earlier clusters in its node stores."""
    monkeypatch.setattr(image_stores, "running_elsewhere", lambda _: [])
    monkeypatch.setattr(image_stores, "MIN_FREE_BYTES", 1)
    store = layout.node_store("gpu-node-0") / "containerd"
    store.mkdir(parents=True)
    (store / "layer").write_text("a layer")
    (layout.node_stores / "base-images").write_text(f"{PYTORCH.name}\n")
    return layout


def test_image_stores_are_kept_while_there_is_disk_space(stores: Layout) -> None:
    assert free_disk_space(stores) == ""
    assert stores.node_stores.exists()


def test_image_stores_are_deleted_if_the_disk_is_full(
    stores: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_stores, "MIN_FREE_BYTES", 1 << 60)
    assert "because only " in free_disk_space(stores)
    assert not stores.node_stores.exists()


@pytest.mark.parametrize("names", ["", "pytorch-cpu-0\n", f"pytorch-cpu-0\n{PYTORCH.name}\n"])
def test_image_stores_with_another_base_image_are_deleted(stores: Layout, names: str) -> None:
    (stores.node_stores / "base-images").write_text(names)
    assert "because the base image has changed" in free_disk_space(stores)
    assert not stores.node_stores.exists()


def test_image_stores_of_a_running_cluster_are_kept(
    stores: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_stores, "MIN_FREE_BYTES", 1 << 60)
    monkeypatch.setattr(image_stores, "running_elsewhere", lambda _: [Path("/elsewhere")])
    assert free_disk_space(stores) == ""
    assert stores.node_stores.exists()


class Process:
    """A containerd process as psutil returns it."""

    def __init__(self, pid: int, configuration: Path) -> None:
        self.pid = pid
        self.info = {"cmdline": ["containerd", "-c", str(configuration)]}


def write_image(layout: Layout, tmp_path: Path) -> None:
    image, tars = Image(layout.images / PYTORCH.name), []
    for name in ("root", "site"):
        (tmp_path / name).write_text(name)
        tars.append(tmp_path / f"{name}.tar")
        file_layer({f"/usr/{name}": tmp_path / name}, tars[-1])
    layout.images.mkdir(parents=True)
    image.write(tars, ImageConfig())


@pytest.fixture
def nodes(
    layout: Layout, tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> Layout:
    """Two nodes with a running containerd, and a base image."""
    install("pigz", 'case "$1" in -d) exec gzip -d ;; *) exec gzip -n -c "$4" ;; esac')
    write_image(layout, tmp_path)
    script = tmp_path / "ctr.py"
    script.write_text(CTR.format(stores=str(layout.node_stores)))
    install("ctr", f'exec {sys.executable} {script} "$@"')
    docker = DOCKER.format(store=layout.node_store("gpu-node-0") / "docker")
    monkeypatch.setattr(image_stores, "DOCKER", str(install("docker", docker)))
    running = [
        Process(pid, layout.node(node.name) / "containerd.toml")
        for pid, node in zip((71, 72), SPEC.real_nodes, strict=True)
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda _: running)
    return layout


def copies(layout: Layout, name: str) -> list[Path]:
    return sorted(layout.node_stores.rglob(f"usr/{name}"))


def test_the_base_image_is_unpacked_once_for_all_stores(
    nodes: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DOCKER_TLS", "DOCKER_TLS_VERIFY"):
        monkeypatch.setenv(name, "1")  # The user's setting for another Docker engine.
    link_base(nodes, SPEC, REFERENCE)
    for name in ("root", "site"):
        found = copies(nodes, name)
        assert len(found) == 3
        assert len({path.stat().st_ino for path in found}) == 1
        assert {path.read_text() for path in found} == {name}
    assert not list(nodes.node_stores.rglob("its-own"))
    assert (nodes.node_stores / "base-images").read_text() == f"{PYTORCH.name}\n"


def test_second_start_does_not_change_the_image_stores(nodes: Layout, install: Install) -> None:
    link_base(nodes, SPEC, REFERENCE)
    install("ctr", "exit 1")
    link_base(nodes, SPEC, REFERENCE)


def test_interrupted_copy_of_the_base_image_is_completed(nodes: Layout) -> None:
    link_base(nodes, SPEC, REFERENCE)
    (nodes.node_stores / "base-images").unlink()
    names = nodes.node_store("gpu-node-1") / "containerd" / "names"
    draft = max(names.iterdir(), key=lambda file: file.read_text())
    draft.rename(names / f"{draft.name}-draft")
    link_base(nodes, SPEC, REFERENCE)
    assert len({path.stat().st_ino for path in copies(nodes, "site")}) == 1
    assert draft.exists()


def test_error_names_the_node_without_containerd(
    nodes: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "process_iter", lambda _: [])
    with pytest.raises(DevclusterError, match="containerd of gpu-node-0 is not running"):
        link_base(nodes, SPEC, REFERENCE)
