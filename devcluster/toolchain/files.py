"""Atomic file operations: even after an interruption, a file is either complete or absent."""

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any


def write(path: Path, text: str) -> None:
    """Write a file atomically: readers see either the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    temporary.write_text(text)
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or damaged."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def install_link(executable: Path, target: Path, *, built: bool) -> None:
    """Create a link to an executable: a hard link if this project built it, else a symbolic link.

    An installed program gets a symbolic link, because it may look for companion files next to the
    path to which the link resolves.
    """
    if target.exists() and target.samefile(executable) and target.is_symlink() != built:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(target)
    if built:
        link(executable, temporary)
    else:
        temporary.symlink_to(executable)
    temporary.replace(target)


def link(file: Path, target: Path) -> None:
    """Create a hard link, or a copy if that is not possible."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copy2(file, target)


def link_missing_files(directory: Path, source: Path) -> None:
    """Link the files of `source` into `directory`, except those that already exist."""

    def link_missing(file: str, target: str) -> None:
        if not Path(target).exists():
            link(Path(file), Path(target))

    shutil.copytree(source, directory, copy_function=link_missing, dirs_exist_ok=True)


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
