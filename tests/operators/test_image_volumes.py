"""A kubelet mounts a model as an image volume, and the server of a rendered pod serves it.

The model is an image: containerd mounts those, but not the files of an artifact.
"""

import contextlib
import json
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from devcluster import host
from devcluster.images import base_image
from devcluster.images.base_image import PYTORCH
from devcluster.images.catalog import TOOL_IMAGES
from devcluster.images.oci import ImageConfig, Layout
from devcluster.paths import CHECKOUT, cache_root
from devcluster.spec import Kind
from devcluster.toolchain import Toolchain, ensure
from tests.cluster.load import question
from tests.cluster.platform import await_
from tests.gpu_platform.models.conftest import Shelf, registry, shelf, trained  # noqa: F401 - fixtures
from tests.infra.serving.examples import objects, serving
from tests.operators import standalone
from tests.operators.standalone import REGISTRY, Node
from tests.tiers import unavailable

PORT = 8080
PROGRAM = ("inference", "workload")


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    verdict = host.choose_kind("auto")
    if verdict.kind is not Kind.REAL:
        unavailable(verdict.reason)
    return ensure("real", cache_root(), sys.stderr.write, ["containerd"])


@pytest.fixture
def node(tools: Toolchain, shelf: Shelf, tmp_path: Path) -> Iterator[Node]:  # noqa: F811
    """A node whose registry has the published model."""
    shelf.publish()
    folder = tmp_path / "node"
    copied = standalone.layout_of(folder).registry
    shutil.copytree(shelf.registry.folder, copied)
    with standalone.node(folder, tools.bin) as running:
        await_(lambda: answers(running, "5000", "/v2/"), 60, "the registry")
        yield running


def answers(node: Node, port: str, path: str) -> bool:
    try:
        node.run("curl", "--silent", "--fail", f"http://127.0.0.1:{port}{path}")
    except AssertionError:
        return False
    return True


def push(node: Node, layout: Layout, name: str) -> str:
    """Push an image and return its digest."""
    options = ["--insecure-policy", "--dest-tls-verify=false"]
    source, target = f"oci:{layout.folder}", f"docker://{REGISTRY}/{name}"
    node.run("skopeo", "copy", *options, source, target)
    return str(layout.digest)


def packed(folders: dict[str, Path], tar: Path) -> Path:
    """Write directories to a tar file of a layer, readable for every user."""

    def readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    with tarfile.open(tar, "w") as archive:
        for name, folder in folders.items():
            archive.add(folder, name, filter=readable)
    return tar


def server(tmp_path: Path) -> Layout:
    """Return the image of the model server."""
    base = base_image.build(
        PYTORCH, cache_root() / "images", Path(str(shutil.which("uv"))), tmp_path / "base.log"
    )
    program = packed({f"app/{name}": CHECKOUT / name for name in PROGRAM}, tmp_path / "program.tar")
    image = Layout(tmp_path / "server")
    image.write([*base.layers(), program], ImageConfig(environment={"PYTHONPATH": "/app"}))
    return image


def pod(image: str, model: str) -> dict[str, Any]:
    """Return the pod of a rendered Deployment as one without a control plane."""
    described = serving(job=None, source={"artifact": model}, gpus=0)
    template = objects(described)["Deployment"]["spec"]["template"]
    spec: dict[str, Any] = {**template["spec"], "hostNetwork": True}
    for needs_a_control_plane in ("serviceAccountName", "priorityClassName", "schedulerName"):
        spec.pop(needs_a_control_plane, None)
    (container,) = spec["containers"]
    resources = {"requests": {"cpu": "100m", "memory": "768Mi"}, "limits": {"memory": "1Gi"}}
    spec["containers"] = [{**container, "image": image, "resources": resources}]
    about = {**template["metadata"], "name": "digits", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def test_a_server_serves_a_model_that_the_kubelet_mounted(
    node: Node,
    shelf: Shelf,  # noqa: F811
    tools: Toolchain,
    tmp_path: Path,
) -> None:
    (pause,) = (image for image in TOOL_IMAGES if image.tool == "pause")
    push(node, pause.layout(tmp_path / "images", tools.bin), pause.reference)
    push(node, server(tmp_path), "server:1")
    model = Layout(tmp_path / "model")
    model.write([packed({".": shelf.exports["first"]}, tmp_path / "model.tar")], ImageConfig())
    digest = push(node, model, "images/digits:1")

    node.start(pod(f"{REGISTRY}/server:1", f"{REGISTRY}/images/digits@{digest}"))
    await_(lambda: answers(node, "8080", "/v2/health/ready"), 300, "the model")
    file = tmp_path / "question.json"
    file.write_text(json.dumps(question()))
    url = f"http://127.0.0.1:{PORT}/v2/models/digits/infer"
    answer = json.loads(node.run("curl", "--silent", "--fail", "--data", f"@{file}", url))
    (classes,) = answer["outputs"]
    assert len(classes["data"]) == 16
    weights = json.loads((shelf.exports["first"] / "manifest.json").read_text())["weights"]
    assert weights["sha256"].startswith(answer["model_version"])


def mounted(node: Node) -> list[str] | None:
    """Return the files below /models of the container that pauses."""
    for process in node.process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline() == ["/pause"]:
                models = Path(f"/proc/{process.pid}/root/models")
                if models.is_dir():
                    return sorted(str(file.relative_to(models)) for file in models.rglob("*"))
    return None


def test_containerd_mounts_no_artifact_of_a_published_model(
    node: Node,
    shelf: Shelf,  # noqa: F811
    tools: Toolchain,
    tmp_path: Path,
) -> None:
    (pause,) = (image for image in TOOL_IMAGES if image.tool == "pause")
    push(node, pause.layout(tmp_path / "images", tools.bin), pause.reference)
    manifest = pod(f"{REGISTRY}/{pause.reference}", f"{REGISTRY}/{shelf.path}@{shelf.publish()}")
    (container,) = manifest["spec"]["containers"]
    manifest["spec"]["containers"] = [
        {name: container[name] for name in ("name", "image", "securityContext", "volumeMounts")}
    ]
    node.start(manifest)
    await_(lambda: mounted(node) is not None, 120, "the container")
    assert mounted(node) == []
