from pathlib import Path

import pytest

from devcluster.docker_plugin import inputs
from devcluster.docker_plugin.inputs import ImageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("Dockerfile", "training/train.py", "training/notes.md", "docs/page.md"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    return tmp_path


def digest(folder: Path) -> str:
    return inputs.context_digest(folder, folder / "Dockerfile")


def test_the_same_files_have_the_same_digest(folder: Path) -> None:
    before = digest(folder)
    (folder / "training" / "train.py").touch()
    assert digest(folder) == before


@pytest.mark.parametrize("name", ["Dockerfile", "training/train.py", "new.py"])
def test_a_changed_or_new_file_changes_the_digest(folder: Path, name: str) -> None:
    before = digest(folder)
    (folder / name).write_text("something else")
    assert digest(folder) != before


def test_a_renamed_file_changes_the_digest(folder: Path) -> None:
    before = digest(folder)
    (folder / "training" / "train.py").rename(folder / "training" / "main.py")
    assert digest(folder) != before


def test_permissions_and_link_targets_change_the_digest(folder: Path) -> None:
    before = digest(folder)
    (folder / "training" / "train.py").chmod(0o755)
    executable = digest(folder)
    (folder / "link").symlink_to("docs/page.md")
    linked = digest(folder)
    (folder / "link").unlink()
    (folder / "link").symlink_to("nowhere")
    assert len({before, executable, linked, digest(folder)}) == 4


def test_ignored_files_do_not_change_the_digest(folder: Path) -> None:
    (folder / ".dockerignore").write_text("# for the image\n\n*\n!training\n**/*.md\n")
    before = digest(folder)
    assert sorted(inputs.files(folder, folder / "Dockerfile")) == [
        ".dockerignore",
        "Dockerfile",
        "training/train.py",
    ]
    for name in ("docs/page.md", "training/notes.md", "secret.pem"):
        (folder / name).write_text("changed")
    assert digest(folder) == before


def test_dockerfile_specific_ignore_file_takes_precedence(folder: Path) -> None:
    (folder / ".dockerignore").write_text("*\n")
    (folder / "Dockerfile.dockerignore").write_text("docs\n")
    assert "training/train.py" in inputs.files(folder, folder / "Dockerfile")
    assert "docs/page.md" not in inputs.files(folder, folder / "Dockerfile")


def test_a_dockerfile_outside_the_context_changes_the_digest(folder: Path) -> None:
    outside = folder / "Dockerfile"
    before = inputs.context_digest(folder / "training", outside)
    outside.write_text("FROM other")
    assert inputs.context_digest(folder / "training", outside) != before


def test_a_missing_context_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"build\.context: .*nowhere"):
        inputs.context_digest(tmp_path / "nowhere", tmp_path / "nowhere" / "Dockerfile")


FOLDERS = (
    "kube",
    "training",
    "workload",
    "inference",
    "recorder",
    "examples/diffusion",
    "examples/tensorflow",
    "examples/ray",
)


@pytest.mark.parametrize(
    "dockerfile",
    [
        "training/Dockerfile",
        "inference/Dockerfile",
        "recorder/Dockerfile",
        "examples/diffusion/Dockerfile",
        "examples/tensorflow/Dockerfile",
        "examples/ray/Dockerfile",
    ],
)
def test_build_contexts_contain_all_sources_of_the_images(dockerfile: str) -> None:
    root = Path(__file__).parents[2]
    sources = {
        path.relative_to(root).as_posix()
        for folder in FOLDERS
        for path in (root / folder).rglob("*.py")
    }
    sent = {name for name in inputs.files(root, root / dockerfile) if (root / name).is_file()}
    others = {"requirements/workload.txt", "requirements/diffusion.txt", dockerfile}
    others |= {".dockerignore", "requirements/tensorflow.txt", "requirements/recorder.txt"}
    others |= {"requirements/ray.txt"}
    others |= {"examples/tensorflow/requirements.txt", "training/data/digits.npz"}
    assert sources <= sent
    assert sent - sources <= others


def test_sweep_controller_image_contains_the_builders_but_no_training_program() -> None:
    root = Path(__file__).parents[2]
    copied = {
        path.relative_to(root).as_posix()
        for folder in ("infra", "kube", "sweeps", "workload")
        for path in (root / folder).rglob("*.py")
    }
    sent = inputs.files(root, root / "sweeps/Dockerfile")
    assert copied <= {*sent}
    programs = {name for name in sent if name.startswith(("training/", "inference/"))}
    configurations = ("training/config.py", "training/settings.py", "inference/config.py")
    assert {name for name in programs if name.endswith(".py")} == {
        *configurations,
        *("training/__init__.py", "inference/__init__.py"),
    }
    assert "requirements/sweeps.txt" in sent
