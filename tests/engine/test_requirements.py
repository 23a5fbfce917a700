"""`requirements/`: the pins, and the script that creates the Python environment for `make`."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from devcluster.paths import CHECKOUT

SCRIPT = CHECKOUT / "requirements" / "environment.sh"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script with requirements that need no downloads."""
    folder = tmp_path / "requirements"
    folder.mkdir()
    (folder / "uv.txt").write_text("# nothing\n")
    return Path(shutil.copy(SCRIPT, folder))


def run(script: Path, python: Path | str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [script, python, folder]
    environment = {**os.environ, "GPU_PLATFORM_CACHE": str(script.parent / "cache")}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def test_later_environments_reuse_the_installed_uv(script: Path, tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", first], check=True)
    (first / "bin/uv").write_text("#!/bin/sh\necho pinned\n")
    (first / "bin/uv").chmod(0o755)
    for folder in (first, second):
        done = run(script, sys.executable, folder)
        assert done.returncode == 0, done.stderr
    found = subprocess.run([second / "bin/uv"], capture_output=True, text=True, check=True)
    assert found.stdout == "pinned\n"
    # A damaged copy is replaced.
    (kept,) = (script.parent / "cache").glob("uv-*")
    kept.write_text("damaged")
    (first / "bin/uv").write_text("#!/bin/sh\necho repaired\n")
    assert run(script, sys.executable, first).returncode == 0
    assert "repaired" in kept.read_text()
    # A different pin requires a different version of uv.
    (script.parent / "uv.txt").write_text("# nothing else\n")
    assert run(script, sys.executable, other).returncode == 0
    assert not (other / "bin/uv").exists()


def test_concurrent_setups_of_an_environment_succeed(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    # Copying uv takes a moment because of its size.
    (folder / "bin/uv").write_text("#!/bin/sh\necho pinned\nexit\n" + "#\n" * 10_000_000)
    (folder / "bin/uv").chmod(0o755)
    assert run(script, sys.executable, folder).returncode == 0
    shutil.rmtree(folder)
    with ThreadPoolExecutor(4) as pool:
        setups = [pool.submit(run, script, sys.executable, folder) for _ in range(4)]
    assert not any(setup.result().returncode for setup in setups), setups[0].result().stderr
    found = subprocess.run([folder / "bin/uv"], capture_output=True, text=True, check=True)
    assert found.stdout == "pinned\n"


def test_interrupted_setup_is_resumed(script: Path, tmp_path: Path) -> None:
    # The setup was interrupted before uv was installed. `make` puts the environment first on PATH.
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    done = run(script, folder / "bin/python", folder)
    assert done.returncode == 0, done.stderr


def test_broken_environment_is_recreated(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to("/gone/python")
    done = run(script, sys.executable, folder)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([folder / "bin/python", "-c", ""], check=False).returncode == 0


def test_setup_output_is_not_evaluated_by_the_shell(script: Path, tmp_path: Path) -> None:
    # `eval "$(make env)"` in a fresh clone also creates the environment.
    done = run(script, sys.executable, tmp_path / "venv")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert str(tmp_path / "venv") in done.stderr


def test_tilde_in_the_cache_directory_expands_to_the_home_directory(
    script: Path, tmp_path: Path
) -> None:
    digest = sha256((script.parent / "uv.txt").read_bytes()).hexdigest()
    kept, folder = tmp_path / "cache" / f"uv-{digest[:12]}", tmp_path / "venv"
    kept.parent.mkdir()
    kept.write_text("#!/bin/sh\necho pinned\n")
    kept.chmod(0o755)
    environment = os.environ | {"HOME": str(tmp_path), "GPU_PLATFORM_CACHE": "~/cache"}
    subprocess.run([script, sys.executable, folder], check=True, env=environment)
    assert (folder / "bin/uv").read_bytes() == kept.read_bytes()


def test_missing_python_error_suggests_a_fix(script: Path, tmp_path: Path) -> None:
    done = run(script, "python-of-the-future", tmp_path / "venv")
    assert done.returncode == 1
    assert "install Python 3.11 or newer, or set PYTHON=" in done.stderr


def test_development_packages_are_pinned_for_later_versions_of_python() -> None:
    lines = re.findall(r"^\w.*==[^\\]*", (SCRIPT.parent / "dev.txt").read_text(), re.MULTILINE)
    pinned = [Requirement(line) for line in lines]
    needs = {}
    for pin in pinned:
        # Packages that only other versions need are not installed.
        with contextlib.suppress(PackageNotFoundError):
            needs[pin.name] = [
                Requirement(needed)
                for needed in requires(pin.name) or []
                if "extra ==" not in needed
            ]
    for version in ("3.11", "3.12", "3.13", "3.14"):
        environment = {
            "python_version": version,
            "python_full_version": f"{version}.0",
            "extra": "",
        }
        applying = [pin for pin in pinned if not pin.marker or pin.marker.evaluate(environment)]
        names = {canonicalize_name(pin.name) for pin in applying}
        for pin in applying:
            for needed in needs.get(pin.name, []):
                if not needed.marker or needed.marker.evaluate(environment):
                    name = canonicalize_name(needed.name)
                    assert name in names, f"{pin.name} requires {name} with Python {version}"
