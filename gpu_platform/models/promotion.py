"""Publication, verification and promotion of signed models."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gitops.errors import GitopsError
from gitops.runs.snapshot import error_of
from gpu_platform.models import artifact, signing
from gpu_platform.models.lineage import FILE, Lineage, build_lineage, parse
from gpu_platform.models.registry import SIGNATURE_SUFFIX, Repository
from infra.manifests import Manifest as Object
from kube.promoted_models import NAME, NAMESPACE, PROMOTER, entry
from workload.manifest import Manifest
from workload.promotion import Condition, violations

STAGES: Final = ("staging", "production")

_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class RejectedError(GitopsError):
    """Error for a model that must not be promoted."""


@dataclass(frozen=True)
class Version:
    """A published model whose files have not been verified."""

    digest: str
    layers: Sequence[artifact.Layer]
    lineage: Lineage


def publish(
    repository: Repository,
    export: Path,
    objects: Sequence[Object],
    settings: Mapping[str, Any],
    key: Path,
    password: str | None,
) -> Version:
    """Push an export, its lineage and its signature.

    `objects` are the Kubernetes objects of the run, and `settings` is the configuration of the
    policy pack.

    Raises:
        GitopsError: If the export is damaged or belongs to a different run than `objects`, if the
            run's name cannot be used as a tag, or if the export cannot be signed or pushed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        files = artifact.gather(export, Path(temporary, "export"))
        manifest = files.checked_manifest()
        run = manifest.run
        if not _TAG.fullmatch(run) or run in STAGES or run.endswith(SIGNATURE_SUFFIX):
            raise GitopsError(
                f"{export} belongs to run {run!r}, which cannot be used as a tag: use a run "
                f"whose name is a valid tag other than {' and '.join(STAGES)}"
            )
        lineage = build_lineage(repository.reference.repository, manifest, objects, settings)
        (files.directory / FILE).write_text(lineage.model_dump_json(indent=2) + "\n")
        bundle = signing.sign(files.directory, key, password)
        layers = files.layers()
        content = artifact.manifest(lineage, manifest, layers)
        blobs = {
            artifact.CONFIG_TYPE: artifact.config(lineage, manifest, layers),
            artifact.SIGNATURE_TYPE: bundle,
            artifact.EMPTY_TYPE: artifact.EMPTY,
        }
        for layer in layers:
            path = layer["annotations"][artifact.FILE_PATH]
            repository.push_blob(files.directory / path, layer)
        for media_type, blob in blobs.items():
            blob_file = Path(temporary, "blob")
            blob_file.write_bytes(blob)
            repository.push_blob(blob_file, artifact.descriptor(blob, media_type))
    digest = artifact.digest_of(content)
    subject = artifact.descriptor(content, artifact.MANIFEST_TYPE)
    repository.push_manifest(content, digest)
    repository.push_signature(digest, artifact.signature_manifest(subject, bundle))
    # The tag is pushed last, so that the signature already exists when the tag appears.
    repository.push_manifest(content, run)
    return Version(digest, artifact.Model.parse(content, digest).layers, lineage)


def read(repository: Repository, version: str) -> Version:
    """Return the version that a tag or digest identifies.

    Raises:
        GitopsError: If the version does not exist or is not a model.
    """
    digest = repository.resolve(version)
    location = repository.reference.at(digest)
    layers = artifact.Model.parse(repository.manifest(digest), location).layers
    for layer in layers:
        if layer.path == FILE:
            content = repository.blob(layer.digest)
            return Version(digest, layers, parse(content, f"{location} {FILE}"))
    raise GitopsError(f"{location} has no {FILE}: publish it with `models publish`")


def verify(repository: Repository, version: Version, key: Path) -> Manifest:
    """Verify the signature of all files, and return the manifest of the export.

    Raises:
        RejectedError: If the signature is not valid, if it does not match the files, manifest and
            lineage of the artifact, or if the version was published as a different model.
        GitopsError: If the version is not signed or cannot be read.
    """
    location = repository.reference.at(version.digest)
    bundle = repository.signature(version.digest)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary, "export")
        for layer in version.layers:
            try:
                if (directory / layer.path).exists():
                    raise RejectedError(f"{location} contains the file {layer.path} twice")
                repository.download(layer.digest, directory / layer.path)
            except (OSError, ValueError) as error:
                # The path may be too long, or one of its directories may be another file's path.
                raise GitopsError(
                    f"{location}: the file {layer.path!r} cannot be written: {error}"
                ) from None
        try:
            signing.verify(directory, bundle, key, location)
            export = artifact.Files(directory).checked_manifest()
        except GitopsError as error:
            raise RejectedError(str(error)) from None
        layers = artifact.Files(directory).layers()
    if artifact.digest_of(artifact.manifest(version.lineage, export, layers)) != version.digest:
        raise RejectedError(f"{location}: the manifest was not written by `models publish`")
    if version.lineage.model != repository.reference.repository:
        raise RejectedError(
            f"{location} was published as {version.lineage.model}, so its signature does not apply "
            "to this repository"
        )
    return export


def promote(
    repository: Repository,
    version: Version,
    stage: str,
    key: Path,
    conditions: dict[str, Condition],
    kubectl: Sequence[str],
) -> str:
    """Verify a version, move a stage's tag to it and add its digest to the promoted models.

    Return the entry that was added to the ConfigMap of promoted models.

    Raises:
        RejectedError: If the signature is not valid, or the version must not be promoted for other
            reasons, which the message lists.
        GitopsError: If the version is not signed, or the registry or the cluster rejects a change.
    """
    location = repository.reference.at(version.digest)
    export = verify(repository, version, key)
    lineage = version.lineage
    problems = [*lineage.missing(), *lineage.contradictions(export)]
    if conditions:
        incumbent: dict[str, float] = {}
        if stage in repository.tags():
            incumbent = read(repository, stage).lineage.metrics
        problems += violations(conditions, lineage.metrics, incumbent)
    if problems:
        raise RejectedError(
            "\n".join([f"{location} is not promoted:", *(f"  - {p}" for p in problems)])
        )
    config_map_entry = entry(
        location,
        run=lineage.run,
        specification=lineage.specification,
        data=lineage.data_sha256,
        code=lineage.code,
        metrics=lineage.metrics,
        key=signing.fingerprint(key),
    )
    repository.push_manifest(repository.manifest(version.digest), stage)
    if repository.resolve(stage) != version.digest:
        raise GitopsError(f"the tag {repository.reference.at(stage)} was moved by another user")
    _add_entry(kubectl, version.digest, config_map_entry)
    return config_map_entry


def _add_entry(kubectl: Sequence[str], digest: str, config_map_entry: str) -> None:
    """Add an entry to the ConfigMap. Keep earlier entries, because pods may serve their models."""
    patch = json.dumps({"data": {digest.removeprefix("sha256:"): config_map_entry}})
    command = ["patch", "configmap", NAME, "--namespace", NAMESPACE, "--type=merge", f"-p={patch}"]
    try:
        done = subprocess.run([*kubectl, *command], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise GitopsError("kubectl is not on the PATH: install it") from None
    if done.returncode != 0:
        raise GitopsError(
            f"the digest was not added to the {NAMESPACE}/{NAME} ConfigMap: {error_of(done)}. "
            "The stack must create the ConfigMap, together with the admission policies, and you "
            f"need the {PROMOTER} Role (docs/model-registry.md)"
        )
