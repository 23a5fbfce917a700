"""Orphaned cluster processes, imitated by processes of a kind that only these tests use."""

import errno
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

# No cluster on the host that runs these tests has this kind.
KIND: Any = f"test-{os.getpid()}"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process with the command line of a cluster process and a state directory."""
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
        while not psutil.Process(process.pid).cmdline():  # The command line is empty at first.
            time.sleep(0.001)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def write_record(state: Path, pid: int, *, groups: Sequence[Path] = (), boot: str = "") -> None:
    (state / KIND).mkdir(parents=True, exist_ok=True)
    started, boot = launcher.start_ticks(pid), boot or launcher.boot_id()
    record = Record(pid, started, boot, KIND, [str(group) for group in groups], "/checkout")
    (state / KIND / "cluster.json").write_text(json.dumps(asdict(record)))


def test_recorded_cluster_is_not_stopped(tmp_path: Path, start: Start) -> None:
    process = start(tmp_path)
    write_record(tmp_path, process.pid)
    assert launcher.stop_orphans(KIND) == 0
    assert process.poll() is None


def test_cluster_whose_record_cannot_be_read_is_not_stopped(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(tmp_path)
    write_record(tmp_path, process.pid)
    read_text = Path.read_text

    def read(path: Path, *arguments: Any) -> str:
        if path.name == "cluster.json":
            raise OSError(errno.EIO, "Input/output error")
        return read_text(path, *arguments)

    monkeypatch.setattr(Path, "read_text", read)
    with pytest.raises(OSError, match="Input/output error"):
        launcher.stop_orphans(KIND)
    assert process.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root directory")
def test_cluster_in_a_container_is_not_stopped(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The container's state directory has the same path, but in another file system.
    monkeypatch.setenv("GPU_PLATFORM_STATE", str(tmp_path))
    process = start(tmp_path, root="/usr")
    assert launcher.running_elsewhere(KIND) == []
    assert launcher.stop_orphans(KIND) == 0
    assert process.poll() is None


def test_cluster_without_a_state_directory_is_stopped(tmp_path: Path, start: Start) -> None:
    process = start(tmp_path / "removed")
    assert launcher.stop_orphans(KIND) == 1
    assert not psutil.pid_exists(process.pid)


def test_cluster_is_stopped_if_its_record_names_another_process(
    tmp_path: Path, start: Start
) -> None:
    first, second = start(tmp_path), start(tmp_path)
    write_record(tmp_path, second.pid)
    assert launcher.stop_orphans(KIND) == 1
    assert not psutil.pid_exists(first.pid)
    assert second.poll() is None


def test_other_clusters_processes_in_the_same_cgroups_are_not_killed(
    tmp_path: Path, start: Start
) -> None:
    process, group = start(tmp_path / "other"), tmp_path / "group"
    group.mkdir()
    (group / "cgroup.procs").write_text(f"{process.pid}\n")
    write_record(tmp_path, process.pid, groups=[group], boot="before")
    assert launcher.stop(Layout(tmp_path, tmp_path / KIND)) == []
    assert process.poll() is None
    assert launcher.read_record(Layout(tmp_path, tmp_path / KIND)) is None


def test_cluster_that_another_process_is_starting_is_not_stopped(
    tmp_path: Path, start: Start
) -> None:
    process = start(tmp_path)  # The cluster's record has not been written yet.
    with exclusive(tmp_path / KIND / "lock", "make up"):
        assert launcher.stop_orphans(KIND) == 0
    assert process.poll() is None
    assert launcher.stop_orphans(KIND) == 1


def test_processes_of_an_unrecorded_start_are_killed(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PLATFORM_STATE", str(tmp_path))
    process = start(tmp_path)
    with exclusive(tmp_path / KIND / "lock", "make up"):
        assert launcher.stop_orphans(KIND) == 1
    assert not psutil.pid_exists(process.pid)


def test_running_clusters_with_other_state_directories_are_found(
    tmp_path: Path, start: Start
) -> None:
    start(tmp_path / "a")
    start(tmp_path / "b")
    assert sorted(launcher.running_elsewhere(KIND)) == [tmp_path / "a", tmp_path / "b"]


def test_unrelated_processes_are_not_taken_for_clusters(tmp_path: Path) -> None:
    command = ["sh", "-c", "read line", "-m", "devcluster.cluster_init", KIND]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert launcher.running_elsewhere(KIND) == []
        assert launcher.stop_orphans(KIND) == 0
        assert process.poll() is None
        process.kill()
