"""An isolated machine: separate directories, and fake programs on PATH."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from devcluster.paths import Layout
from devcluster.spec import Kind

Install = Callable[[str, str], Path]
"""Function that puts a fake program, a shell script with the same name, on PATH."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache and state in a directory of this test."""
    folder = tmp_path / "platform"
    monkeypatch.setenv("GPU_PLATFORM_CACHE", str(folder))
    monkeypatch.delenv("GPU_PLATFORM_STATE", raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "GRPC_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return folder


@pytest.fixture
def no_clusters(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no user has an embedded cluster."""
    (tmp_path / "proc" / "1").mkdir(parents=True)  # psutil assumes at least one process
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))


@pytest.fixture
def layout(home: Path) -> Layout:
    found = Layout.of(Kind.REAL)
    found.logs.mkdir(parents=True)
    return found


@pytest.fixture
def simulated(home: Path) -> Layout:
    found = Layout.of(Kind.SIMULATED)
    found.logs.mkdir(parents=True)
    return found


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Function that puts a fake program, a shell script, first on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, script: str) -> Path:
        file = folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    return put
