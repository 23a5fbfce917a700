"""Attempts to promote or fetch anything other than the published model; none may succeed.

tests/cluster/separate/test_model_admission.py has attempts to serve such models in a cluster.
"""

import base64
import functools
import http.server
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.models import artifact, signing
from gpu_platform.models.lineage import build_lineage
from inference.cache import Cache
from inference.fetch import FetchError, fetch
from inference.registry import PLAIN_HTTP
from tests.gpu_platform.models.conftest import Shelf, keys
from tests.registry import Registry
from workload.manifest import ExportError, read_manifest

Attempt = Callable[[Shelf, str], str]
"""Function that tampers with the model of a digest and returns the version to promote."""

WEIGHTS = "model.safetensors"


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


def document(shelf: Shelf, digest: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shelf.repository.manifest(digest))
    return found


def layer(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in found["layers"] if each["annotations"][artifact.FILE_PATH] == name)


def pushed(shelf: Shelf, digest: str, found: dict[str, Any]) -> str:
    """Push a manifest with the signature of the published model, and move the run's tag to it."""
    changed = shelf.push(found, read_manifest(shelf.exports["first"]).run)
    shelf.sign_as(changed, digest)
    return changed


def replaced(shelf: Shelf, digest: str, name: str, content: bytes) -> str:
    """Replace a file of the model."""
    found = document(shelf, digest)
    old = layer(found, name)
    old |= shelf.registry.put_blob(shelf.path, content, old["mediaType"])
    return pushed(shelf, digest, found)


def damaged(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def bundle_with(shelf: Shelf, digest: str, change: Callable[[dict[str, Any]], None]) -> str:
    """Replace the signature of the published model."""
    found = json.loads(shelf.repository.signature(digest))
    change(found)
    attach(shelf, digest, json.dumps(found).encode())
    return digest


def attach(shelf: Shelf, digest: str, bundle: bytes) -> None:
    shelf.registry.put_blob(shelf.path, bundle, artifact.SIGNATURE_TYPE)
    content = shelf.repository.manifest(digest)
    subject = artifact.descriptor(content, artifact.MANIFEST_TYPE)
    shelf.repository.push_signature(digest, artifact.signature_manifest(subject, bundle))


def a_blob_changed_in_the_registry(shelf: Shelf, digest: str) -> str:
    shelf.corrupt(layer(document(shelf, digest), WEIGHTS)["digest"], damaged)
    return digest


def a_manifest_changed_in_the_registry(shelf: Shelf, digest: str) -> str:
    shelf.corrupt(digest, lambda content: content.replace(b"models/", b"model5/"))
    return digest


def other_weights(shelf: Shelf, digest: str) -> str:
    return replaced(shelf, digest, WEIGHTS, (shelf.exports["second"] / WEIGHTS).read_bytes())


def weights_with_one_flipped_bit(shelf: Shelf, digest: str) -> str:
    content = (shelf.exports["first"] / WEIGHTS).read_bytes()
    return replaced(shelf, digest, WEIGHTS, damaged(content))


def better_metrics(shelf: Shelf, digest: str) -> str:
    content = shelf.repository.blob(layer(document(shelf, digest), "lineage.json")["digest"])
    found = json.loads(content)
    found["metrics"]["accuracy"] = 0.999
    return replaced(shelf, digest, "lineage.json", json.dumps(found).encode())


def another_export_manifest(shelf: Shelf, digest: str) -> str:
    content = (shelf.exports["second"] / "manifest.json").read_bytes()
    return replaced(shelf, digest, "manifest.json", content)


def an_additional_file(shelf: Shelf, digest: str, name: str = "extra.py") -> str:
    found = document(shelf, digest)
    added = shelf.registry.put_blob(shelf.path, b"print()", found["layers"][0]["mediaType"])
    found["layers"].append({**added, "annotations": {artifact.FILE_PATH: name}})
    return pushed(shelf, digest, found)


def an_additional_file_that_signatures_ignore_by_default(shelf: Shelf, digest: str) -> str:
    return an_additional_file(shelf, digest, ".gitattributes")


def a_file_outside_the_directory(shelf: Shelf, digest: str) -> str:
    return an_additional_file(shelf, digest, "../outside")


def a_file_with_an_absolute_path(shelf: Shelf, digest: str) -> str:
    return an_additional_file(shelf, digest, "/tmp/outside")


def the_same_file_twice(shelf: Shelf, digest: str) -> str:
    return an_additional_file(shelf, digest, WEIGHTS)


def a_missing_file(shelf: Shelf, digest: str) -> str:
    found = document(shelf, digest)
    found["layers"].remove(layer(found, "manifest.json"))
    return pushed(shelf, digest, found)


def two_files_with_swapped_names(shelf: Shelf, digest: str) -> str:
    found = document(shelf, digest)
    first, second = layer(found, "manifest.json"), layer(found, WEIGHTS)
    first["annotations"], second["annotations"] = second["annotations"], first["annotations"]
    return pushed(shelf, digest, found)


def another_annotation(shelf: Shelf, digest: str) -> str:
    found = document(shelf, digest)
    found["annotations"]["org.opencontainers.image.version"] = "digits-ffffffff"
    return pushed(shelf, digest, found)


def another_media_type(shelf: Shelf, digest: str) -> str:
    found = document(shelf, digest)
    layer(found, WEIGHTS)["mediaType"] = "application/vnd.oci.image.layer.v1.tar"
    return pushed(shelf, digest, found)


def another_configuration(shelf: Shelf, digest: str) -> str:
    found = document(shelf, digest)
    found["config"] = shelf.registry.put_blob(shelf.path, b'{"config":{}}', artifact.CONFIG_TYPE)
    return pushed(shelf, digest, found)


def an_image_instead_of_a_model(shelf: Shelf, digest: str) -> str:
    found = document(shelf, digest)
    found["artifactType"] = "application/vnd.oci.image.config.v1+json"
    return pushed(shelf, digest, found)


def a_layer_with_an_external_url(shelf: Shelf, digest: str) -> str:
    found = document(shelf, digest)
    layer(found, WEIGHTS)["digest"] = "../../other/blobs/" + layer(found, WEIGHTS)["digest"]
    content = artifact.encoded(found)
    # This registry rejects such a manifest, so only a malicious registry could send it.
    shelf.corrupt(digest, lambda _: content)
    return digest


def another_signed_version_under_its_digest(shelf: Shelf, digest: str) -> str:
    other = shelf.repository.manifest(shelf.publish("second"))
    shelf.corrupt(digest, lambda _: other)
    return digest


def another_key(shelf: Shelf, digest: str) -> str:
    secret, _ = keys(shelf.calls.parent / "other")
    return shelf.publish("second", key=secret)


def another_key_with_the_key_hint_of_the_right_one(shelf: Shelf, digest: str) -> str:
    secret, _ = keys(shelf.calls.parent / "other")
    published = shelf.publish("second", key=secret)
    hint = signing.fingerprint(shelf.public)

    def change(bundle: dict[str, Any]) -> None:
        bundle["verificationMaterial"]["publicKey"]["hint"] = hint

    return bundle_with(shelf, published, change)


def no_signature(shelf: Shelf, digest: str) -> str:
    found = document(shelf, digest)
    found["annotations"]["org.opencontainers.image.version"] = "digits-ffffffff"
    return shelf.push(found, "unsigned")


def the_signature_of_another_model(shelf: Shelf, digest: str) -> str:
    secret, _ = keys(shelf.calls.parent / "other")
    published = shelf.publish("second", key=secret)
    shelf.sign_as(published, digest)
    return published


def a_signature_that_is_not_a_bundle(shelf: Shelf, digest: str) -> str:
    attach(shelf, digest, b"signed by me")
    return digest


def a_bundle_without_a_signature(shelf: Shelf, digest: str) -> str:
    def change(bundle: dict[str, Any]) -> None:
        bundle["dsseEnvelope"]["signatures"] = []

    return bundle_with(shelf, digest, change)


def a_changed_statement(shelf: Shelf, digest: str) -> str:
    changed = other_weights(shelf, digest)
    new = layer(document(shelf, changed), WEIGHTS)["digest"].removeprefix("sha256:")

    def change(bundle: dict[str, Any]) -> None:
        statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        for resource in statement["predicate"]["resources"]:
            if resource["name"] == WEIGHTS:
                resource["digest"] = new
        text = json.dumps(statement).encode()
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(text).decode()

    return bundle_with(shelf, changed, change)


def a_moved_tag(shelf: Shelf, digest: str) -> str:
    other_weights(shelf, digest)
    return read_manifest(shelf.exports["first"]).run


def an_export_whose_lineage_contradicts_its_metrics(shelf: Shelf, digest: str) -> str:
    """Publish with the right key an export whose lineage reports better metrics."""
    folder = shelf.calls.parent / "forged" / "export"
    folder.mkdir(parents=True)
    files = artifact.gather(shelf.exports["second"], folder)
    objects: list[Any] = []
    found = build_lineage(shelf.path, files.export(), objects, {})
    metrics = {**found.metrics, "accuracy": 0.999}
    better = found.model_copy(update={"metrics": metrics})
    (folder / "lineage.json").write_text(better.model_dump_json(indent=2) + "\n")
    bundle = signing.sign(folder, shelf.key)
    layers = files.layers()
    for each in layers:
        shelf.repository.push_blob(folder / each["annotations"][artifact.FILE_PATH], each)
    config = artifact.config(better, files.export(), layers)
    shelf.registry.put_blob(shelf.path, config, artifact.CONFIG_TYPE)
    content = artifact.manifest(better, files.export(), layers)
    published = artifact.digest_of(content)
    shelf.registry.put_manifest(shelf.path, published, content)
    attach(shelf, published, bundle)
    return published


PROMOTIONS: dict[Attempt, str] = {
    a_blob_changed_in_the_registry: "damaged",
    a_manifest_changed_in_the_registry: "the registry sent a different manifest",
    other_weights: "files differ from the signed ones: model.safetensors",
    weights_with_one_flipped_bit: "files differ from the signed ones: model.safetensors",
    better_metrics: "files differ from the signed ones: lineage.json",
    another_export_manifest: "files differ from the signed ones: manifest.json",
    an_additional_file: "signed ones: extra.py",
    an_additional_file_that_signatures_ignore_by_default: "signed ones: .gitattributes",
    a_file_outside_the_directory: "is outside the model's directory",
    a_file_with_an_absolute_path: "is outside the model's directory",
    the_same_file_twice: "twice",
    a_missing_file: "signed ones: manifest.json",
    two_files_with_swapped_names: "signed ones: manifest.json, model.safetensors",
    another_annotation: "the manifest was not written by",
    another_media_type: "the manifest was not written by",
    another_configuration: "the manifest was not written by",
    an_image_instead_of_a_model: "is not a model",
    a_layer_with_an_external_url: "the registry sent a different manifest",
    another_signed_version_under_its_digest: "the registry sent a different manifest",
    another_key: "Key mismatch",
    another_key_with_the_key_hint_of_the_right_one: "was not made with",
    no_signature: "is not signed",
    the_signature_of_another_model: "signed ones: lineage.json, manifest.json, model.safetensors",
    a_signature_that_is_not_a_bundle: "signature is not valid",
    a_bundle_without_a_signature: "signature is not valid",
    a_changed_statement: "was not made with",
    a_moved_tag: "files differ from the signed ones: model.safetensors",
    an_export_whose_lineage_contradicts_its_metrics: "the export states",
}


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
    with pytest.raises((ExportError, FetchError)) as refused:
        fetch(f"oci://{shelf.name}@{digest}", folder)
    assert not (folder / "manifest.json").exists()
    return str(refused.value)


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
    """Cached files are replaced with those of another model, one at a time and all at once."""
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
    shelf: Shelf,
    elsewhere: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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
