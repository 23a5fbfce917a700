"""Durable files: complete or absent, even after a power failure."""

import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(
    path: Path, content: bytes | memoryview | Callable[[BinaryIO], object]
) -> None:
    """Write a file next to `path`, flush it to disk, and rename it to `path`.

    `content` is the content, or a function that writes it to the open file. Raises OSError if the
    disk is full or not writable; `path` is then unchanged.
    """
    # Processes of several pods may have the same ID.
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with unfinished.open("wb") as stream:
            content(stream) if callable(content) else stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a directory's entries, or a file, to disk; a rename is durable only after this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(folder: Path) -> None:
    """Flush a directory and all that is below it to disk. Raises OSError."""
    for path in (folder, *folder.rglob("*")):
        sync_folder(path)


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Return values that change when a file is replaced or written. Raises OSError."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
