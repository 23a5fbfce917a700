"""Small things with files that are whole or not there, whoever is interrupted."""

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any


def write(path: Path, text: str) -> None:
    """Writes a file in one step: a reader sees the old text or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = _beside(path)
    fresh.write_text(text)
    fresh.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty when the file is missing or spoiled."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def put(executable: Path, at: Path, *, own: bool) -> None:
    """Makes an executable appear at a path: a hard link of our own file, else a symbolic link.

    A hard link, because some programs look for their companions beside the file that they
    really are.
    """
    if at.exists() and at.samefile(executable) and at.is_symlink() != own:
        return
    at.parent.mkdir(parents=True, exist_ok=True)
    fresh = _beside(at)
    if own:
        try:
            os.link(executable, fresh)
        except OSError:  # a file system without hard links
            shutil.copy2(executable, fresh)
    else:
        fresh.symlink_to(executable)
    fresh.replace(at)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
