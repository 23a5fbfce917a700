"""The folder that a data set is made in: it appears there complete, or nothing has happened."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from training.data.manifest import MANIFEST_FILE, Part, read_manifest
from training.data.samples import DataError
from workload.files import sha256_of, sync_folder

UNFINISHED: Final = ".unfinished"
"""Inside the target, which may be a mounted volume, so that files are only renamed in the end."""


@contextmanager
def new_dataset(target: Path, force: bool) -> Iterator[Path]:
    """Give an empty folder for a data set's files and its manifest; they go to `target` at the end.

    What was interrupted before is thrown away, or brought to its end if only the renaming was left.
    With `force` a data set in `target` is replaced, at the end; other files stay. Raises DataError
    when `target` is not empty, or another process prepares a data set in it; OSError.
    """
    target.mkdir(parents=True, exist_ok=True)
    with _alone(target):
        unfinished = target / UNFINISHED
        if (unfinished / MANIFEST_FILE).exists():
            _publish(unfinished, target)
        shutil.rmtree(unfinished, ignore_errors=True)
        found = sorted(path.name for path in target.iterdir() if path.name != "lost+found")
        if found and not force:
            raise DataError(
                f"{target} is not empty, it has {found[0]}: choose another folder, "
                "or write --force to replace a data set"
            )
        unfinished.mkdir()
        try:
            yield unfinished
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        _publish(unfinished, target)


def check_apart(source: Path, target: Path) -> None:
    """Raises DataError when the target would be read as part of its own source."""
    if target.resolve().is_relative_to(source.resolve()):
        raise DataError(f"{target} is inside of {source}, which is read: choose another folder")


def part_of(path: Path, count: int) -> Part:
    """A written file as the manifest names it, after it was brought to the disk. Raises OSError."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return Part(file=path.name, size=path.stat().st_size, sha256=sha256_of(path), count=count)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    folder = os.open(target, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another process prepares a data set in {target}") from None
        yield
    finally:
        os.close(folder)


def _publish(unfinished: Path, target: Path) -> None:
    """Replace the old files, then the manifest. Done again after an interruption, it goes on."""
    if (target / MANIFEST_FILE).exists():
        try:
            old = [part.file for part in read_manifest(target).parts()]
        except DataError:
            old = []
        for name in [*old, MANIFEST_FILE]:
            (target / name).unlink(missing_ok=True)
    for path in unfinished.iterdir():
        if path.name != MANIFEST_FILE:
            path.replace(target / path.name)
    sync_folder(target)
    (unfinished / MANIFEST_FILE).replace(target / MANIFEST_FILE)
    sync_folder(target)
    unfinished.rmdir()
