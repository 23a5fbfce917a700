"""Files copied from Go modules: Volcano's chart and manifests, and operators' manifests."""

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
"""Manifests that the Volcano project renders from the chart with its default values."""
_WEBHOOKS = "# Source: volcano/templates/webhooks.yaml"
_FORMAT = 2
"""Part of the directory name. Increase it when the set of copied files changes."""


@dataclass(frozen=True)
class VolcanoFiles:
    """Volcano's files.

    `root` is named after the module's digest. It is renamed into place, so it is either complete or
    absent.
    """

    root: Path

    @classmethod
    def of(cls, module: Module, cache: Path) -> "VolcanoFiles":
        """Return the files for a version of the module."""
        return cls(cache / "volcano" / f"{module.digest()}-{_FORMAT}")

    @property
    def charts(self) -> Path:
        """Directory to serve over HTTP: index.yaml and volcano-VERSION.tgz."""
        return self.root / "charts"

    @property
    def definitions(self) -> Path:
        """Directory with one CustomResourceDefinition per YAML file."""
        return self.root / "crds"

    @property
    def webhooks(self) -> Path:
        """File with the list of webhook configurations (JSON)."""
        return self.root / "webhooks.json"

    def make(self, module: Module, go: Go, scratch: Path, log: Path) -> None:
        """Copy the files from the Go module. Raise DevclusterError if the download fails."""
        work = scratch / "volcano.module"
        shutil.copytree(module.directory, work)
        source = go.module_directory("volcano.sh/volcano", work, log)
        staged = VolcanoFiles(scratch / "volcano.files")
        staged.charts.mkdir(parents=True)
        write_repository(source / CHART, staged.charts)
        staged.definitions.mkdir()
        for directory in DEFINITIONS:
            for file in sorted((source / directory).glob("*.yaml")):
                shutil.copyfile(file, staged.definitions / file.name)
        staged.webhooks.write_text(json.dumps(webhooks((source / RENDERED).read_text())))
        self.root.parent.mkdir(parents=True, exist_ok=True)
        staged.root.rename(self.root)


def webhooks(rendered: str) -> list[dict[str, object]]:
    """Return the webhook configurations in a rendered chart."""
    return [yaml.safe_load(text) for text in rendered.split("\n---\n") if _WEBHOOKS in text]


def write_repository(chart: Path, to: Path) -> None:
    """Package a chart into the `to` directory and write an index for it.

    The output is reproducible.
    """
    description = yaml.safe_load((chart / "Chart.yaml").read_text())
    name, version = description["name"], description["version"]
    package = to / f"{name}-{version}.tgz"
    package.write_bytes(_chart_archive(chart, name))
    entry = description | {
        "urls": [package.name],
        "digest": hashlib.sha256(package.read_bytes()).hexdigest(),
        "created": "1970-01-01T00:00:00Z",
    }
    index = {"apiVersion": "v1", "generated": entry["created"], "entries": {name: [entry]}}
    (to / "index.yaml").write_text(yaml.safe_dump(index))


def _chart_archive(directory: Path, name: str) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for file in sorted(f for f in directory.rglob("*") if f.is_file()):
            content = file.read_bytes()
            entry = tarfile.TarInfo(f"{name}/{file.relative_to(directory)}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@dataclass(frozen=True)
class OperatorFiles:
    """Manifests of one module. `root` is renamed into place, so it is either complete or absent."""

    module: Module
    root: Path

    @classmethod
    def of(cls, module: Module, cache: Path) -> "OperatorFiles":
        """Return the files for a version of the module."""
        return cls(
            module, cache / "operators" / f"{module.name}-{module.version}-{module.digest()}"
        )

    @property
    def directories(self) -> Sequence[Path]:
        """Directories for `kubectl apply --kustomize`, one per kustomization."""
        return [self.root / manifests.name for manifests in self.module.manifests]

    def make(self, go: Go, scratch: Path, log: Path) -> None:
        """Copy the files from the Go modules. Raise DevclusterError if a download fails."""
        work = scratch / f"{self.module.name}.module"
        shutil.copytree(self.module.directory, work)
        staged = scratch / f"{self.module.name}.files"
        for manifests in self.module.manifests:
            source = go.module_directory(manifests.module, work, log) / manifests.folder
            directory = staged / manifests.name
            # Files in the module cache are read-only, so exact copies could not be removed.
            shutil.copytree(source, directory / "module", copy_function=shutil.copyfile)
            for copied in directory.rglob("*"):
                copied.chmod(0o755 if copied.is_dir() else 0o644)
            shutil.copyfile(
                self.module.directory / f"{manifests.name}.yaml", directory / "kustomization.yaml"
            )
        self.root.parent.mkdir(parents=True, exist_ok=True)
        staged.rename(self.root)
