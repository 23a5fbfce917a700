"""One command at a time changes a cluster: the second says who is first, and stops."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from devcluster.errors import DevclusterError


@contextmanager
def exclusive(path: Path, command: str) -> Iterator[None]:
    """Holds the lock while the block runs; the kernel frees it when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = path.with_suffix(".holder")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise DevclusterError(f"{_describe(holder)}: wait for it, or end it first") from error
    try:
        began = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"pid": os.getpid(), "command": command, "began": began}
        holder.write_text(json.dumps(about))
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def is_held(path: Path) -> bool:
    """True where a command holds the lock at this moment."""
    if not path.exists():
        return False
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    lock.release()
    return False


def _describe(holder: Path) -> str:
    try:
        about = json.loads(holder.read_text())
        return f"`{about['command']}` is at work since {about['began']} (process {about['pid']})"
    except (OSError, ValueError, KeyError):
        return "another command is at work on this cluster"
