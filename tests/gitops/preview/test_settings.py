"""Changed settings in the report of a preview."""

import argparse
import subprocess
from pathlib import Path

import pytest

from devcluster.paths import CHECKOUT
from gitops.engine import Stack
from gitops.preview import command
from tests.gitops import plans
from tests.gitops.preview.test_command import Engine


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a repository whose branch lowers a learning rate and whose base has moved on."""
    file = tmp_path / "Pulumi.staging.yaml"
    text = (CHECKOUT / file.name).read_text()
    assert "learning_rate: 0.002" in text
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    file.write_text(text)
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=base")
    git(tmp_path, "checkout", "--quiet", "-b", "branch")
    file.write_text(text.replace("learning_rate: 0.002", "learning_rate: 0.001"))
    git(tmp_path, "commit", "--quiet", "--all", "--message=head")
    git(tmp_path, "checkout", "--quiet", "main")
    file.write_text(text.replace("omp_threads: 6", "omp_threads: 5"))
    git(tmp_path, "commit", "--quiet", "--all", "--message=later")
    git(tmp_path, "checkout", "--quiet", "branch")
    return tmp_path


def git(directory: Path, *arguments: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *author, *arguments], cwd=directory, check=True)


def comment(project: Path, base: str | None) -> str:
    engine = Engine(
        project / "log", plans.same(plans.claim()), plans.policy_summary(), plans.summary()
    )
    options = argparse.Namespace(
        stack="staging", rendered=True, refresh=False, base=base, prices=None, out=project / "out"
    )
    options.config_file = project / "Pulumi.staging.yaml"
    command.report(options, Stack("staging", project), engine, project)
    return (project / "out" / "comment.md").read_text()


def test_the_comment_begins_with_the_changed_settings(project: Path) -> None:
    text = comment(project, "main")
    change = "- `training.jobs.cifar.hyperparameters.learning_rate`: 0.002 → 0.001\n"
    assert f"### Changed settings\n\n{change}\n" in text
    assert text.index(change) < text.index("| created |")
    assert "omp_threads" not in text


def test_a_new_environment_has_no_changed_settings(project: Path) -> None:
    git(project, "checkout", "--quiet", "--orphan", "empty")
    git(project, "rm", "--quiet", "-r", "--cached", ".")
    git(project, "commit", "--quiet", "--allow-empty", "--message=empty")
    assert "Changed settings" not in comment(project, "empty")
    assert "not compared" not in comment(project, "empty")


def test_settings_are_not_compared_without_a_base(project: Path) -> None:
    assert "Changed settings" not in comment(project, None)


def test_an_unknown_base_is_reported_in_the_notes(project: Path) -> None:
    text = comment(project, "nowhere")
    assert "The settings are not compared" in text
    assert "nowhere" in text
