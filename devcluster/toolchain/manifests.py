"""Files that are copied from Go modules: Volcano's chart and manifests, operators' manifests."""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from devcluster.toolchain.go import Go
from devcluster.toolchain.pins import Module

CHART = Path("installer/helm/chart/volcano")
DEFINITIONS = (Path("config/crd/volcano/bases"), Path("config/crd/jobflow/bases"))
RENDERED = Path("installer/volcano-development.yaml")
"""The chart, rendered with its default values."""
_WEBHOOKS = "# Source: volcano/templates/webhooks.yaml"
_FORMAT = 2
"""Part of the name of the directory: increase it when other files are copied."""


@dataclass(frozen=True)
class VolcanoFiles:
    """Volcano's files; `root` is named by the pins, and complete or absent."""

    root: Path

    @classmethod
    def of(cls, module: Module, cache: Path) -> "VolcanoFiles":
        """Return the files that belong to a version of the module."""
        return cls(cache / "volcano" / f"{module.digest()}-{_FORMAT}")

    @property
    def charts(self) -> Path:
        """Directory to be served over HTTP: index.yaml and volcano-VERSION.tgz."""
        return self.root / "charts"

    @property
    def definitions(self) -> Path:
        """Directory with one CustomResourceDefinition per YAML file."""
        return self.root / "crds"

    @property
    def webhooks(self) -> Path:
        """List of the webhook configurations (JSON)."""
        return self.root / "webhooks.json"

    def make(self, module: Module, go: Go, scratch: Path, log: Path) -> None:
        """Copy all of them from the Go module. Raises DevclusterError if that fails."""
        work = scratch / "volcano.module"
        shutil.copytree(module.folder, work)
        source = go.module_folder("volcano.sh/volcano", work, log)
        fresh = VolcanoFiles(scratch / "volcano.files")
        fresh.charts.mkdir(parents=True)
        write_repository(source / CHART, fresh.charts)
        fresh.definitions.mkdir()
        for folder in DEFINITIONS:
            for file in sorted((source / folder).glob("*.yaml")):
                shutil.copyfile(file, fresh.definitions / file.name)
        fresh.webhooks.write_text(json.dumps(webhooks((source / RENDERED).read_text())))
        self.root.parent.mkdir(parents=True, exist_ok=True)
        fresh.root.rename(self.root)


def webhooks(rendered: str) -> list[dict[str, object]]:
    """Return the webhook configurations of a rendered chart."""
    return [yaml.safe_load(text) for text in rendered.split("\n---\n") if _WEBHOOKS in text]


def write_repository(chart: Path, to: Path) -> None:
    """Pack a chart's directory into `to` and write an index for it.

    The same directory always results in the same bytes.
    """
    description = yaml.safe_load((chart / "Chart.yaml").read_text())
    name, version = description["name"], description["version"]
    package = to / f"{name}-{version}.tgz"
    package.write_bytes(_packed(chart, name))
    entry = description | {
        "urls": [package.name],
        "digest": hashlib.sha256(package.read_bytes()).hexdigest(),
        "created": "1970-01-01T00:00:00Z",
    }
    index = {"apiVersion": "v1", "generated": entry["created"], "entries": {name: [entry]}}
    (to / "index.yaml").write_text(yaml.safe_dump(index))


def _packed(folder: Path, name: str) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for file in sorted(f for f in folder.rglob("*") if f.is_file()):
            content = file.read_bytes()
            entry = tarfile.TarInfo(f"{name}/{file.relative_to(folder)}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@dataclass(frozen=True)
class OperatorFiles:
    """Manifests of one module; `root` is named by version and pins, and complete or absent."""

    module: Module
    root: Path

    @classmethod
    def of(cls, module: Module, cache: Path) -> "OperatorFiles":
        """Return the files that belong to a version of the module."""
        return cls(
            module, cache / "operators" / f"{module.name}-{module.version}-{module.digest()}"
        )

    @property
    def folders(self) -> Sequence[Path]:
        """Directories for `kubectl apply --kustomize`, one per program."""
        return [self.root / manifests.name for manifests in self.module.manifests]

    def make(self, go: Go, scratch: Path, log: Path) -> None:
        """Copy them from the Go modules. Raises DevclusterError if one cannot be downloaded."""
        work = scratch / f"{self.module.name}.module"
        shutil.copytree(self.module.folder, work)
        fresh = scratch / f"{self.module.name}.files"
        for manifests in self.module.manifests:
            source = go.module_folder(manifests.module, work, log) / manifests.folder
            folder = fresh / manifests.name
            # Files of the module cache are read-only, and copies of them could not be removed.
            shutil.copytree(source, folder / "module", copy_function=shutil.copyfile)
            for copied in folder.rglob("*"):
                copied.chmod(0o755 if copied.is_dir() else 0o644)
            shutil.copyfile(
                self.module.folder / f"{manifests.name}.yaml", folder / "kustomization.yaml"
            )
        self.root.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(self.root)
