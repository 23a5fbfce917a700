"""Checks on a real 1 MiB file system, which is mounted in a separate namespace."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from training.gang.preflight import await_free_space, check_free_space, check_run_dir, free_bytes
from workload.configuration import ConfigurationError

MIB = 2**20

ON_A_SMALL_VOLUME = """
import json, subprocess, sys
from pathlib import Path
from workload.configuration import ConfigurationError
from training.gang.preflight import *

volume = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(volume)], check=True)
reported = []
def record(check, *arguments, **more):
    try:
        reported.append(check(*arguments, **more))
    except ConfigurationError as error:
        reported.append(str(error))

record(check_run_dir, volume / "run")
record(check_free_space, volume / "run", 300_000, keep=1, best=True)
record(check_free_space, volume / "run", 400_000, keep=1, best=True)
old = volume / "run" / "checkpoints" / "step-00000001"
old.mkdir(parents=True)
(old / "state").write_bytes(bytes(300_000))
record(check_free_space, volume / "run", 300_000, keep=1, best=True)
record(check_shared_memory, 10_000, workers=2, local_size=8, directory=volume)
record(check_shared_memory, 100_000, workers=2, local_size=8, directory=volume)
record(check_shared_memory, 100_000, workers=0, local_size=8, directory=volume)
try:
    (volume / "rest").write_bytes(bytes(2**20))
except OSError:
    pass
record(check_run_dir, volume / "run")
print(json.dumps(reported))
"""


def test_volume_that_is_too_small_is_rejected_at_the_start(tmp_path: Path) -> None:
    roomy, fits, too_small, fits_with_own, few, many, none, full = json.loads(
        on_a_small_volume(ON_A_SMALL_VOLUME, tmp_path)
    )
    assert (roomy, fits, fits_with_own, few, none) == (None,) * 5
    assert "has 1 MiB free, but 3 checkpoints of 390.6 KiB" in too_small
    assert "decrease keep_checkpoints" in too_small
    assert "prefetched batches need 4.578 MiB there" in many
    assert "loader_workers 2 in each of 8 processes" in many
    assert full == (
        f"run_dir {tmp_path}/run cannot be written: No space left on device (0 bytes free); "
        "mount a writable volume there or choose another directory"
    )
    assert not list(tmp_path.iterdir())


WAITING_ON_A_SMALL_VOLUME = """
import subprocess, sys, threading, time
from pathlib import Path
from training.gang import preflight

preflight.POLL_SECONDS = 0.01
volume = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(volume)], check=True)
run, rest = volume / "run", volume / "rest"
run.mkdir()

def fill():
    try:
        rest.write_bytes(bytes(2**20))
    except OSError:
        pass

fill()
preflight.await_free_space(run, 0)
print("a new run does not wait", flush=True)
rest.unlink()
old = run / "checkpoints" / "step-00000001"
old.mkdir(parents=True)
(old / "state").write_bytes(bytes(300_000))
preflight.await_free_space(run, 0)
print("a started run has space", flush=True)
fill()
preflight.await_free_space(run, 0.05)
print("the timeout passes", flush=True)
threading.Timer(0.2, lambda: (print("a file is deleted", flush=True), rest.unlink())).start()
preflight.await_free_space(run, 0)
print("the run continues", flush=True)
unfinished = run / "checkpoints" / ".step-00000002.tmp"
unfinished.mkdir()
rest = unfinished / "state"
fill()
preflight.await_free_space(run, 0)
print("its own unfinished checkpoint is deleted", flush=True)
"""


def test_a_started_run_waits_for_space_on_a_full_volume(tmp_path: Path) -> None:
    warning = '{"event": "warning", "message": "run_dir %s/run is full: waiting for space"}'
    assert on_a_small_volume(WAITING_ON_A_SMALL_VOLUME, tmp_path).splitlines() == [
        "a new run does not wait",
        "a started run has space",
        warning % tmp_path,
        "the timeout passes",
        warning % tmp_path,
        "a file is deleted",
        "the run continues",
        "its own unfinished checkpoint is deleted",
    ]


def test_probe_files_of_several_processes_do_not_collide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the directory again while the first check's probe file exists."""
    probes: list[Path] = []

    def flush(file: int) -> None:
        probes.append(Path(f"/proc/self/fd/{file}").readlink())
        if len(probes) == 1:
            check_run_dir(tmp_path)

    monkeypatch.setattr(os, "fsync", flush)
    check_run_dir(tmp_path)
    assert [probe.parent for probe in probes] == [tmp_path] * 2
    assert len(set(probes)) == 2
    assert not list(tmp_path.iterdir())


def on_a_small_volume(program: str, folder: Path) -> str:
    """Run a program that may mount a volume on `folder`, and return its output."""
    namespaces = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*namespaces, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not permit user namespaces")
    result = subprocess.run(
        [*namespaces, sys.executable, "-c", program, str(folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout


def test_checkpoints_larger_than_the_disk_are_rejected(tmp_path: Path) -> None:
    free = free_bytes(tmp_path)
    assert free is not None
    check_free_space(tmp_path, MIB, keep=3, best=True)
    with pytest.raises(ConfigurationError, match=f"run_dir {tmp_path} has .* free, but 2 check"):
        check_free_space(tmp_path, free, keep=1, best=False)


def test_directory_check_leaves_no_files_and_reports_unwritable_directories(tmp_path: Path) -> None:
    check_run_dir(tmp_path / "new" / "run")
    assert not list((tmp_path / "new" / "run").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written: Not a directory"):
        check_run_dir(tmp_path / "file" / "run")
    with pytest.raises(ConfigurationError, match="/nowhere cannot be inspected"):
        free_bytes(Path("/nowhere"))


def test_free_space_of_unavailable_storage_is_not_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr(shutil, "disk_usage", Mock(side_effect=error))
    with pytest.raises(OSError, match="Stale file handle"):
        free_bytes(tmp_path)


@pytest.mark.parametrize("name", ["run/checkpoints", "run/checkpoints/step-00000001"])
def test_checkpoints_that_cannot_be_listed_do_not_count_as_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run/checkpoints/step-00000001").mkdir(parents=True)

    def fail(read: Callable[..., Any], path: Path | str) -> Any:
        if Path(path) == tmp_path / name:
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return read(path)

    for read in (os.scandir, os.listdir):
        monkeypatch.setattr(os, read.__name__, partial(fail, read))
    with pytest.raises(OSError, match="Stale file handle"):
        await_free_space(tmp_path / "run", 1)
    with pytest.raises(OSError, match="Stale file handle"):
        check_free_space(tmp_path / "run", 2**60, keep=1, best=False)


AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from workload.configuration import ConfigurationError
from training.gang.preflight import await_free_space, check_run_dir

os.setgroups([10001, 2000])
os.setresgid(10001, 10001, 10001)
os.setresuid(10001, 10001, 10001)
try:
    await_free_space(Path(sys.argv[1]), 1)
    check_run_dir(Path(sys.argv[1]))
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another user")
@pytest.mark.parametrize("run_dir", ["", "digits-0a1b2c3d"])
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_error_states_the_owner_of_an_unwritable_directory(mode: int, run_dir: str) -> None:
    """Simulate an NFS export with root_squash, where the kubelet cannot change the group."""
    with tempfile.TemporaryDirectory() as name:
        volume = Path(name)
        os.chown(volume, 65534, 65533)
        volume.chmod(mode)
        result = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER_USER, str(volume / run_dir)],
            capture_output=True,
            text=True,
            check=True,
        )
    assert result.stdout == (
        f"run_dir {volume / run_dir} cannot be written: Permission denied ({volume} belongs to "
        f"user 65534 and group 65533 with mode {mode:04o}, but this process is user 10001 in "
        "groups 2000, 10001); mount a writable volume there or choose another directory\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another user")
def test_checkpoints_of_another_user_are_rejected_at_the_start() -> None:
    with tempfile.TemporaryDirectory() as name:
        run_dir = Path(name)
        os.chown(run_dir, 10001, 10001)
        (run_dir / "checkpoints").mkdir(mode=0o755)
        result = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER_USER, name],
            capture_output=True,
            text=True,
            check=True,
        )
    assert f"run_dir {run_dir}/checkpoints cannot be written: Permission denied (" in result.stdout
    assert "belongs to user 0" in result.stdout


LIMITED = """
import os, resource
from training.gang.preflight import warn_about_locked_memory

_, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, hard))
warn_about_locked_memory(os.environ)
"""


@pytest.mark.parametrize(
    ("variables", "warned"),
    [({"NCCL_NET": "IB"}, True), ({"FI_PROVIDER": "efa"}, True), ({"NCCL_NET": "Socket"}, False)],
)
def test_low_locked_memory_limit_is_reported_if_rdma_is_used(
    variables: dict[str, str], warned: bool
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMITED], env=variables, capture_output=True, text=True, check=True
    )
    assert ("LimitMEMLOCK=infinity" in result.stdout) is warned
    assert ("can lock at most 1 MiB" in result.stdout) is warned
