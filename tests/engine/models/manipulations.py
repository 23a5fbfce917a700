"""Manipulations of a published model, with the reasons for which it is then not promoted."""

import base64
import json
from collections.abc import Callable
from typing import Any

from gpu_platform.models import artifact, signing
from gpu_platform.models.lineage import build_lineage
from tests.engine.models.conftest import Shelf, keys
from workload.manifest import read_manifest

Attempt = Callable[[Shelf, str], str]
"""Function that tampers with the model of a digest and returns the version to promote."""

WEIGHTS = "model.safetensors"


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


def a_file_below_another_file(shelf: Shelf, digest: str) -> str:
    return an_additional_file(shelf, digest, f"{WEIGHTS}/extra.py")


def a_file_whose_name_is_too_long(shelf: Shelf, digest: str) -> str:
    return an_additional_file(shelf, digest, "x" * 300)


def a_file_whose_name_contains_a_null_character(shelf: Shelf, digest: str) -> str:
    return an_additional_file(shelf, digest, "extra\0.py")


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
    # The test registry rejects such a manifest; only a malicious registry could send it.
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
    """Publish an export, signed with the right key, whose lineage reports better metrics."""
    folder = shelf.calls.parent / "forged" / "export"
    folder.mkdir(parents=True)
    files = artifact.gather(shelf.exports["second"], folder)
    objects: list[Any] = []
    found = build_lineage(shelf.path, files.checked_manifest(), objects, {})
    metrics = {**found.metrics, "accuracy": 0.999}
    better = found.model_copy(update={"metrics": metrics})
    (folder / "lineage.json").write_text(better.model_dump_json(indent=2) + "\n")
    bundle = signing.sign(folder, shelf.key)
    layers = files.layers()
    for each in layers:
        shelf.repository.push_blob(folder / each["annotations"][artifact.FILE_PATH], each)
    config = artifact.config(better, files.checked_manifest(), layers)
    shelf.registry.put_blob(shelf.path, config, artifact.CONFIG_TYPE)
    content = artifact.manifest(better, files.checked_manifest(), layers)
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
    a_file_below_another_file: "cannot be written",
    a_file_whose_name_is_too_long: "cannot be written",
    a_file_whose_name_contains_a_null_character: "cannot be written",
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
