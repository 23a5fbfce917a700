"""Cache of downloaded files, shared by several pods. The name of a file is its SHA-256.

Every pod that mounts the volume can replace these files. Before a pod uses a file, it therefore
copies the file out of the cache and verifies the digest of the copy.
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from workload.files import write_atomically
from workload.report import emit

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_STALLED_SECONDS: Final = 300.0
"""Time (s) without progress after which a pod stops waiting for another pod's download."""
_POLL_SECONDS: Final = 0.2
_ABANDONED_SECONDS: Final = 24 * 3600.0
"""Age (s) at which unfinished files and lock files are deleted."""
_COPY_CHUNK_BYTES: Final = 2**30


@dataclass(frozen=True)
class Cache:
    """A directory of at most `capacity` bytes. The least recently used files are deleted first.

    Cache errors are logged, but never prevent a download.
    """

    folder: Path
    capacity: int

    @contextlib.contextmanager
    def open(self, sha256: str, limit: int) -> Iterator[BinaryIO | None]:
        """Yield the cached copy of a file, or None if it is missing or larger than `limit` bytes.

        The content is not verified.
        """
        # Another pod could have created a link, a FIFO or a device with this name.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.folder / sha256, flags)
        except OSError:
            yield None
            return
        try:
            found = os.fstat(descriptor)
            usable = stat.S_ISREG(found.st_mode) and found.st_size <= limit
            _touch(descriptor)
            yield os.fdopen(descriptor, "rb", closefd=False) if usable else None
        finally:
            os.close(descriptor)

    def read(self, sha256: str, limit: int) -> bytes | None:
        """Return the content of a small file, or None if there is no intact copy."""
        content = None
        with self.open(sha256, limit) as stream, contextlib.suppress(OSError):
            content = stream.read(limit) if stream is not None else None
        if content is None or hashlib.sha256(content).hexdigest() == sha256:
            return content
        self.discard(sha256)
        return None

    def discard(self, sha256: str) -> None:
        """Log and delete a damaged copy."""
        emit("cached_copy_damaged", sha256=sha256)
        with contextlib.suppress(OSError):
            (self.folder / sha256).unlink()

    def keep(
        self, sha256: str, content: bytes | Path, progress: Callable[[], object] = int
    ) -> None:
        """Add verified content, or the content of a verified file, calling `progress` regularly.

        Errors are only logged.
        """
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        try:
            self._make_space(size)
            if isinstance(content, bytes):
                write_atomically(self.folder / sha256, content)
                return
            with content.open("rb") as source:
                write_atomically(
                    self.folder / sha256, lambda target: copy(source, target, size, progress)
                )
        except OSError as error:
            emit("not_cached", sha256=sha256, reason=error.strerror)

    @contextlib.contextmanager
    def lock(self, sha256: str) -> Iterator[Callable[[], object]]:
        """Wait while another pod is downloading the file, unless its download has stalled.

        Yield a function to call whenever the download, a copy or the verification progresses.
        Without these calls, waiting pods consider the download stalled.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.folder / f".{sha256}.lock", flags, 0o600)
        except OSError as error:
            emit("not_locked", sha256=sha256, reason=error.strerror)
            yield lambda: None
            return
        try:
            self._acquire(descriptor, sha256)
            yield lambda: _touch(descriptor)
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int, sha256: str) -> None:
        progress, since = 0, time.monotonic()
        for attempt in itertools.count():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if attempt == 0:
                    emit("waiting_for_another_download", sha256=sha256)
                if progress != (progress := os.fstat(descriptor).st_mtime_ns):
                    since = time.monotonic()
                if time.monotonic() - since > _STALLED_SECONDS:
                    emit("not_locked", sha256=sha256, reason="another download has stalled")
                    return
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                # Not every network file system supports locks.
                emit("not_locked", sha256=sha256, reason=error.strerror)
                return
            else:
                return

    def _make_space(self, size: int) -> None:
        """Delete abandoned files, and then the least recently used copies until `size` bytes fit.

        Raise OSError if `size` exceeds the capacity.
        """
        if size > self.capacity:
            raise OSError(0, f"{size} bytes exceed the cache's capacity of {self.capacity}")
        copies: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found = path.lstat()
                if stat.S_ISDIR(found.st_mode):
                    # Skip directories, such as a file server's `.snapshot`: `unlink` cannot delete
                    # them.
                    continue
                temporary = path.name.startswith(".")
                if temporary and time.time() - found.st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
                elif temporary or _DIGEST.fullmatch(path.name):
                    copies.append((found.st_mtime, found.st_size, path))
        used = sum(bytes_ for _, bytes_, _ in copies)
        for _, bytes_, path in sorted(copies):
            if used + size <= self.capacity:
                return
            if not path.name.startswith("."):
                path.unlink(missing_ok=True)
                used -= bytes_


def _touch(descriptor: int) -> None:
    """Set the access and modification times of a file to now, unless another user owns it."""
    with contextlib.suppress(OSError):
        os.utime(descriptor)


def copy(
    source: BinaryIO, target: BinaryIO, size: int, progress: Callable[[], object] = int
) -> None:
    """Copy `size` bytes from the start of a file to an empty file, calling `progress` regularly.

    File systems that can share blocks between files (XFS, Btrfs) store the content only once.
    """
    left = size
    while left > 0:
        amount = min(left, _COPY_CHUNK_BYTES)
        try:
            done = os.copy_file_range(source.fileno(), target.fileno(), amount)
        except OSError:
            # The files are on different file systems.
            done = os.sendfile(target.fileno(), source.fileno(), None, amount)
        if done == 0:
            return
        left -= done
        progress()
