"""The record and the lock of a cluster's process, and how the process is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from devcluster import DevclusterError, launcher
from devcluster.launcher import Record, exclusive
from devcluster.paths import Layout

HOLD = """
import sys
from pathlib import Path
from devcluster.launcher import exclusive
with exclusive(Path(sys.argv[1]), "make up"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as started:
        yield started
        started.kill()


def record_of(pid: int) -> Record:
    return Record(pid, launcher.start_ticks(pid), launcher.boot_id(), "real", [], "/checkout")


def write_record(layout: Layout, record: Record) -> None:
    layout.record.write_text(json.dumps(asdict(record)))


def test_a_cluster_that_was_never_started_is_not_running(home: Path) -> None:
    layout = Layout.of("real")
    assert launcher.read_record(layout) is None
    assert launcher.running(layout) is None


def test_running_process_is_recognized(layout: Layout, process: subprocess.Popen[bytes]) -> None:
    write_record(layout, record_of(process.pid))
    found = launcher.running(layout)
    assert found is not None
    assert found.pid == process.pid


@pytest.mark.parametrize(
    ("binaries", "expected"), [("/tools/bin-1", False), ("/tools/bin-2", True)]
)
def test_cluster_started_with_another_version_of_the_tools_is_recognized(
    binaries: str, expected: bool
) -> None:
    command = ["sh", "-c", "read line", "devcluster.cluster_init", "real", "/tools/bin-1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as started:
        while not psutil.Process(started.pid).cmdline():  # The command line is empty at first.
            time.sleep(0.001)
        assert launcher.has_other_tools(record_of(started.pid), Path(binaries)) is expected
        started.kill()


def test_a_dead_process_is_not_running(layout: Layout, process: subprocess.Popen[bytes]) -> None:
    write_record(layout, record_of(process.pid))
    process.kill()
    process.wait()
    assert launcher.running(layout) is None


def test_a_zombie_process_is_not_running(layout: Layout, process: subprocess.Popen[bytes]) -> None:
    write_record(layout, record_of(process.pid))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert launcher.running(layout) is None


def test_another_process_with_the_same_pid_is_not_recognized(
    layout: Layout, process: subprocess.Popen[bytes]
) -> None:
    record = record_of(process.pid)
    write_record(layout, replace(record, started=record.started - 60))
    assert launcher.running(layout) is None
    assert launcher.stop(layout) == []
    assert process.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"unknown": true}'])
def test_unreadable_record_is_ignored(layout: Layout, text: str) -> None:
    layout.record.write_text(text)
    assert launcher.read_record(layout) is None


@pytest.mark.parametrize(("key", "value"), [("pid", "x"), ("pid", -1), ("cgroups", [1])])
def test_record_with_an_invalid_value_is_ignored(layout: Layout, key: str, value: Any) -> None:
    record = {**asdict(record_of(os.getpid())), key: value}
    layout.record.write_text(json.dumps(record))
    assert launcher.running(layout) is None
    assert launcher.stop(layout) == []


def test_stopping_an_unstarted_process_is_not_an_error(home: Path) -> None:
    assert launcher.stop(Layout.of("real")) == []


def test_stopping_ends_the_process_and_deletes_its_record(
    layout: Layout,
    process: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # While another cluster is running on this host, its control groups are kept.
    monkeypatch.setattr(launcher, "_clusters", lambda _: iter(()))
    group = tmp_path / "memory" / "gpu-platform-real"
    (group / "supervisor").mkdir(parents=True)
    write_record(layout, replace(record_of(process.pid), cgroups=[str(group)]))
    assert launcher.stop(layout) == []
    assert not psutil.pid_exists(process.pid)
    assert not group.exists()
    assert not layout.record.exists()
    assert launcher.stop(layout) == []


def test_cluster_processes_inherit_only_allowed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "users")
    monkeypatch.setenv("LD_PRELOAD", "")
    found = launcher._environment(Path("/tools"))
    assert found["PATH"].startswith("/tools:")
    allowed = {"HOME", "LANG", "PATH", "GPU_PLATFORM_CACHE", "GPU_PLATFORM_STATE", "KUBERC"}
    assert set(found) <= allowed
    assert found["KUBERC"] == "off"


def test_relative_directories_are_made_absolute_for_cluster_processes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("GPU_PLATFORM_CACHE", "cache")
    monkeypatch.setenv("GPU_PLATFORM_STATE", "../state")
    found = launcher._environment(Path("/tools"))
    assert found["GPU_PLATFORM_CACHE"] == str(home / "cache")
    assert found["GPU_PLATFORM_STATE"] == str(home.parent / "state")


def test_process_from_a_previous_boot_is_not_recognized(
    layout: Layout, process: subprocess.Popen[bytes]
) -> None:
    write_record(
        layout, replace(record_of(process.pid), boot="11111111-2222-3333-4444-555555555555")
    )
    assert launcher.running(layout) is None


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
