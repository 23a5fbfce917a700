"""Directories of checkpoints, `step-00000046`: complete or absent. Imports no torch."""

import re
import shutil
from pathlib import Path
from typing import Final

from workload.files import sync_folder

NAME: Final = re.compile(r"step-(\d{8,})")


def step_of(path: Path) -> int:
    """Return the step after which a checkpoint was saved."""
    return int(path.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if NAME.fullmatch(path.name)), key=step_of)


def create_unfinished(folder: Path, step: int) -> Path:
    """Create an empty directory for the checkpoint after `step` steps, replacing leftovers."""
    path = folder / f".step-{step:08d}.tmp"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def publish(written: Path, target: Path) -> Path:
    """Rename a directory, whose files are on disk, to its final name. Raises OSError."""
    if target.exists():
        remove(target)
    written.rename(target)
    sync_folder(target.parent)
    return target


def remove(path: Path) -> None:
    """Remove a directory; it is renamed first, so that a partly removed one is never found."""
    renamed = path.with_name(f".{path.name}.old.tmp")
    shutil.rmtree(renamed, ignore_errors=True)
    path.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove leftovers of a process that was killed while it wrote or removed a checkpoint."""
    for path in folder.glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
