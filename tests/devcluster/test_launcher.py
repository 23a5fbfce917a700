"""The record of a cluster's process: when it is recognized, and how the process is stopped."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from devcluster import launcher
from devcluster.launcher import Record
from devcluster.paths import Layout


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
