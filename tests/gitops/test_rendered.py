"""Revisions and configurations for a preview without a cluster."""

import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from gitops import rendered
from gitops.engine import Stack
from gitops.errors import GitopsError


def git(project: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)


def commit(project: Path, text: str) -> None:
    (project / "file").write_text(text)
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a repository whose branch left main after one commit; both have later commits."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    commit(folder, "first")
    git(folder, "checkout", "--quiet", "-b", "branch")
    commit(folder, "branch")
    git(folder, "checkout", "--quiet", "main")
    commit(folder, "main")
    git(folder, "checkout", "--quiet", "branch")
    (folder / ".venv").mkdir()
    return folder


def test_base_is_the_commit_where_the_branch_started(project: Path, tmp_path: Path) -> None:
    (project / "file").write_text("not committed")
    base = rendered._checkout(project, "main", tmp_path / "base")
    assert (base / "file").read_text() == "first"
    assert (base / ".venv").resolve() == (project / ".venv").resolve()
    assert (project / "file").read_text() == "not committed"


@pytest.mark.parametrize("revision", ["nowhere", "--output=x"])
def test_an_invalid_revision_is_reported(revision: str, project: Path, tmp_path: Path) -> None:
    with pytest.raises(GitopsError, match="revision"):
        rendered._checkout(project, revision, tmp_path / "base")


def test_temporary_directory_may_contain_characters_of_urls() -> None:
    backend = urlsplit(rendered._variables(Path("/tmp/a#b%41?c d"))["PULUMI_BACKEND_URL"])
    assert unquote(backend.path) == "/tmp/a#b%41?c d/state"
    assert not backend.query


def test_property_paths_use_the_syntax_of_the_cli() -> None:
    path = ("gpu-platform:training", "jobs", "a.b", "mounts", 0, "key")
    assert (
        rendered._property_path(path) == 'gpu-platform:training["jobs"]["a.b"]["mounts"][0]["key"]'
    )


def test_digest_of_an_unbuilt_image_depends_on_its_sources(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM base")
    (tmp_path / "source.py").write_text("1")
    build = {"dockerfile": "Dockerfile", "base_image": "base:1", "sources": ["source.py"]}

    def reference() -> str:
        workloads = {"training": {"build": build}, "other": {"reference": "x@sha256:0"}}
        images = {"registry": "registry.example.com", "workloads": workloads}
        rendered._replace_builds(images, tmp_path, {"training"})
        assert workloads["other"] == {"reference": "x@sha256:0"}
        return str(workloads["training"]["reference"])

    first = reference()
    assert first.startswith("registry.example.com/gpu-platform/training@sha256:")
    assert reference() == first
    (tmp_path / "source.py").write_text("2")
    assert reference() != first


def test_invalid_build_settings_are_left_unchanged(tmp_path: Path) -> None:
    images = {"workloads": {"training": {"build": {"dockerfil": "x"}}}}
    rendered._replace_builds(images, tmp_path, ())
    assert images == {"workloads": {"training": {"build": {"dockerfil": "x"}}}}
    rendered._replace_builds(None, tmp_path, ())
    rendered._replace_builds({"workloads": []}, tmp_path, ())


def test_sources_of_this_project_change_only_images_without_runs(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    build = {"dockerfile": "training/Dockerfile", "base_image": "base:1", "sources": ["training"]}
    training = {
        "jobs": {"digits": {"nodes": 1}, "notebook": {"image": "notebook"}},
        "sweeps": {"search": {"job": {"image": "trials"}}},
    }
    keys = ("inference", "notebook", "training", "trials")

    def references() -> dict[str, Any]:
        images: dict[str, Any] = {"workloads": {key: {"build": build} for key in keys}}
        rendered._replace_builds(images, tmp_path, rendered._run_images(training))
        return dict(images["workloads"])

    (tmp_path / "training" / "Dockerfile").write_text("FROM base")
    before = references()
    (tmp_path / "training" / "Dockerfile").write_text("FROM base\nRUN true")
    after = references()
    assert [key for key in keys if before[key] != after[key]] == ["inference"]


@pytest.mark.parametrize("training", [None, [], {"jobs": None, "sweeps": {"a": None, "b": {}}}])
def test_invalid_training_settings_have_no_images(training: Any) -> None:
    assert rendered._run_images(training) == set()


def test_base_that_cannot_be_rendered_is_reported_and_ignored(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Pulumi.yaml", "Pulumi.prod.yaml"):
        (project / name).write_text("config: {}\n")
    commit(project, "stack")
    program = tmp_path / "pulumi"
    program.write_text(
        """#!/bin/sh
        case "$1 $2" in
        "up --yes") touch "${PULUMI_BACKEND_URL#file://}/partial"; exit 1 ;;
        "stack init") echo 'config: {}' > Pulumi.prod.yaml ;;
        esac
        """
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with rendered.workspace(Stack("prod", project), "HEAD") as found:
        (notice,) = found.notices
        assert notice.startswith("The base `HEAD` cannot be rendered")
        state = Path(found.variables["PULUMI_BACKEND_URL"].removeprefix("file://"))
        assert list(state.iterdir()) == []
        assert "render_to" in found.file.read_text()
