"""The base image: what decides its name, and how making it fails."""

import time
from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.images import base_image
from devcluster.images.oci import Layout as Image
from tests.devcluster.programs import Install


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    files = [tmp_path / "workload.txt", tmp_path / "cpu-image.txt"]
    for file in files:
        file.write_text("torch==2.15.0\n")
    monkeypatch.setattr(base_image, "REQUIREMENTS", tuple(files))
    return files


def test_the_requirements_of_the_checkout_are_there():
    assert all(file.read_text() for file in base_image.REQUIREMENTS)


def test_the_name_stays_while_nothing_changes(requirements: list[Path]):
    assert base_image.key() == base_image.key()
    assert len(base_image.key()) == 12


@pytest.mark.parametrize("which", [0, 1])
def test_the_name_changes_with_every_file_of_requirements(requirements: list[Path], which: int):
    before = base_image.key()
    requirements[which].write_text("torch==2.15.1\n")
    assert base_image.key() != before


def test_a_line_that_moves_to_the_other_file_changes_the_name(requirements: list[Path]):
    requirements[0].write_text("ab")
    requirements[1].write_text("c")
    before = base_image.key()
    requirements[0].write_text("a")
    requirements[1].write_text("bc")
    assert base_image.key() != before


def test_packages_that_can_not_be_installed_end_the_work_on_debian_too(
    tmp_path: Path, install: Install, requirements: list[Path]
):
    work, log, image = tmp_path / "work", tmp_path / "log", Image(tmp_path / "image")
    install("mmdebstrap", "exec sleep 30")
    uv = install("uv", "echo no such version; exit 1")
    began = time.monotonic()
    with pytest.raises(DevclusterError, match=f"the base image could not be made.*see {log}"):
        base_image.build(image, work, uv, log)
    assert time.monotonic() - began < 10
    assert "no such version" in log.read_text()
    assert not work.exists()
    assert image.digest is None
