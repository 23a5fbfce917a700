"""Manifests of the operators for kustomize: the upstream ones with our changes on top."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.toolchain.go import Go
from devcluster.toolchain.pins import Module


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
