"""Atomic, durable writes of files and directories; digests; checkpoint directories.

After a power failure, a file or directory is either complete or absent.
"""

import errno
import hashlib
import itertools
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

CHECKPOINT: Final = re.compile(r"step-(\d{8,})")
"""Name of a checkpoint's directory, such as step-00000046."""

UNAVAILABLE: Final = {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
}  # fmt: skip
"""Error numbers that indicate unavailable network storage. A restart may succeed."""


def write_atomically(
    path: Path, content: bytes | memoryview | Callable[[BinaryIO], object]
) -> None:
    """Write a file next to `path`, flush it to disk, and rename it to `path`.

    `content` contains the bytes, or is a function that writes to the open file. Raise OSError if
    the disk is full or not writable; `path` is then unchanged.
    """
    # The name is random, because processes in different pods may have the same process ID.
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with unfinished.open("wb") as stream:
            content(stream) if callable(content) else stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    except OSError as error:
        if error.filename != str(unfinished):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


def create_unfinished(target: Path) -> Path:
    """Create an empty directory that `publish_folder` renames to `target`.

    A directory that an earlier attempt left behind is removed.
    """
    unfinished = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    return unfinished


def publish_folder(unfinished: Path) -> Path:
    """Rename a directory created by `create_unfinished` to its target, replacing an existing one.

    The files must already be on disk. Return the target. Raise OSError on failure.
    """
    target = unfinished.with_name(unfinished.name.removeprefix(".").removesuffix(".tmp"))
    remove_folder(target, replacement=unfinished)
    sync_folder(target.parent)
    return target


def remove_folder(path: Path, replacement: Path | None = None) -> None:
    """Remove a directory, or replace it with `replacement`. Removal may take a long time.

    The directory is renamed before it is removed, so `path` is never incomplete.
    """
    renamed = path.with_name(f".{path.name}.old.tmp")
    shutil.rmtree(renamed, ignore_errors=True)
    if exists(path):
        path.rename(renamed)
    if replacement is not None:
        replacement.rename(path)
    shutil.rmtree(renamed, ignore_errors=True)


def sync_folder(directory: Path) -> None:
    """Flush a file or the entries of a directory to disk, which makes a rename durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exists(path: Path) -> bool:
    """Return whether a path exists. Raise OSError if its storage is unavailable.

    With Python 3.14 and later, `Path.exists` returns False after any error.
    """
    return _mode_of(path) != 0


def is_file(path: Path) -> bool:
    """Return whether a path is a file. Raise OSError if its storage is unavailable."""
    return stat.S_ISREG(_mode_of(path))


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory. Raise OSError if its storage is unavailable."""
    return stat.S_ISDIR(_mode_of(path))


def _mode_of(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def list_tree(directory: Path) -> list[Path]:
    """Return all files, links and directories below a directory, sorted.

    Links are not followed. Raise OSError if a directory cannot be listed.
    """

    def fail(error: OSError) -> NoReturn:
        raise error

    # `rglob` skips directories that cannot be listed at the moment.
    tree = os.walk(directory, onerror=fail)
    return sorted(Path(parent, name) for parent, *names in tree for name in itertools.chain(*names))


def list_files(directory: Path) -> list[Path]:
    """Return all files below a directory, sorted. Raise OSError if one cannot be inspected."""
    return [path for path in list_tree(directory) if is_file(path)]


def sync_files(directory: Path) -> None:
    """Flush a directory and everything below it to disk. Raise OSError on failure."""
    for path in (directory, *list_tree(directory)):
        # Do not open symbolic links, which may be dangling. Flushing a directory flushes its links.
        if not path.is_symlink():
            sync_folder(path)


def is_utf8(text: str) -> bool:
    """Return whether a string can be encoded as UTF-8.

    Command-line arguments and file names may contain bytes that are not valid UTF-8, which Python
    represents as surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sha256_of(path: Path, progress: Callable[[], object] = int) -> str:
    """Return the hexadecimal SHA-256 of a file, calling `progress` regularly.

    Raise OSError on failure.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(2**24):
            digest.update(chunk)
            progress()
    return digest.hexdigest()


def describe(path: Path) -> dict[str, Any]:
    """Return the size and the SHA-256 of a file. Raise OSError on failure."""
    return {"size": path.stat().st_size, "sha256": sha256_of(path)}


def describe_all(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the size and SHA-256 of each file below a directory, keyed by relative path."""
    found = {str(path.relative_to(directory)): path for path in list_files(directory)}
    return {name: {"file": name, **describe(path)} for name, path in found.items()}


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Return values that change when a file is replaced or written. Raise OSError on failure."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def checkpoint_of(directory: Path, step: int) -> Path:
    """Return the directory of the checkpoint after `step` steps."""
    return directory / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step after which a checkpoint was saved."""
    return int(path.name.removeprefix("step-"))


def list_checkpoints(directory: Path) -> list[Path]:
    """Return all checkpoints, oldest first. Raise OSError if the directory cannot be listed."""
    try:
        # `glob` returns nothing if the directory cannot be listed at the moment.
        found = [path for path in directory.iterdir() if CHECKPOINT.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(found, key=step_of)


def recover(directory: Path) -> list[Path]:
    """Remove unfinished checkpoints and test a write; return complete checkpoints, newest first."""
    for path in directory.glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    create_unfinished(checkpoint_of(directory, 0)).rmdir()
    return list_checkpoints(directory)[::-1]


def rotate(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints. Raise OSError on failure."""
    for path in list_checkpoints(directory)[:-keep]:
        remove_folder(path)
