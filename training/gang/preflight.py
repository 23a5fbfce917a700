"""Checks, before the first step, for problems that would otherwise appear hours later.

A failed check raises ConfigurationError. This module does not import torch.
"""

import contextlib
import errno
import os
import resource
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from workload.configuration import ConfigurationError
from workload.files import UNAVAILABLE, exists, list_checkpoints
from workload.progress import Message
from workload.report import emit

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - standard mount point on Linux

FULL: Final = {errno.ENOSPC, errno.EDQUOT}
"""Error numbers of a full volume and of an exhausted quota."""

POLL_SECONDS: Final = 2.0
"""Seconds between two checks of a full volume. After a wait, processes join the gang at times that
differ by at most this interval, which is much less than the default start_timeout."""

LOCKED_BYTES: Final = 2**30
"""Locked memory limit (bytes) below which RDMA is expected to fail. NCCL pins several buffers of 4
MiB for each connection; containerd's default limit is 8 MiB."""


def await_free_space(directory: Path, timeout: float) -> None:
    """Log a warning and wait if a run with checkpoints resumes on a full volume.

    Other programs may have filled the volume, and exiting would use up the run's retries. The wait
    ends when a checkpoint as large as the newest one fits, or after `timeout` seconds (0 waits
    forever). After a timeout, a later check reports the full volume. Every process waits
    independently, before it joins the gang. Raise OSError if the storage is unavailable at the
    moment.
    """
    try:
        found = list_checkpoints(directory / "checkpoints")
    except OSError as error:
        if error.errno in UNAVAILABLE:
            raise
        # `check_run_dir` reports a directory that this process has no permission to read.
        return
    if not found:
        return
    needed = _size_of(found[-1])
    began, reported = time.monotonic(), False
    while _is_full(directory, needed) and (not timeout or time.monotonic() - began < timeout):
        if not reported:
            reported = True
            message = f"run_dir {directory} is full: waiting for space"
            emit(Message(event="warning", message=message))
        time.sleep(POLL_SECONDS)


def _is_full(directory: Path, needed: int) -> bool:
    # The next save removes the leftovers of an interrupted one, so their space counts as free.
    paths = (directory / "checkpoints").iterdir()
    leftovers = sum(_size_of(path) for path in paths if path.match(".step-*.tmp"))
    available = free_bytes(directory)
    if available is not None and available + leftovers < needed:
        return True
    try:
        write_probe(directory)
    except OSError as error:
        return error.errno in FULL and not leftovers
    return False


def write_probe(directory: Path, size: int = 4096) -> None:
    """Write a temporary file to the directory and flush it to disk. Raise OSError on failure."""
    with tempfile.TemporaryFile(dir=directory) as probe:
        probe.write(bytes(size))
        probe.flush()
        os.fsync(probe.fileno())


def warn_about_locked_memory(environment: Mapping[str, str]) -> None:
    """Log a warning if the locked memory limit (RLIMIT_MEMLOCK) is too low for RDMA.

    RDMA pins the buffers that adapters read and write. If the limit is too low, NCCL fails with
    "Cannot allocate memory" and does not report the cause. Containers inherit the limit of their
    runtime's systemd unit.
    """
    uses_rdma = environment.get("NCCL_NET") == "IB" or environment.get("FI_PROVIDER") == "efa"
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if uses_rdma and limit != resource.RLIM_INFINITY and limit < LOCKED_BYTES:
        text = (
            f"this container can lock at most {_format_bytes(limit)} of memory (RLIMIT_MEMLOCK), "
            "but RDMA pins more: set LimitMEMLOCK=infinity in the systemd unit of the node's "
            "container runtime"
        )
        emit(Message(event="warning", message=text))


def check_run_dir(directory: Path) -> None:
    """Check that `directory` can be created and that files in it can be written to disk.

    Raise OSError if its storage is unavailable at the moment.
    """
    path = directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_probe(directory)
        # Another user may have started the run.
        path = directory / "checkpoints"
        if exists(path):
            write_probe(path)
    except OSError as error:
        if error.errno in UNAVAILABLE:
            raise
        raise ConfigurationError(
            f"run_dir {path} cannot be written: {describe_error(path, error)}"
            f"{_describe_owner(path, error)}; mount a writable volume there or choose another "
            "directory"
        ) from None


def describe_error(path: Path, error: OSError) -> str:
    """Return the reason for an error and, if the volume of `path` is full, its free space."""
    reason = error.strerror or str(error)
    if error.errno != errno.ENOSPC:
        return reason
    # The path may have been removed after the error.
    existing = next(each for each in (path, *path.parents) if exists(each))
    free = free_bytes(existing)
    return reason if free is None else f"{reason} ({_format_bytes(free)} free)"


def _describe_owner(directory: Path, error: OSError) -> str:
    """Describe the directory's owner and this process's user if `error` is EACCES.

    Otherwise, return an empty string. EACCES occurs, for example, on NFS with root_squash.
    """
    if error.errno != errno.EACCES:
        return ""
    # Path.exists raises an error below a directory that this process has no permission to read.
    existing = next(each for each in (directory, *directory.parents) if os.path.exists(each))  # noqa: PTH110
    found = existing.stat()
    return (
        f" ({existing} belongs to user {found.st_uid} and group {found.st_gid} with mode "
        f"{stat.S_IMODE(found.st_mode):04o}, but this process is user {os.geteuid()} in groups "
        f"{', '.join(map(str, sorted({os.getegid(), *os.getgroups()})))})"
    )


def check_free_space(run_dir: Path, state_bytes: int, keep: int, best: bool) -> None:
    """Check that a run's checkpoints will fit on the volume.

    `state_bytes` is the size of one checkpoint. The volume must hold the newest `keep` checkpoints,
    the best one if `best` is true, and the one that is being written. The space of existing
    checkpoints in `run_dir` counts as free.
    """
    count = keep + best + 1
    needed = state_bytes * count
    available = free_bytes(run_dir)
    if available is None:
        return
    existing = _size_of(run_dir / "checkpoints")
    if available + existing < needed:
        raise ConfigurationError(
            f"run_dir {run_dir} has {_format_bytes(available)} free"
            + (f" and {_format_bytes(existing)} in existing checkpoints" if existing else "")
            + f", but {count} checkpoints of {_format_bytes(state_bytes)} each will exist at once: "
            "decrease keep_checkpoints, set keep_best to false, or choose a larger volume"
        )


def check_shared_memory(
    batch_bytes: int, workers: int, local_size: int, directory: Path = SHARED_MEMORY
) -> None:
    """Check that the batches that loader workers prefetch fit into shared memory.

    `batch_bytes` is the size of one process's batch. Each of its `workers` holds two finished
    batches and one in progress. `local_size` processes share the memory of their node or pod.
    """
    needed = batch_bytes * workers * 3 * local_size
    available = free_bytes(directory)
    if available is not None and available < needed:
        raise ConfigurationError(
            f"{directory} has {_format_bytes(available)} free, but prefetched batches need "
            f"{_format_bytes(needed)} there (loader_workers {workers} in each of {local_size} "
            "processes): decrease loader_workers or batch_size, or increase the pod's shm"
        )


def free_bytes(directory: Path) -> int | None:
    """Return the bytes that an ordinary user can still write; None if the number is unknown.

    Per-user quotas are not visible. Raise ConfigurationError if the directory does not exist, and
    OSError if its storage is unavailable at the moment.
    """
    try:
        # Some network and user-space file systems report a total of 0, which means unknown.
        found = shutil.disk_usage(directory)
    except OSError as error:
        if error.errno in UNAVAILABLE:
            raise
        raise ConfigurationError(f"{directory} cannot be inspected: {error.strerror}") from None
    return found.free if found.total else None


def _size_of(directory: Path) -> int:
    """Return the bytes on disk of all files below `directory`. Ignore files that vanish.

    Raise OSError if a directory or a file cannot be inspected.
    """

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    total = 0
    for parent, _, names in os.walk(directory, onerror=fail):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).lstat().st_blocks * 512
    return total


def _format_bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
