"""A kubelet mounts a model as an image volume, and the server of a rendered pod serves it.

The model is an OCI image, because containerd does not mount the files of an artifact.
"""

import json
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.images import base_image
from devcluster.images.base_image import PYTORCH
from devcluster.images.oci import ImageConfig, Layout
from devcluster.paths import CHECKOUT, cache_root
from tests.cluster.load import inference_request
from tests.cluster.platform import await_
from tests.engine.models.conftest import Shelf, registry, shelf, trained  # noqa: F401 - fixtures
from tests.infra.serving.examples import objects, serving
from tests.operators import standalone
from tests.operators.standalone import REGISTRY, Node

PORT = 8080
PROGRAM = ("inference", "workload")


@pytest.fixture
def node(shelf: Shelf, tmp_path: Path) -> Iterator[Node]:  # noqa: F811
    """A node whose registry has the published model."""
    shelf.publish()
    folder = tmp_path / "node"
    shutil.copytree(shelf.registry.folder, standalone.layout_of(folder).registry)
    with standalone.node(folder) as running:
        yield running


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
        PYTORCH,
        cache_root() / "images",
        Path(sys.executable).with_name("uv"),
        tmp_path / "base.log",
    )
    program = packed({f"app/{name}": CHECKOUT / name for name in PROGRAM}, tmp_path / "program.tar")
    image = Layout(tmp_path / "server")
    image.write([*base.layers(), program], ImageConfig(environment={"PYTHONPATH": "/app"}))
    return image


def pod(image: str, model: str) -> dict[str, Any]:
    """Return the pod of a rendered Deployment."""
    described = serving(job=None, source={"artifact": model}, gpus=0)
    template = objects(described)["Deployment"]["spec"]["template"]
    made = standalone.static("digits", template["spec"])
    (container,) = made["spec"]["containers"]
    resources = {"requests": {"cpu": "100m", "memory": "768Mi"}, "limits": {"memory": "1Gi"}}
    made["spec"]["containers"] = [{**container, "image": image, "resources": resources}]
    return made


def test_server_serves_a_model_mounted_by_the_kubelet(
    node: Node,
    shelf: Shelf,  # noqa: F811
    tmp_path: Path,
) -> None:
    node.push(server(tmp_path), "server:1")
    model = Layout(tmp_path / "model")
    model.write([packed({".": shelf.exports["first"]}, tmp_path / "model.tar")], ImageConfig())
    digest = node.push(model, "images/digits:1")

    node.start(pod(f"{REGISTRY}/server:1", f"{REGISTRY}/images/digits@{digest}"))
    await_(lambda: node.answers(PORT, "/v2/health/ready"), "the model")
    file = tmp_path / "question.json"
    file.write_text(json.dumps(inference_request()))
    url = f"http://127.0.0.1:{PORT}/v2/models/digits/infer"
    answer = json.loads(node.run("curl", "--silent", "--fail", "--data", f"@{file}", url))
    (classes,) = answer["outputs"]
    assert len(classes["data"]) == 16
    weights = json.loads((shelf.exports["first"] / "manifest.json").read_text())["weights"]
    assert weights["sha256"].startswith(answer["model_version"])


def test_containerd_cannot_mount_the_artifact_of_a_published_model(
    node: Node,
    shelf: Shelf,  # noqa: F811
) -> None:
    pause = f"{REGISTRY}/pause:3.10"
    manifest = pod(pause, f"{REGISTRY}/{shelf.path}@{shelf.publish()}")
    (container,) = manifest["spec"]["containers"]
    for name in ("command", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
        container.pop(name, None)
    node.start(manifest)

    def mounted() -> list[Path]:
        return [root for root in node.containers(["/pause"]) if (root / "models").is_dir()]

    await_(lambda: bool(mounted()), "the container")
    assert [*(mounted()[0] / "models").iterdir()] == []
