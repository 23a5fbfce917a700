"""Attempts to promote or fetch anything other than the published model; none may succeed.

tests/cluster/separate/test_model_admission.py has attempts to serve such models in a cluster.
"""

import functools
import http.server
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.models import artifact
from inference.cache import Cache
from inference.fetch import FetchError, fetch
from inference.registry import PLAIN_HTTP
from tests.engine.models.conftest import Shelf, keys
from tests.engine.models.manipulations import (
    PROMOTIONS,
    WEIGHTS,
    Attempt,
    a_blob_changed_in_the_registry,
    a_manifest_changed_in_the_registry,
    attach,
    document,
    layer,
    other_weights,
)
from tests.registry import Registry
from workload.manifest import ExportError, read_manifest


@dataclass(frozen=True)
class Published:
    """A repository with the first model, and a backup of the repository's directory."""

    shelf: Shelf
    digest: str
    copy: Path


def repository_directory(shelf: Shelf) -> Path:
    path = shelf.name.partition("/")[2]
    return shelf.registry.folder / "docker/registry/v2/repositories" / path


@pytest.fixture(scope="module")
def published(
    registry: Registry,
    trained: dict[str, tuple[Path, Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Published:
    """Publish the first model once for all attempts."""
    folder = tmp_path_factory.mktemp("published")
    key, public = keys(folder / "keys")
    shelf = Shelf(
        registry=registry,
        name=f"{registry.host}/models/published",
        exports={name: export for name, (export, _) in trained.items()},
        objects={name: objects for name, (_, objects) in trained.items()},
        key=key,
        public=public,
        calls=folder / "calls",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(registry.authority))
        digest = shelf.publish()
    copy = Path(shutil.copytree(repository_directory(shelf), folder / "repository"))
    return Published(shelf, digest, copy)


@pytest.fixture
def shelf(shelf: Shelf, published: Published) -> Shelf:
    """A shelf whose repository contains nothing but the published model."""
    original = published.shelf
    directory = repository_directory(original)
    shutil.rmtree(directory)
    shutil.copytree(published.copy, directory)
    return replace(shelf, name=original.name, key=original.key, public=original.public)


@pytest.fixture
def digest(published: Published) -> str:
    return published.digest


@pytest.mark.parametrize("attempt", PROMOTIONS, ids=lambda attempt: attempt.__name__)
def test_manipulated_model_is_not_promoted(
    attempt: Attempt, shelf: Shelf, digest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The expected reason is reported, nothing is admitted, and no stage tag moves."""
    version = attempt(shelf, digest)
    before = shelf.repository.tags()
    assert shelf.promote(version) != 0
    assert PROMOTIONS[attempt] in capsys.readouterr().err
    assert shelf.admitted() == {}
    assert shelf.repository.tags() == before


def test_model_copied_to_another_repository_is_not_promoted(
    shelf: Shelf, digest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shelf.elsewhere("copy")
    found = document(shelf, digest)
    for part in (found["config"], *found["layers"]):
        content = shelf.repository.blob(part["digest"])
        shelf.registry.put_blob(other.path, content, part["mediaType"])
    bundle = shelf.repository.signature(digest)
    for blob in (bundle, artifact.EMPTY):
        shelf.registry.put_blob(other.path, blob, artifact.SIGNATURE_TYPE)
    content = shelf.repository.manifest(digest)
    shelf.registry.put_manifest(other.path, digest, content)
    attach(other, digest, bundle)
    assert other.promote(digest) == 3
    assert f"was published as {shelf.path}" in capsys.readouterr().err
    assert other.admitted() == {}


def test_earlier_promotion_does_not_admit_the_new_target_of_its_tag(
    shelf: Shelf, digest: str, tmp_path: Path
) -> None:
    assert shelf.promote(digest) == 0
    evil = other_weights(shelf, digest)
    shelf.repository.push_manifest(shelf.repository.manifest(evil), "production")
    assert [*shelf.admitted()] == [digest.removeprefix("sha256:")]
    assert fetch(f"oci://{shelf.name}@{digest}", tmp_path / "served") == read_manifest(
        shelf.exports["first"]
    )


def fetched(shelf: Shelf, digest: str, folder: Path) -> str:
    """Fetch the model as a pod would, and return the reason for the rejection."""
    with pytest.raises((ExportError, FetchError)) as raised:
        fetch(f"oci://{shelf.name}@{digest}", folder)
    assert not (folder / "manifest.json").exists()
    return str(raised.value)


def test_changed_weights_are_not_fetched(shelf: Shelf, digest: str, tmp_path: Path) -> None:
    a_blob_changed_in_the_registry(shelf, digest)
    assert "sent content that differs from" in fetched(shelf, digest, tmp_path / "served")


def test_a_changed_manifest_is_not_fetched(shelf: Shelf, digest: str, tmp_path: Path) -> None:
    a_manifest_changed_in_the_registry(shelf, digest)
    assert digest in fetched(shelf, digest, tmp_path / "served")


def test_export_with_a_manifest_that_contradicts_its_weights_is_not_fetched(
    shelf: Shelf, digest: str, tmp_path: Path
) -> None:
    changed = other_weights(shelf, digest)
    assert "the manifest states" in fetched(shelf, changed, tmp_path / "served")


def test_cached_files_of_another_model_are_not_used(
    shelf: Shelf, digest: str, tmp_path: Path
) -> None:
    """Replace the cached files with another model's files, one at a time and all at once."""
    cache = Cache(tmp_path / "cache", 2**30)
    cache.folder.mkdir()
    models = [digest, shelf.publish("second")]
    parts: list[list[Path]] = []
    for model in models:
        fetch(f"oci://{shelf.name}@{model}", tmp_path / model, cache=cache)
        found = document(shelf, model)
        layers = [layer(found, name)["digest"] for name in ("manifest.json", WEIGHTS)]
        parts.append([cache.folder / each.removeprefix("sha256:") for each in (model, *layers)])
    contents = [[path.read_bytes() for path in paths] for paths in parts]
    for replaced in ({0}, {1}, {2}, {0, 1, 2}):
        for number in replaced:
            parts[0][number].write_bytes(contents[1][number])
        served = tmp_path / f"served-{sum(replaced)}-{len(replaced)}"
        assert fetch(f"oci://{shelf.name}@{models[0]}", served, cache=cache) == read_manifest(
            shelf.exports["first"]
        )
        assert (served / WEIGHTS).read_bytes() == contents[0][2]
        assert [path.read_bytes() for path in parts[0]] == contents[0]


def test_layer_digest_is_not_used_as_a_path_in_the_cache(
    shelf: Shelf, digest: str, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache", 2**30)
    cache.folder.mkdir()
    (tmp_path / "secret").write_text("kept")
    found = document(shelf, digest)
    layer(found, "manifest.json")["digest"] = "sha256:../secret"
    content = artifact.encoded(found)
    name = artifact.digest_of(content)
    cache.keep(name.removeprefix("sha256:"), content)
    with pytest.raises(ExportError, match="is not a SHA-256"):
        fetch(f"oci://{shelf.name}@{name}", tmp_path / "served", cache=cache)
    assert (tmp_path / "secret").read_text() == "kept"


@pytest.mark.parametrize("version", [":production", "", "@sha256:0", "@sha512:" + "0" * 64])
def test_versions_other_than_digests_are_not_fetched(
    shelf: Shelf, digest: str, version: str, tmp_path: Path
) -> None:
    shelf.promote(digest)
    with pytest.raises(FetchError, match="with the digest of the artifact"):
        fetch(f"oci://{shelf.name}{version}", tmp_path / "served")


class MaliciousRegistry(http.server.BaseHTTPRequestHandler):
    """A registry that sends the files of another model, or redirects to another server."""

    def __init__(self, *arguments: Any, folder: Path, elsewhere: str) -> None:
        self._folder, self._elsewhere = folder, elsewhere
        super().__init__(*arguments)

    def do_GET(self) -> None:
        if self._elsewhere:
            self.send_response(307)
            self.send_header("Location", self._elsewhere)
            self.end_headers()
            return
        layers = artifact.Files(self._folder).layers()
        content = artifact.encoded({"layers": layers})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.mark.parametrize(
    ("elsewhere", "reason"),
    [
        ("", "sent content that differs from"),
        ("http://169.254.169.254/latest/meta-data", "redirected to http://169.254.169.254"),
        ("file:///etc/passwd", "file:///etc/passwd"),
    ],
)
def test_wrong_content_and_redirects_from_a_registry_are_rejected(
    shelf: Shelf, elsewhere: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLAIN_HTTP, "true")
    handler = functools.partial(
        MaliciousRegistry, folder=shelf.exports["second"], elsewhere=elsewhere
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        url = f"oci://127.0.0.1:{server.server_address[1]}/models/digits@sha256:{'0' * 64}"
        with pytest.raises((ExportError, FetchError), match=reason):
            fetch(url, tmp_path / "served")
        server.shutdown()
    assert not (tmp_path / "served" / "manifest.json").exists()
