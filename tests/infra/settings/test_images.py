from pathlib import Path

import pytest

from infra.settings.images import BuildSettings, identity

BUILD = BuildSettings(
    dockerfile="training/Dockerfile", base_image="python:3.11", sources=["training", "needs.txt"]
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "training" / "models").mkdir(parents=True)
    (tmp_path / "training" / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "training" / "train.py").write_text("print('train')\n")
    (tmp_path / "training" / "models" / "net.py").write_text("print('net')\n")
    (tmp_path / "needs.txt").write_text("numpy\n")
    (tmp_path / "README.md").write_text("hello\n")
    return tmp_path


def test_the_same_sources_have_the_same_identity(root: Path) -> None:
    assert identity(BUILD, root) == identity(BUILD, root)


@pytest.mark.parametrize("name", ["training/models/net.py", "needs.txt", "training/Dockerfile"])
def test_a_changed_source_is_another_image(root: Path, name: str) -> None:
    before = identity(BUILD, root)
    (root / name).write_text("changed\n")
    assert identity(BUILD, root) != before


def test_a_renamed_source_is_another_image(root: Path) -> None:
    before = identity(BUILD, root)
    (root / "training" / "train.py").rename(root / "training" / "fit.py")
    assert identity(BUILD, root) != before


def test_another_base_image_is_another_image(root: Path) -> None:
    other = BUILD.model_copy(update={"base_image": "python:3.12"})
    assert identity(other, root) != identity(BUILD, root)


def test_another_stage_of_the_dockerfile_is_another_image(root: Path) -> None:
    assert identity(BUILD.model_copy(update={"target": "mpi"}), root) != identity(BUILD, root)


def test_edits_elsewhere_and_files_of_tools_change_nothing(root: Path) -> None:
    before = identity(BUILD, root)
    (root / "README.md").write_text("changed\n")
    (root / "training" / "__pycache__").mkdir()
    (root / "training" / "__pycache__" / "train.pyc").write_bytes(b"compiled")
    (root / "training" / ".train.py.swp").write_bytes(b"edited")
    assert identity(BUILD, root) == before


def test_the_place_of_the_checkout_does_not_matter(root: Path, tmp_path: Path) -> None:
    before = identity(BUILD, root)
    (root / "copy").mkdir()
    for name in ("training", "needs.txt"):
        (root / name).rename(root / "copy" / name)
    assert identity(BUILD, root / "copy") == before


def test_a_missing_source_is_an_error(root: Path) -> None:
    (root / "needs.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"needs\.txt"):
        identity(BUILD, root)
