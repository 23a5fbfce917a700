"""Atomic file operations: a file is complete or absent, also after an interruption."""

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any


def write(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = _beside(path)
    fresh.write_text(text)
    fresh.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or damaged."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def put(executable: Path, at: Path, *, own: bool) -> None:
    """Link an executable at a path: a hard link if the file is our own, else a symbolic link.

    Some programs look for their companions in the directory of the resolved path, hence the hard
    link.
    """
    if at.exists() and at.samefile(executable) and at.is_symlink() != own:
        return
    at.parent.mkdir(parents=True, exist_ok=True)
    fresh = _beside(at)
    if own:
        link(executable, fresh)
    else:
        fresh.symlink_to(executable)
    fresh.replace(at)


def link(file: Path, at: Path) -> None:
    """Create a hard link, or a copy if the file system has no hard links."""
    try:
        os.link(file, at)
    except OSError:
        shutil.copy2(file, at)


def complete(folder: Path, source: Path) -> None:
    """Link the files of a directory tree into `folder`, except those that it already has."""

    def link_missing(file: str, at: str) -> None:
        if not Path(at).exists():
            link(Path(file), Path(at))

    shutil.copytree(source, folder, copy_function=link_missing, dirs_exist_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
