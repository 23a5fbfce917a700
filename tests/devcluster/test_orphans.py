"""Processes that look like clusters of a kind that only this test uses."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from devcluster import launcher
from devcluster.launcher import Record, exclusive
from devcluster.paths import Layout

# No cluster of the machine that runs the test is of this kind.
KIND: Any = f"test-{os.getpid()}"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that `ps` shows like a cluster's, with a state directory."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(state: Path, root: str = "/") -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["unshare", "-c", "read line", "-m", "devcluster.cluster_init", KIND],
            executable="/bin/sh",
            stdin=subprocess.PIPE,
            env={"GPU_PLATFORM_STATE": str(state)},
            preexec_fn=partial(os.chroot, root) if root != "/" else None,
        )
        started.append(process)
        while not psutil.Process(process.pid).cmdline():  # empty for a moment after the start
            time.sleep(0.001)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def note(state: Path, pid: int, *, groups: Sequence[Path] = (), boot: str = "") -> None:
    (state / KIND).mkdir(parents=True, exist_ok=True)
    started, boot = launcher.start_ticks(pid), boot or launcher.boot_id()
    record = Record(pid, started, boot, KIND, [str(group) for group in groups], "/checkout")
    (state / KIND / "cluster.json").write_text(json.dumps(asdict(record)))


def test_a_cluster_with_its_record_is_left_alone(tmp_path: Path, start: Start) -> None:
    process = start(tmp_path)
    note(tmp_path, process.pid)
    assert launcher.stop_orphans(KIND) == 0
    assert process.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root directory")
def test_a_cluster_in_a_container_is_left_alone(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It has the same path of its state directory, but another file system.
    monkeypatch.setenv("GPU_PLATFORM_STATE", str(tmp_path))
    process = start(tmp_path, root="/usr")
    assert launcher.running_elsewhere(KIND) == []
    assert launcher.stop_orphans(KIND) == 0
    assert process.poll() is None


def test_a_cluster_whose_state_is_gone_is_ended(tmp_path: Path, start: Start) -> None:
    process = start(tmp_path / "removed")
    assert launcher.stop_orphans(KIND) == 1
    assert not psutil.pid_exists(process.pid)


def test_a_cluster_whose_record_names_another_is_ended(tmp_path: Path, start: Start) -> None:
    first, second = start(tmp_path), start(tmp_path)
    note(tmp_path, second.pid)
    assert launcher.stop_orphans(KIND) == 1
    assert not psutil.pid_exists(first.pid)
    assert second.poll() is None


def test_the_processes_of_another_cluster_in_the_same_groups_are_not_killed(
    tmp_path: Path, start: Start
) -> None:
    process, group = start(tmp_path / "other"), tmp_path / "group"
    group.mkdir()
    (group / "cgroup.procs").write_text(f"{process.pid}\n")
    note(tmp_path, process.pid, groups=[group], boot="before")
    assert launcher.stop(Layout(tmp_path, tmp_path / KIND)) == []
    assert process.poll() is None
    assert launcher.read_record(Layout(tmp_path, tmp_path / KIND)) is None


def test_a_cluster_started_by_another_process_is_not_stopped(tmp_path: Path, start: Start) -> None:
    process = start(tmp_path)  # its record is not written yet
    with exclusive(tmp_path / KIND / "lock", "make up"):
        assert launcher.stop_orphans(KIND) == 0
    assert process.poll() is None
    assert launcher.stop_orphans(KIND) == 1


def test_processes_of_an_unrecorded_start_are_ended(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PLATFORM_STATE", str(tmp_path))
    process = start(tmp_path)
    with exclusive(tmp_path / KIND / "lock", "make up"):
        assert launcher.stop_orphans(KIND) == 1
    assert not psutil.pid_exists(process.pid)


def test_clusters_of_others_are_found_by_their_state(tmp_path: Path, start: Start) -> None:
    start(tmp_path / "a")
    start(tmp_path / "b")
    assert sorted(launcher.running_elsewhere(KIND)) == [tmp_path / "a", tmp_path / "b"]


def test_other_processes_are_not_clusters(tmp_path: Path) -> None:
    command = ["sh", "-c", "read line", "-m", "devcluster.cluster_init", KIND]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert launcher.running_elsewhere(KIND) == []
        assert launcher.stop_orphans(KIND) == 0
        assert process.poll() is None
        process.kill()
