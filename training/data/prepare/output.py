"""Output files of data preparation, limited in size and published when all are complete."""

import fcntl
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import numpy as np
from numpy.typing import NDArray

from training.data.manifest import (
    MANIFEST_FILE,
    Manifest,
    Part,
    ShardSplit,
    TokenSplit,
    read_manifest,
)
from training.data.samples import DataError, UnavailableError
from training.data.shards import LABEL, scan
from workload.files import exists, sha256_of, sync_folder, write_atomically

UNFINISHED: Final = ".unfinished"
"""Directory for unfinished files. It is in the target and thus on the same volume, so that
publishing only renames files."""
_SOURCE_FILE: Final = ".source"
"""File that contains the path of the source directory. It is in `UNFINISHED` until all files are
complete, and then in the target until they are published."""


def finish_interrupted(target: Path, source: Path) -> Manifest | None:
    """Publish the complete files of an interrupted attempt; return their manifest.

    Return None if there are no such files, or if they were not made from `source`. Raise DataError
    if another process is preparing a data set in `target`.
    """
    if not is_partly_published(target):
        return None
    with _locked(target):
        same_source = (target / _SOURCE_FILE).read_bytes() == _content_of(source)
        _publish(target)
    return read_manifest(target) if same_source else None


def is_partly_published(target: Path) -> bool:
    """Return whether an interrupted attempt has left complete files, some of which are in place."""
    return exists(target / _SOURCE_FILE)


def _content_of(source: Path) -> bytes:
    return os.fsencode(source.resolve())


@contextmanager
def new_dataset(target: Path, force: bool, source: Path) -> Iterator[Path]:
    """Provide a directory whose files and manifest are moved to `target` at the end.

    `source` is the directory from which the data set is made.

    Files of an interrupted attempt are published if all are complete, and removed otherwise. With
    `force`, a data set in `target` is replaced at the end, and other files are kept. Raise
    DataError if `target` is not empty and `force` is false, or if another process is preparing a
    data set in `target`. After an error, remove `target` if this call created it.
    """
    is_new = not exists(target)
    target.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        unfinished = target / UNFINISHED
        if is_partly_published(target):
            _publish(target)
        shutil.rmtree(unfinished, ignore_errors=True)
        found = sorted(path.name for path in target.iterdir() if path.name != "lost+found")
        if found and not force:
            raise DataError(
                f"{target} is not empty (it contains {found[0]}): choose another directory, "
                "or pass --force to replace a data set"
            )
        unfinished.mkdir()
        try:
            write_atomically(unfinished / _SOURCE_FILE, _content_of(source))
            yield unfinished
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            if is_new:
                with suppress(OSError):
                    target.rmdir()
            raise
        (unfinished / _SOURCE_FILE).replace(target / _SOURCE_FILE)
        _publish(target)


def check_not_nested(source: Path, target: Path) -> None:
    """Raise DataError if the target is inside the source."""
    if target.resolve().is_relative_to(source.resolve()):
        raise DataError(f"{target} is inside the source {source}: choose another directory")


def part_of(path: Path, count: int) -> Part:
    """Flush a written file to disk and return its manifest entry."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return Part(file=path.name, size=path.stat().st_size, sha256=sha256_of(path), count=count)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    directory = os.open(target, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another process is preparing a data set in {target}") from None
        yield
    finally:
        os.close(directory)


def _publish(target: Path) -> None:
    """Replace the files in `target`, the manifest last. An interrupted call can be repeated."""
    unfinished = target / UNFINISHED
    if exists(unfinished / MANIFEST_FILE):
        _remove_dataset(target)
        for path in unfinished.iterdir():
            if path.name != MANIFEST_FILE:
                path.replace(target / path.name)
        sync_folder(target)
        (unfinished / MANIFEST_FILE).replace(target / MANIFEST_FILE)
        sync_folder(target)
    with suppress(FileNotFoundError):
        unfinished.rmdir()
    (target / _SOURCE_FILE).unlink()


def _remove_dataset(target: Path) -> None:
    if not exists(target / MANIFEST_FILE):
        return
    try:
        old = [part.file for part in read_manifest(target).parts()]
    except UnavailableError:
        raise
    except DataError:
        old = []
    for name in [*old, MANIFEST_FILE]:
        (target / name).unlink(missing_ok=True)


class ShardWriter:
    """Writer for WebDataset tar files (PREFIX-00000.tar and so on) and their index.

    The same images produce the same bytes: no timestamps or user names are stored.
    """

    def __init__(self, directory: Path, prefix: str, limit: int) -> None:
        self._directory, self._prefix, self._limit = directory, prefix, limit
        self._parts: list[Part] = []
        self._index = [np.empty((0, 4), np.int64)]
        self._shard: tarfile.TarFile | None = None
        self.count = 0

    def add(self, image: bytes, extension: str, label: int) -> None:
        """Add a sample."""
        if self._shard and _size_after(self._shard.offset, len(image)) > self._limit:
            self._end_shard()
        if self._shard is None:
            path = self._directory / f"{self._prefix}-{len(self._parts):05}.tar"
            self._shard = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        for name, content in ((extension, image), (LABEL, b"%d" % label)):
            member = tarfile.TarInfo(f"{self.count:09}.{name}")
            member.size = len(content)
            self._shard.addfile(member, io.BytesIO(content))
        self.count += 1

    def close(self) -> ShardSplit:
        """Finish the last shard and write the index."""
        self._end_shard()
        path = self._directory / f"{self._prefix}-index.npy"
        # np.save to a file on a full disk would raise an OSError without an errno.
        index = io.BytesIO()
        np.save(index, np.concatenate(self._index), allow_pickle=False)
        path.write_bytes(index.getbuffer())
        return ShardSplit(parts=tuple(self._parts), index=part_of(path, self.count))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the open file after a failure; the caller removes the output."""
        if self._shard is not None and self._shard.fileobj is not None:
            self._shard.fileobj.close()

    def _end_shard(self) -> None:
        if self._shard is None:
            return
        self._shard.close()
        path, self._shard = Path(str(self._shard.name)), None
        rows = scan(path, len(self._parts))
        self._index.append(rows)
        self._parts.append(part_of(path, len(rows)))


def _size_after(offset: int, image: int) -> int:
    """Return the shard's size after one more image, including headers, label and end blocks."""
    blocks = -(-image // tarfile.BLOCKSIZE) + 5
    return -(-(offset + blocks * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


class TokenWriter:
    """Writer for token files (PREFIX-00000.bin and so on) of at most `limit` bytes."""

    def __init__(self, directory: Path, prefix: str, dtype: np.dtype[Any], limit: int) -> None:
        self._directory, self._prefix, self._dtype = directory, prefix, dtype
        self._capacity = max(limit // dtype.itemsize, 1)
        self._parts: list[Part] = []
        self._stream: BinaryIO | None = None
        self._written = 0
        self.count = 0

    def add(self, tokens: NDArray[Any]) -> None:
        """Append tokens."""
        while len(tokens):
            if self._stream is None:
                path = self._directory / f"{self._prefix}-{len(self._parts):05}.bin"
                self._stream, self._written = path.open("wb"), 0
            now = tokens[: self._capacity - self._written]
            self._stream.write(now.astype(self._dtype).tobytes())
            self._written += len(now)
            self.count += len(now)
            tokens = tokens[len(now) :]
            if self._written == self._capacity:
                self._end_file()

    def close(self) -> TokenSplit:
        """Finish the last file."""
        self._end_file()
        return TokenSplit(parts=tuple(self._parts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the open file after a failure; the caller removes the output."""
        if self._stream is not None:
            self._stream.close()

    def _end_file(self) -> None:
        if self._stream is None:
            return
        self._stream.close()
        path, self._stream = Path(self._stream.name), None
        self._parts.append(part_of(path, self._written))
