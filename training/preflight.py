"""What would fail hours later, found out before the first step. Imports no torch.

Every function that checks raises ConfigurationError with one plain sentence; none of them changes
anything.
"""

import errno
import os
import time
from pathlib import Path
from typing import Final

from workload.configuration import ConfigurationError
from workload.progress import Message
from workload.report import emit

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps it

PROBE: Final = bytes(4096)
"""Written and removed to see whether a folder takes files; a full volume fails at less already."""

LOOK_AGAIN: Final = 2.0
"""Seconds between two looks at a full volume; well below any peer_timeout."""

FULL: Final = {errno.ENOSPC, errno.EDQUOT}


def await_room(folder: Path, longest: float) -> None:
    """Wait for room where a run that has checkpoints already goes on, and say so.

    A volume that others have filled is no mistake of this run's, and to end would lose what it has
    done. It waits until there is room for one checkpoint like the newest, for at most `longest`
    seconds (0 is for ever); what is wrong then, the checks tell. Every process waits for itself,
    before it meets the others.
    """
    found = sorted((folder / "checkpoints").glob("step-*"))
    if not found:
        return
    needed = _size_of(found[-1])
    began, told = time.monotonic(), False
    while _is_full(folder, needed) and (not longest or time.monotonic() - began < longest):
        if not told:
            told = True
            emit(Message(event="warning", message=f"run_dir {folder} is full: waiting for space"))
        time.sleep(LOOK_AGAIN)


def _is_full(folder: Path, needed: int) -> bool:
    # What a save that was cut off has left is removed before the next one.
    own = sum(_size_of(path) for path in (folder / "checkpoints").glob(".step-*.tmp"))
    available = free_bytes(folder)
    if available is not None and available + own < needed:
        return True
    try:
        _write_probe(folder)
    except OSError as error:
        return error.errno in FULL and not own
    return False


def _write_probe(folder: Path) -> None:
    probe = folder / f".probe-{os.getpid()}"
    try:
        with probe.open("wb") as stream:
            stream.write(PROBE)
            stream.flush()
            os.fsync(stream.fileno())
    finally:
        probe.unlink(missing_ok=True)


def check_run_dir(folder: Path) -> None:
    """See that `folder` can be made and takes files, and that they reach the disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_probe(folder)
    except OSError as error:
        raise ConfigurationError(
            f"run_dir {folder} cannot be written: {error.strerror}; "
            "mount a writable volume there or choose another folder"
        ) from None


def check_room(run_dir: Path, state_bytes: int, keep: int, best: bool) -> None:
    """See that a run's checkpoints will fit.

    `state_bytes` is the size of one: weights, optimizer and buffers of all processes together.
    `keep` newest ones are kept, the one of the best epoch as well if `best`, and a further one is
    there while it is written. Checkpoints that `run_dir` has already are among them.
    """
    count = keep + best + 1
    needed = state_bytes * count
    available = free_bytes(run_dir)
    if available is None:
        return
    there = _size_of(run_dir / "checkpoints")
    if available + there < needed:
        raise ConfigurationError(
            f"run_dir {run_dir} has {_readable(available)} free"
            + (f" and checkpoints of {_readable(there)}" if there else "")
            + f", but {count} checkpoints of {_readable(state_bytes)} will be there at once: "
            "write a smaller keep_checkpoints (or keep_best false), or choose a larger volume"
        )


def check_shared_memory(
    batch_bytes: int, workers: int, local_size: int, prefetch: int = 2, folder: Path = SHARED_MEMORY
) -> None:
    """See that the batches that loader workers read ahead fit into shared memory.

    `batch_bytes` is the size of one process's batch; each of its `workers` has `prefetch` ready
    and one in the making, and `local_size` processes share the memory of their node or pod.
    """
    if not workers:
        return
    needed = batch_bytes * workers * (prefetch + 1) * local_size
    available = free_bytes(folder)
    if available is not None and available < needed:
        raise ConfigurationError(
            f"{folder} has {_readable(available)} free, but batches of {_readable(needed)} are "
            f"read ahead there (loader_workers {workers} in each of {local_size} processes): "
            "write fewer loader_workers or a smaller batch_size, or give the pod more shm"
        )


def free_bytes(folder: Path) -> int | None:
    """What an ordinary user can still write there, in bytes; None where no such number is told.

    A quota of one's own is not seen by this. Raises ConfigurationError when there is no folder.
    """
    try:
        # See statvfs(3). Some network and user-space file systems have no size: all is 0.
        found = os.statvfs(folder)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be looked at: {error.strerror}") from None
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def _size_of(folder: Path) -> int:
    """Bytes on the disk of all files below `folder`; those that vanish meanwhile are left out."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_blocks * 512
            except OSError:
                continue
    return total


def _readable(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
