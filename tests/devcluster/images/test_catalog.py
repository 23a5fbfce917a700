"""The images in the registry before a deployment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from devcluster import DevclusterError
from devcluster.images.base_image import PYTORCH
from devcluster.images.catalog import BASES, KUBECTL, MPI, TOOL_IMAGES, BaseImages, ToolImage
from devcluster.nodes.services import PAUSE_IMAGE
from devcluster.paths import CHECKOUT, Layout
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import pins
from tests.devcluster.conftest import Install
from tests.processes import is_running

PAUSE = ToolImage("pause:3.10", "pause", "/pause")


@pytest.fixture
def binaries(tmp_path: Path, install: Install) -> Path:
    if shutil.which("pigz") is None:
        install("pigz", 'for file; do :; done; exec gzip -n -c "$file"')
    folder = tmp_path / "binaries"
    folder.mkdir()
    (folder / "pause").write_text("waits")
    return folder


def test_toolchain_provides_every_tool_in_an_image() -> None:
    programs = {program.name for _, program in pins.load().group("real")}
    tools = {
        tool
        for image in (*TOOL_IMAGES, KUBECTL)
        for tool in (image.tool, *dict(image.files).values())
    }
    assert tools <= programs


def test_kubectl_image_has_the_cluster_version() -> None:
    assert KUBECTL.reference == f"kubectl:{cluster_spec(Kind.REAL).kubernetes}"


def test_catalog_contains_the_pause_image_of_containerd() -> None:
    assert PAUSE_IMAGE.removeprefix("127.0.0.1:5000/") in {i.reference for i in TOOL_IMAGES}


def test_dev_stack_builds_on_the_base_image_in_the_catalog() -> None:
    assert f"127.0.0.1:5000/{PYTORCH.reference}" in (CHECKOUT / "Pulumi.dev.yaml").read_text()


def test_builds_of_base_images_stop_with_the_command(tmp_path: Path, install: Install) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    for name in ("mmdebstrap", "uv"):
        install(name, f"touch {pids}/$$; exec sleep 60")
    program = f"""if True:
        import time
        from pathlib import Path
        from devcluster.images.catalog import BaseImages
        from devcluster.paths import Layout
        BaseImages(Layout(Path({str(tmp_path)!r}), Path({str(tmp_path)!r})), Path("uv")).start()
        while len(list(Path({str(pids)!r}).iterdir())) < 2:
            time.sleep(0.02)
        raise SystemExit("the tools cannot be built")
    """
    subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=False)
    started = [int(file.name) for file in pids.iterdir()]
    assert len(started) == 2
    deadline = time.monotonic() + 300
    while (running := [pid for pid in started if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    assert not running


def test_image_is_built_only_once_for_the_same_program(tmp_path: Path, binaries: Path) -> None:
    images = tmp_path / "images"
    first = PAUSE.layout(images, binaries)
    stamp = (first.directory / "index.json").stat().st_mtime_ns
    again = PAUSE.layout(images, binaries)
    assert again.directory == first.directory
    assert (again.directory / "index.json").stat().st_mtime_ns == stamp
    assert [path.name for path in images.iterdir()] == [first.directory.name]


def test_changed_program_results_in_a_new_image(tmp_path: Path, binaries: Path) -> None:
    first = PAUSE.layout(tmp_path, binaries)
    (binaries / "pause").write_text("waits otherwise")
    second = PAUSE.layout(tmp_path, binaries)
    assert second.directory != first.directory
    assert second.digest != first.digest


def test_an_error_in_the_background_is_raised_by_wait(layout: Layout, install: Install) -> None:
    install("mmdebstrap", "exit 1")
    images = BaseImages(layout, install("uv", "exit 2"))
    images.start()
    with pytest.raises(DevclusterError, match=r"building the base image pytorch-cpu:\S+ failed"):
        images.wait(500)


def test_existing_base_images_are_not_built_again(layout: Layout, binaries: Path) -> None:
    uv = binaries / "uv"  # The build would fail, because the tool does not exist.
    images = BaseImages(layout, uv, BASES)
    for made in images.layouts.values():
        shutil.copytree(PAUSE.layout(layout.images, binaries).directory, made.directory)
    images.start()
    assert images.wait(0)


def test_pytorch_base_image_is_always_included_and_comes_first(layout: Layout) -> None:
    references = list(BaseImages(layout, Path("uv"), [MPI]).layouts)
    assert references == [PYTORCH.reference, MPI.reference]


def test_image_may_run_as_a_user_other_than_root(tmp_path: Path, binaries: Path) -> None:
    image = ToolImage("pause:3.10", "pause", "/pause", "65532:65532").layout(tmp_path, binaries)
    manifest = json.loads((image.directory / "index.json").read_text())["manifests"][0]
    blobs = image.directory / "blobs" / "sha256"
    config = json.loads((blobs / manifest["digest"].removeprefix("sha256:")).read_text())["config"]
    described = json.loads((blobs / config["digest"].removeprefix("sha256:")).read_text())
    assert described["config"]["User"] == "65532:65532"


def test_additional_file_results_in_a_new_image(tmp_path: Path, binaries: Path) -> None:
    (binaries / "script").write_text("does more")
    image = ToolImage("pause:3.10", "pause", "/pause", files=(("/script.sh", "script"),))
    first = image.layout(tmp_path, binaries)
    (binaries / "script").write_text("does something else")
    second = image.layout(tmp_path, binaries)
    assert first.directory != second.directory != PAUSE.layout(tmp_path, binaries).directory
    with tarfile.open(second.layers()[0].file) as archive:
        assert archive.getnames() == ["pause", "script.sh"]


def test_volcano_webhook_image_contains_the_script_for_certificates() -> None:
    webhooks = next(image for image in TOOL_IMAGES if image.tool == "vc-webhook-manager")
    # The path is hard-coded in Volcano's chart.
    assert dict(webhooks.files)["/gen-admission-secret.sh"] == "volcano-certificates"


def test_images_of_programs_in_one_file_share_a_layer(tmp_path: Path, binaries: Path) -> None:
    names = ("vc-scheduler", "vc-webhook-manager")
    for name in names:
        (binaries / name).hardlink_to(binaries / "pause")
    files = tuple((f"/{name}", name) for name in names)
    images = [ToolImage(f"{name}:1", name, f"/{name}", files=files) for name in names]
    layers = [image.layout(tmp_path, binaries).layers() for image in images]
    assert layers[0][0].diff_id == layers[1][0].diff_id
    with tarfile.open(layers[0][0].file) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == list(names)
    assert members[1].linkname == names[0]


def test_volcanos_images_share_a_layer() -> None:
    volcano = [image for image in TOOL_IMAGES if image.reference.startswith("volcanosh/")]
    (files,) = {image.files for image in volcano}
    assert {image.tool for image in volcano} < set(dict(files).values())
    built = {p.name: p.package for p in pins.load().module("tools").programs}
    assert len({built[image.tool] for image in volcano}) == 1
