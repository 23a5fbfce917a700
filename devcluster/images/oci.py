"""Images as OCI layouts on disk (image layout specification 1.0), which skopeo pushes."""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from devcluster import DevclusterError

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class ImageConfig:
    """Entrypoint, environment and user of an image's containers."""

    entrypoint: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    def document(self, diff_ids: Sequence[str]) -> dict[str, object]:
        """Return the image configuration object (linux/amd64)."""
        config: dict[str, object] = {
            "Env": [f"{key}={value}" for key, value in self.environment.items()]
        }
        if self.entrypoint:
            config["Entrypoint"] = list(self.entrypoint)
        if self.user:
            config["User"] = self.user
        return {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        }


@dataclass(frozen=True)
class Layer:
    """Layer of an existing image: its compressed file, and the digest of its tar file."""

    file: Path
    diff_id: str


def file_layer(files: Mapping[str, Path], tar: Path) -> None:
    """Write a reproducible layer of executables. `files` maps paths in the image to files."""
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, source in sorted(files.items()):
            entry = archive.gettarinfo(source.resolve(), arcname=name.lstrip("/"))
            entry.mode, entry.mtime = 0o755, 0
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            with source.open("rb") as content:
                archive.addfile(entry, content)


class Layout:
    """OCI layout of an image. It is written atomically, so it is either complete or absent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.part = directory.with_name(directory.name + ".part")

    @property
    def digest(self) -> str | None:
        """Digest of the image's manifest; None if the image is absent."""
        index = self.directory / "index.json"
        if not index.exists():
            return None
        return str(json.loads(index.read_text())["manifests"][0]["digest"])

    def layers(self) -> list[Layer]:
        """Return the layers of a complete image, starting with the lowest."""
        manifest = self._document(str(self.digest))
        diff_ids = self._document(manifest["config"]["digest"])["rootfs"]["diff_ids"]
        files = [self._file(layer["digest"]) for layer in manifest["layers"]]
        return [Layer(*each) for each in zip(files, diff_ids, strict=True)]

    def _document(self, digest: str) -> dict[str, Any]:
        return dict(json.loads(self._file(digest).read_text()))

    def _file(self, digest: str) -> Path:
        return self.directory / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def write(self, layers: Sequence[Path | Layer], config: ImageConfig) -> None:
        """Write the image from uncompressed tar files and layers of other images."""
        shutil.rmtree(self.part, ignore_errors=True)
        blobs = self.part / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        diff_ids, descriptors = [], []
        for layer in layers:
            packed = self.part / "layer.gz"
            if isinstance(layer, Layer):
                diff_ids.append(layer.diff_id)
                os.link(layer.file, packed)
            else:
                diff_ids.append("sha256:" + _sha256(layer))
                with packed.open("wb") as out:
                    # Docker 20.10 does not support zstd layers. -n makes gzip reproducible.
                    subprocess.run(["pigz", "-4", "-n", "-c", str(layer)], stdout=out, check=True)
            digest, size = _sha256(packed), packed.stat().st_size
            packed.replace(blobs / digest)
            descriptors.append(
                {"mediaType": LAYER_TYPE, "digest": f"sha256:{digest}", "size": size}
            )
        document = self._blob(blobs, CONFIG_TYPE, config.document(diff_ids))
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": document,
            "layers": descriptors,
        }
        entry = self._blob(blobs, MANIFEST_TYPE, manifest)
        (self.part / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        index = {"schemaVersion": 2, "manifests": [entry]}
        (self.part / "index.json").write_text(json.dumps(index))
        shutil.rmtree(self.directory, ignore_errors=True)
        self.part.replace(self.directory)

    @staticmethod
    def _blob(blobs: Path, media_type: str, content: object) -> dict[str, object]:
        text = json.dumps(content, sort_keys=True).encode()
        digest = hashlib.sha256(text).hexdigest()
        (blobs / digest).write_bytes(text)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(text)}

    def push(self, registry: str, reference: str, log: Path) -> bool:
        """Push to `registry` (host:port, plain HTTP) as `reference` (name:tag).

        Return False if the registry already contains the image. Raise DevclusterError if the push
        fails.
        """
        name, _, tag = reference.rpartition(":")
        url = f"http://{registry}/v2/{name}/manifests/{tag}"
        try:
            # trust_env=False: the user's proxy could not reach the cluster's addresses.
            response = httpx.head(url, headers={"Accept": MANIFEST_TYPE}, trust_env=False)
        except httpx.HTTPError as error:
            raise DevclusterError(f"registry {registry} does not respond: {error}") from error
        if response.headers.get("docker-content-digest") == self.digest:
            return False
        command = ["skopeo", "copy", "--insecure-policy", "--dest-tls-verify=false"]
        with log.open("ab") as out:
            done = subprocess.run(
                [*command, f"oci:{self.directory}", f"docker://{registry}/{reference}"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        if done.returncode != 0:
            raise DevclusterError(f"pushing image {reference} failed; see {log}")
        return True

    def link_blobs(self, registry: Path) -> None:
        """Replace the blobs with hard links to the copies in the root directory of the registry."""
        for blob in (self.directory / "blobs" / "sha256").iterdir():
            copy = registry / "docker/registry/v2/blobs/sha256" / blob.name[:2] / blob.name / "data"
            if copy.exists() and not copy.samefile(blob):
                self.part.unlink(missing_ok=True)
                self.part.hardlink_to(copy)
                self.part.replace(blob)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
