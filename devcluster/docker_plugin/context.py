"""The digest of a build context, by which an unchanged image is recognised."""

import hashlib
import os
from pathlib import Path

from docker.utils.build import exclude_paths  # type: ignore[import-untyped]

from devcluster.docker_plugin.errors import ImageError


def digest(context: Path, dockerfile: Path) -> str:
    """Of the Dockerfile and every file that Docker would be sent: names, contents, permissions.

    .dockerignore is honoured as Docker does it. ImageError when a file cannot be read.
    """
    total = hashlib.sha256()
    try:
        _add(total, "Dockerfile", dockerfile)
        for name in sorted(files(context, dockerfile)):
            _add(total, name, context / name)
    except OSError as error:
        raise ImageError(f"build.context: {error}") from error
    return total.hexdigest()


def files(context: Path, dockerfile: Path) -> list[str]:
    """Names of the files and symbolic links that belong to the context, relative to it."""
    inside = Path(os.path.relpath(dockerfile, context)).as_posix()
    names = exclude_paths(
        str(context.resolve()), ignore_patterns(context, dockerfile), dockerfile=inside
    )
    return [n for n in names if (context / n).is_symlink() or (context / n).is_file()]


def ignore_patterns(context: Path, dockerfile: Path) -> list[str]:
    """Lines of the Dockerfile's own ignore file, else of the context's."""
    for file in (
        dockerfile.with_name(f"{dockerfile.name}.dockerignore"),
        context / ".dockerignore",
    ):
        if file.exists():
            lines = [line.strip() for line in file.read_text().splitlines()]
            return [line for line in lines if line and not line.startswith("#")]
    return []


def _add(total: "hashlib._Hash", name: str, file: Path) -> None:
    total.update(f"{len(name)}:{name}:".encode())
    if file.is_symlink():
        total.update(f"link:{file.readlink()}\n".encode())
        return
    with file.open("rb") as content:
        own = hashlib.file_digest(content, "sha256").hexdigest()
    total.update(f"{file.stat().st_mode & 0o777:o}:{own}\n".encode())
