import re
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from gitops.changed import known_stacks
from gitops.environments.difference import values_of
from gitops.stack_file import document
from infra.settings.images import PROJECT_DIRECTORIES, BuildSettings, ImagesSettings, identity

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
def test_changed_source_changes_the_image_identity(root: Path, name: str) -> None:
    before = identity(BUILD, root)
    (root / name).write_text("changed\n")
    assert identity(BUILD, root) != before


def test_renamed_source_changes_the_image_identity(root: Path) -> None:
    before = identity(BUILD, root)
    (root / "training" / "train.py").rename(root / "training" / "fit.py")
    assert identity(BUILD, root) != before


def test_changed_base_image_changes_the_image_identity(root: Path) -> None:
    changed_build = BUILD.model_copy(update={"base_image": "python:3.12"})
    assert identity(changed_build, root) != identity(BUILD, root)


def test_changed_target_stage_changes_the_image_identity(root: Path) -> None:
    assert identity(BUILD.model_copy(update={"target": "mpi"}), root) != identity(BUILD, root)


def test_unrelated_edits_and_tool_files_do_not_change_the_identity(root: Path) -> None:
    before = identity(BUILD, root)
    (root / "README.md").write_text("changed\n")
    (root / "training" / "__pycache__").mkdir()
    (root / "training" / "__pycache__" / "train.pyc").write_bytes(b"compiled")
    (root / "training" / ".train.py.swp").write_bytes(b"edited")
    # The login to Google Cloud writes such a file with another name in each job on GitHub.
    (root / "training" / "gha-creds-0a1b2c3d4e5f6071.json").write_text("{}")
    assert identity(BUILD, root) == before


def test_identity_does_not_depend_on_the_checkout_path(root: Path, tmp_path: Path) -> None:
    before = identity(BUILD, root)
    (root / "copy").mkdir()
    for name in ("training", "needs.txt"):
        (root / name).rename(root / "copy" / name)
    assert identity(BUILD, root / "copy") == before


def test_a_missing_source_is_an_error(root: Path) -> None:
    (root / "needs.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"needs\.txt"):
        identity(BUILD, root)


def user_identity(build: BuildSettings, root: Path) -> str:
    """Return the user's part of the identity, with `root` as this project's checkout."""
    return identity(build, root, project=root)


@pytest.mark.parametrize(
    "name", ["training/models/net.py", "training/Dockerfile", "training/new.py"]
)
@pytest.mark.parametrize("sources", [["training", "needs.txt"], ["./training", "needs.txt"], ["."]])
def test_project_sources_do_not_change_the_user_identity(
    root: Path, name: str, sources: list[str]
) -> None:
    build = BUILD.model_copy(update={"sources": sources})
    before, image = user_identity(build, root), identity(build, root)
    (root / name).write_text("changed\n")
    assert user_identity(build, root) == before
    assert identity(build, root) != image


def test_project_directories_contain_all_sources_in_the_dockerfiles() -> None:
    files = [file.read_text() for file in CHECKOUT.glob("*/Dockerfile")]
    copied = re.findall(r"^COPY ([a-z][^ /]+)/.* ", "\n".join(files), re.MULTILINE)
    assert {*copied} <= {*PROJECT_DIRECTORIES}
    assert "sweeps" in copied


@pytest.mark.parametrize(
    "change",
    [
        {"base_image": "python:3.12"},
        {"platform": "linux/arm64"},
        {"args": {"CUDA": "13"}},
        {"target": "mpi"},
        {"dockerfile": "mine/Dockerfile"},
    ],
)
def test_build_settings_change_the_user_identity(root: Path, change: dict[str, Any]) -> None:
    (root / "mine").mkdir()
    (root / "mine" / "Dockerfile").write_text("FROM scratch\n")
    assert user_identity(BUILD.model_copy(update=change), root) != user_identity(BUILD, root)


@pytest.mark.parametrize("name", ["needs.txt", "mine/net.py", "mine/Dockerfile", "mine/training/a"])
@pytest.mark.parametrize("sources", [["training", "needs.txt", "mine"], ["training", "."]])
def test_user_files_change_the_user_identity(root: Path, name: str, sources: list[str]) -> None:
    (root / "mine" / "training").mkdir(parents=True)
    (root / "mine" / "Dockerfile").write_text("FROM scratch\n")
    build = BUILD.model_copy(update={"dockerfile": "mine/Dockerfile", "sources": sources})
    before = user_identity(build, root)
    (root / name).write_text("changed\n")
    assert user_identity(build, root) != before


@pytest.mark.parametrize("stack", known_stacks(CHECKOUT))
def test_images_of_the_environments_contain_no_user_files(stack: str, tmp_path: Path) -> None:
    """Images without user files keep their identity, so upgrades of this project start no runs."""
    values, _ = values_of(document(CHECKOUT / f"Pulumi.{stack}.yaml")["config"])
    for image in ImagesSettings.model_validate(values["images"]).workloads.values():
        if image.build is not None:
            assert user_identity(image.build, CHECKOUT) == user_identity(image.build, tmp_path)


def test_new_build_settings_do_not_rename_existing_runs(root: Path) -> None:
    # A change to this identity restarts all runs whose images are built.
    build = BUILD.model_copy(update={"sources": ["training"]})
    assert user_identity(build, root)[:16] == "bf38a078fc8170db"
