"""OCI artifacts of models, as specified by ModelPack: one layer for each file.

The manifest is a pure function of the files. A tampered manifest either refers to different files
or differs from the manifest that `manifest` computes for the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gitops.errors import GitopsError
from gpu_platform.models.lineage import FILE as LINEAGE_FILE
from gpu_platform.models.lineage import Lineage
from kube.promoted_models import DIGEST
from workload.configuration import first_problem
from workload.files import list_tree, sha256_of
from workload.manifest import MANIFEST_FILE, ExportError, Manifest, checked_file, read_manifest

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE: Final = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE: Final = "application/vnd.cncf.model.config.v1+json"
SIGNATURE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
EMPTY: Final = b"{}"
_WEIGHTS_TYPE: Final = "application/vnd.cncf.model.weight.v1.raw"
_MODEL_CONFIG_TYPE: Final = "application/vnd.cncf.model.weight.config.v1.raw"
_DOCUMENT_TYPE: Final = "application/vnd.cncf.model.doc.v1.raw"
FILE_PATH: Final = "org.cncf.model.filepath"
_TITLE: Final = "org.opencontainers.image.title"

Descriptor = dict[str, Any]


def encoded(document: Mapping[str, Any]) -> bytes:
    """Return the document as canonical JSON, from which its digest is computed."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def digest_of(content: bytes) -> str:
    """Return the SHA-256 digest in the format of OCI registries."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(content: bytes, media_type: str) -> Descriptor:
    """Return the descriptor for a blob."""
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}


@dataclass(frozen=True)
class Files:
    """The files of a model, in a directory that contains no other files."""

    directory: Path

    def checked_manifest(self) -> Manifest:
        """Return the manifest of the export. Raise GitopsError if a file is damaged."""
        try:
            manifest = read_manifest(self.directory)
            for file in (manifest.weights, *manifest.artifacts):
                checked_file(self.directory, file)
        except ExportError as error:
            raise GitopsError(str(error)) from None
        return manifest

    def names(self) -> list[str]:
        """Return the relative paths of all files.

        Raise GitopsError for links and special files, and if a directory cannot be listed.
        """
        found = []
        try:
            paths = list_tree(self.directory)
        except OSError as error:
            raise GitopsError(
                f"{error.filename} cannot be read: {error.strerror}; make it readable, and "
                "run the command again"
            ) from None
        for path in paths:
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise GitopsError(f"{path} is not a regular file: remove it from the export")
            if path.is_file():
                found.append(path.relative_to(self.directory).as_posix())
        return found

    def layers(self) -> list[Descriptor]:
        """Return the descriptor of each file."""
        return [self._layer(name) for name in self.names()]

    def _layer(self, name: str) -> Descriptor:
        path = self.directory / name
        return {
            "mediaType": _media_type(name),
            "digest": f"sha256:{sha256_of(path)}",
            "size": path.stat().st_size,
            "annotations": {FILE_PATH: name, _TITLE: name},
        }


def gather(export: Path, directory: Path) -> Files:
    """Link or copy an export's files to an empty directory, to which the caller adds the lineage.

    Raise GitopsError if the export contains links, special files or a lineage, or if its top level
    contains hidden files or directories.
    """
    for name in Files(export).names():
        if PurePosixPath(name).parts[0].startswith(".") or name == LINEAGE_FILE:
            raise GitopsError(f"{export / name} does not belong in an export: remove it")
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(export / name, target)
        except OSError:
            shutil.copyfile(export / name, target)
    return Files(directory)


def config(lineage: Lineage, export: Manifest, layers: Sequence[Descriptor]) -> bytes:
    """Return the model configuration in the format of ModelPack."""
    document = {
        "descriptor": {
            "name": lineage.model,
            "version": lineage.run,
            "revision": lineage.code_version,
            "family": export.model,
        },
        "modelfs": {"type": "layers", "diffIds": [layer["digest"] for layer in layers]},
        "config": {"architecture": export.model, "format": "safetensors"},
    }
    return encoded(document)


def manifest(lineage: Lineage, export: Manifest, layers: Sequence[Descriptor]) -> bytes:
    """Return the manifest of the artifact."""
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": descriptor(config(lineage, export, layers), CONFIG_TYPE),
        "layers": list(layers),
        "annotations": {_TITLE: lineage.model, "org.opencontainers.image.version": lineage.run},
    }
    return encoded(document)


def signature_manifest(subject: Descriptor, bundle: bytes) -> bytes:
    """Return the manifest of a signature, which refers to the artifact as its subject."""
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": SIGNATURE_TYPE,
        "config": descriptor(EMPTY, EMPTY_TYPE),
        "layers": [descriptor(bundle, SIGNATURE_TYPE)],
        "subject": subject,
    }
    return encoded(document)


class Layer(BaseModel):
    """Descriptor of a file, as stored in a registry."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    digest: str = Field(pattern=rf"^{DIGEST}$")
    size: int = Field(ge=0)
    annotations: dict[str, str]

    @property
    def path(self) -> str:
        """Path of the file in the directory of the model."""
        return self.annotations[FILE_PATH]

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        path = self.annotations.get(FILE_PATH, "")
        if not path or path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise ValueError(f"the path {path!r} is outside the model's directory")
        return self


class Model(BaseModel):
    """Manifest of an artifact, as stored in a registry."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    artifact_type: Literal["application/vnd.cncf.model.manifest.v1+json"] = Field(
        alias="artifactType"
    )
    layers: tuple[Layer, ...]

    @classmethod
    def parse(cls, content: bytes, location: str) -> Self:
        """Parse a manifest. Raise GitopsError if it is not the manifest of a model."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            problem = first_problem(error, "the document")
            raise GitopsError(f"{location} is not a model: {problem}") from None


def _media_type(name: str) -> str:
    if name in (LINEAGE_FILE, MANIFEST_FILE):
        return _DOCUMENT_TYPE
    return _MODEL_CONFIG_TYPE if name.endswith((".json", ".txt", ".model")) else _WEIGHTS_TYPE
