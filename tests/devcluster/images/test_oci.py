"""Images on disk, and their push to a fake registry."""

import gzip
import hashlib
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from devcluster import DevclusterError
from devcluster.images.oci import MANIFEST_TYPE, ImageConfig, Layout, file_layer
from tests.devcluster.conftest import Install

CONFIG = ImageConfig(entrypoint=["/pause"], environment={"LANG": "C.UTF-8"}, user="10001")


class Registry(BaseHTTPRequestHandler):
    """Registry that answers HEAD requests as the distribution specification requires."""

    def do_HEAD(self) -> None:
        held = self.server.images.get(self.path)  # type: ignore[attr-defined]
        self.send_response(200 if held else 404)
        if held and self.headers["Accept"] == MANIFEST_TYPE:
            self.send_header("Docker-Content-Digest", held)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # The proxy must not be used.
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        server.images = {}  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def compressor(install: Install) -> None:
    if shutil.which("pigz") is None:
        install("pigz", 'for file; do :; done; exec gzip -n -c "$file"')


def address(server: ThreadingHTTPServer) -> str:
    return f"127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program"
    file.write_bytes(b"\x7fELF and so on")
    return file


def image(folder: Path, program: Path) -> Layout:
    folder.mkdir(parents=True)
    tar = folder / "layer.tar"
    file_layer({"/usr/bin/pause": program}, tar)
    layout = Layout(folder / "image")
    layout.write([tar], CONFIG)
    return layout


def blob(layout: Layout, digest: str) -> bytes:
    content = (layout.directory / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()
    assert "sha256:" + hashlib.sha256(content).hexdigest() == digest
    return content


def test_the_same_bytes_have_the_same_digest(tmp_path: Path, program: Path) -> None:
    first = image(tmp_path / "a", program)
    copy = tmp_path / "later"
    copy.write_bytes(program.read_bytes())
    copy.chmod(0o700)
    os.utime(copy, (0, 0))
    second = image(tmp_path / "b", copy)
    assert first.digest is not None
    assert first.digest == second.digest


def test_changed_bytes_result_in_another_digest(tmp_path: Path, program: Path) -> None:
    first = image(tmp_path / "a", program)
    program.write_bytes(b"changed")
    assert image(tmp_path / "b", program).digest != first.digest


def test_image_has_valid_metadata(tmp_path: Path, program: Path) -> None:
    layout = image(tmp_path / "a", program)
    assert layout.digest is not None
    manifest = json.loads(blob(layout, layout.digest))
    config = json.loads(blob(layout, manifest["config"]["digest"]))
    (layer,) = manifest["layers"]
    packed = blob(layout, layer["digest"])
    assert len(packed) == layer["size"]
    assert config["rootfs"]["diff_ids"] == [
        "sha256:" + hashlib.sha256(gzip.decompress(packed)).hexdigest()
    ]
    assert config["config"] == {"Entrypoint": ["/pause"], "Env": ["LANG=C.UTF-8"], "User": "10001"}
    assert (
        json.loads((layout.directory / "oci-layout").read_text())["imageLayoutVersion"] == "1.0.0"
    )


def test_program_in_an_image_is_executable_for_every_user(tmp_path: Path, program: Path) -> None:
    tar = tmp_path / "layer.tar"
    file_layer({"/usr/bin/pause": program}, tar)
    with tarfile.open(tar) as archive:
        (entry,) = archive.getmembers()
        content = archive.extractfile(entry)
        assert content is not None
        assert content.read() == program.read_bytes()
    assert (entry.name, entry.mode, entry.uid, entry.mtime) == ("usr/bin/pause", 0o755, 0, 0)


def test_symbolic_link_to_a_program_is_followed(tmp_path: Path, program: Path) -> None:
    (tmp_path / "link").symlink_to(program)
    file_layer({"/pause": tmp_path / "link"}, tmp_path / "layer.tar")
    with tarfile.open(tmp_path / "layer.tar") as archive:
        assert archive.getmember("pause").isreg()


def test_failed_build_leaves_no_incomplete_image(
    tmp_path: Path, program: Path, install: Install
) -> None:
    install("pigz", "printf half; exit 1")
    with pytest.raises(Exception, match="pigz"):
        image(tmp_path / "a", program)
    layout = Layout(tmp_path / "a" / "image")
    assert layout.digest is None
    assert not layout.directory.exists()


def test_leftovers_of_an_interrupted_build_are_ignored(tmp_path: Path, program: Path) -> None:
    stale = tmp_path / "a" / "image.part"
    stale.mkdir(parents=True)
    (stale / "junk").touch()
    tar = tmp_path / "layer.tar"
    file_layer({"/pause": program}, tar)
    layout = Layout(tmp_path / "a" / "image")
    layout.write([tar], CONFIG)
    assert layout.digest is not None
    assert not stale.exists()
    assert not (layout.directory / "junk").exists()


def test_an_image_that_the_registry_has_is_not_pushed(
    tmp_path: Path, program: Path, registry: ThreadingHTTPServer, install: Install
) -> None:
    install("skopeo", "exit 1")
    layout = image(tmp_path / "a", program)
    registry.images["/v2/tools/pause/manifests/3.10"] = layout.digest  # type: ignore[attr-defined]
    assert layout.push(address(registry), "tools/pause:3.10", tmp_path / "log") is False


@pytest.mark.parametrize("held", [None, "sha256:" + "0" * 64])
def test_an_image_that_the_registry_lacks_is_pushed(
    tmp_path: Path, program: Path, registry: ThreadingHTTPServer, install: Install, held: str | None
) -> None:
    install("skopeo", f'echo "$*" > {tmp_path}/arguments')
    layout = image(tmp_path / "a", program)
    registry.images["/v2/pause/manifests/3.10"] = held  # type: ignore[attr-defined]
    assert layout.push(address(registry), "pause:3.10", tmp_path / "log") is True
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.endswith(f"oci:{layout.directory} docker://{address(registry)}/pause:3.10\n")


def test_error_of_a_failed_push_names_the_log(
    tmp_path: Path, program: Path, registry: ThreadingHTTPServer, install: Install
) -> None:
    install("skopeo", "echo no room >&2; exit 1")
    log = tmp_path / "push.log"
    with pytest.raises(DevclusterError, match=rf"pushing image pause:3.10 failed; see {log}"):
        image(tmp_path / "a", program).push(address(registry), "pause:3.10", log)
    assert log.read_text() == "no room\n"


def test_unreachable_registry_is_reported(tmp_path: Path, program: Path) -> None:
    with pytest.raises(DevclusterError, match=r"registry 127.0.0.1:9 does not respond"):
        image(tmp_path / "a", program).push("127.0.0.1:9", "pause:3.10", tmp_path / "log")
