"""Volcano's chart, as a Helm repository of one chart, and its resource definitions."""

import gzip
import hashlib
import io
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from devcluster.errors import DevclusterError
from devcluster.toolchain import go
from devcluster.toolchain.pins import Module

CHART = Path("installer/helm/chart/volcano")
DEFINITIONS = (Path("config/crd/volcano/bases"), Path("config/crd/jobflow/bases"))


@dataclass(frozen=True)
class VolcanoFiles:
    """`root` is named by version and pins, and whole or absent."""

    root: Path

    @classmethod
    def of(cls, module: Module, cache: Path) -> "VolcanoFiles":
        """The files that belong to a version of the module."""
        return cls(cache / "volcano" / f"{module.version}-{module.digest()}")

    @property
    def charts(self) -> Path:
        """To be served over HTTP: index.yaml and volcano-VERSION.tgz."""
        return self.root / "charts"

    @property
    def definitions(self) -> Path:
        """One CustomResourceDefinition a file, as YAML."""
        return self.root / "crds"

    def make(self, module: Module, scratch: Path, log: Path) -> None:
        """Takes both from the Go module. DevclusterError when it cannot be downloaded."""
        work = scratch / "volcano.module"
        shutil.copytree(module.folder, work)
        source = go.module_folder("volcano.sh/volcano", work, log)
        fresh = VolcanoFiles(scratch / "volcano.files")
        fresh.charts.mkdir(parents=True)
        write_repository(source / CHART, module.version, fresh.charts)
        fresh.definitions.mkdir()
        for folder in DEFINITIONS:
            for file in sorted((source / folder).glob("*.yaml")):
                shutil.copyfile(file, fresh.definitions / file.name)
        self.root.parent.mkdir(parents=True, exist_ok=True)
        fresh.root.rename(self.root)


def write_repository(chart: Path, version: str, to: Path) -> None:
    """Packs a chart's folder into `to` with an index beside it.

    The same folder always makes the same bytes. DevclusterError when the chart's own version is
    another one.
    """
    description = yaml.safe_load((chart / "Chart.yaml").read_text())
    if description["version"] != version:
        raise DevclusterError(f"{chart} is of version {description['version']}, not {version}")
    name = description["name"]
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
