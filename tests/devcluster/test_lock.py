"""The lock of a cluster, with two real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import DevclusterError
from devcluster.launcher import exclusive

HOLD = """
import sys
from pathlib import Path
from devcluster.launcher import exclusive
with exclusive(Path(sys.argv[1]), "make up"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "lock"


@pytest.fixture
def lock_holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is stopped."""
    command = [sys.executable, "-c", HOLD, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_second_process_reports_the_holder_of_the_lock(
    path: Path, lock_holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(DevclusterError) as caught, exclusive(path, "make down"):
        pass
    message = str(caught.value)
    assert message.startswith("`make up` has been running since 20")
    assert f"(process {lock_holder.pid})" in message
    assert message.endswith("wait until it exits, or stop it")


def test_the_second_process_does_not_disturb_the_first(
    path: Path, lock_holder: subprocess.Popen[str]
) -> None:
    for _ in range(2):
        with pytest.raises(DevclusterError, match="`make up`"), exclusive(path, "make down"):
            pass


def test_lock_of_a_dead_process_can_be_acquired(
    path: Path, lock_holder: subprocess.Popen[str]
) -> None:
    lock_holder.send_signal(signal.SIGKILL)
    lock_holder.wait()
    with exclusive(path, "make down"):
        assert f'"pid": {os.getpid()}' in path.with_suffix(".holder").read_text()


def test_lock_is_released_after_an_error(path: Path) -> None:
    with pytest.raises(RuntimeError, match="boom"), exclusive(path, "make up"):
        raise RuntimeError("boom")
    with exclusive(path, "make up"):
        pass
    assert not path.with_suffix(".holder").exists()


def test_lock_is_acquired_while_the_disk_is_full(path: Path) -> None:
    path.parent.mkdir()
    path.with_suffix(".holder").symlink_to("/dev/full")
    with exclusive(path, "make down"):
        pass
    assert not path.with_suffix(".holder").is_symlink()


def test_unnamed_holder_of_the_lock_is_reported(
    path: Path, lock_holder: subprocess.Popen[str]
) -> None:
    path.with_suffix(".holder").write_text('{"pid": 1')
    with pytest.raises(DevclusterError, match="another command is using"), exclusive(path, "x"):
        pass
