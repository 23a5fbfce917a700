"""A model as an OCI artifact of the ModelPack specification: one layer for each file.

The manifest is a pure function of the files, so a changed manifest has files that differ, or is
not the one that `manifest` returns.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gitops.errors import GitopsError
from gpu_platform.models.lineage import FILE as LINEAGE_FILE
from gpu_platform.models.lineage import Lineage
from workload.files import sha256_of
from workload.manifest import MANIFEST_FILE, ExportError, Manifest, checked_file, read_manifest

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE: Final = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE: Final = "application/vnd.cncf.model.config.v1+json"
SIGNATURE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
EMPTY: Final = b"{}"
_WEIGHT: Final = "application/vnd.cncf.model.weight.v1.raw"
_SETTINGS: Final = "application/vnd.cncf.model.weight.config.v1.raw"
_DOCUMENT: Final = "application/vnd.cncf.model.doc.v1.raw"
FILE_PATH: Final = "org.cncf.model.filepath"
_TITLE: Final = "org.opencontainers.image.title"

Descriptor = dict[str, Any]


def encoded(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of which the digest is made."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def digest_of(content: bytes) -> str:
    """Return the digest as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(content: bytes, media_type: str) -> Descriptor:
    """Return the descriptor of a blob."""
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}


@dataclass(frozen=True)
class Files:
    """The files of a model in a directory, which has no others."""

    folder: Path

    def export(self) -> Manifest:
        """Return the manifest of the export. Raises GitopsError if a file is damaged."""
        try:
            found = read_manifest(self.folder)
            for file in (found.weights, *found.artifacts):
                checked_file(self.folder, file)
        except ExportError as error:
            raise GitopsError(str(error)) from None
        return found

    def names(self) -> list[str]:
        """Return the paths of all files in the directory. Raises GitopsError for odd ones."""
        found = []
        for path in sorted(self.folder.rglob("*")):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise GitopsError(f"{path} is not a plain file: remove it from the export")
            if path.is_file():
                found.append(path.relative_to(self.folder).as_posix())
        return found

    def layers(self) -> list[Descriptor]:
        """Return the descriptor of each file."""
        return [self._layer(name) for name in self.names()]

    def _layer(self, name: str) -> Descriptor:
        path = self.folder / name
        return {
            "mediaType": _media_type(name),
            "digest": f"sha256:{sha256_of(path)}",
            "size": path.stat().st_size,
            "annotations": {FILE_PATH: name, _TITLE: name},
        }


def gather(export: Path, folder: Path) -> Files:
    """Link or copy the files of an export to an empty directory, to add the lineage to them."""
    for name in Files(export).names():
        if PurePosixPath(name).parts[0].startswith(".") or name == LINEAGE_FILE:
            raise GitopsError(f"{export / name} is not a file of an export: remove it")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(export / name, target)
        except OSError:
            shutil.copyfile(export / name, target)
    return Files(folder)


def config(lineage: Lineage, export: Manifest, layers: Sequence[Descriptor]) -> bytes:
    """Return the model configuration of the specification."""
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


def file_path(layer: Mapping[str, Any], location: str) -> str:
    """Return the path of a layer's file. Raises GitopsError if it leaves the directory."""
    path = layer.get("annotations", {}).get(FILE_PATH)
    parts = PurePosixPath(str(path)).parts
    if not isinstance(path, str) or not parts or path.startswith("/") or ".." in parts:
        raise GitopsError(f"{location} has a layer with the path {path!r}: it is not a model")
    return path


def _media_type(name: str) -> str:
    if name in (LINEAGE_FILE, MANIFEST_FILE):
        return _DOCUMENT
    return _SETTINGS if name.endswith((".json", ".txt", ".model")) else _WEIGHT
