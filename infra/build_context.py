"""What is in an image before it is built: a hash of everything that decides it."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from infra.settings.images import BuildSettings

PROJECT_ROOT: Final = Path(__file__).parent.parent


def identity(build: BuildSettings, root: Path = PROJECT_ROOT) -> str:
    """Hexadecimal sha256 of Dockerfile, its stage, sources, base image, arguments and platform.

    The same sources give the same answer in every checkout: only names and contents of files
    count, and hidden or compiled files do not. Raises FileNotFoundError when a source is missing.
    """
    digest = hashlib.sha256()
    description = {
        "base_image": build.base_image,
        "platform": build.platform,
        "args": build.args,
        "dockerfile": build.dockerfile,
        **({"target": build.target} if build.target else {}),
    }
    digest.update(json.dumps(description, sort_keys=True).encode())
    for name in sorted({build.dockerfile, *build.sources}):
        for path in _files(root / name):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"\n{path.relative_to(root).as_posix()} {content}".encode())
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for child in sorted(path.rglob("*")):
        inside = child.relative_to(path).parts
        if child.is_file() and not any(_is_ignored(part) for part in inside):
            yield child


def _is_ignored(name: str) -> bool:
    """Compiled files and the hidden ones of editors and tools."""
    return name == "__pycache__" or name.startswith(".")
