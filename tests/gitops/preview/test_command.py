import argparse
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from gitops import prices
from gitops.__main__ import main
from gitops.engine import Pack, Result, Stack
from gitops.preview import command
from tests.gitops import plans


class Engine:
    """A fake preview that has already ended."""

    def __init__(self, log: Path, *events: dict[str, Any]) -> None:
        self.log = log
        log.write_text("".join(json.dumps(event) + "\n" for event in events))

    def wait(self, progress: Callable[[int], None]) -> Result:
        progress(1)
        return Result(255, "output")


def failed(tmp_path: Path, *arguments: str) -> str:
    """Run a preview that cannot start, and return its comment."""
    assert main(["preview", "--stack", "prod", "--out", str(tmp_path / "out"), *arguments]) == 1
    assert json.loads((tmp_path / "out" / "report.json").read_text())["status"] == "failed"
    return (tmp_path / "out" / "comment.md").read_text()


def test_a_preview_that_cannot_start_is_reported(tmp_path: Path) -> None:
    for arguments, reason in (
        (["--config-file", str(tmp_path / "none.yaml")], "does not exist"),
        (["--policy-pack-config", str(tmp_path / "none.json")], "none.json does not exist"),
    ):
        comment = failed(tmp_path, *arguments)
        assert comment.startswith("<!-- gpu-platform preview prod -->")
        assert "the preview failed" in comment
        assert reason in comment


def test_an_unexpected_exception_is_reported_without_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "prices.yaml"
    broken.write_text("[")
    monkeypatch.setattr(prices, "DEFAULT", broken)

    def fail(_: object) -> int:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(command, "_run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["preview", "--stack", "prod", "--out", str(tmp_path)])
    comment = (tmp_path / "comment.md").read_text()
    assert "failed with ZeroDivisionError: see the log of this command" in comment
    assert "a secret" not in comment


def test_notices_are_at_the_top_of_the_comment(tmp_path: Path) -> None:
    engine = Engine(
        tmp_path / "events", plans.same(plans.claim()), plans.policy_summary(), plans.summary()
    )
    options = argparse.Namespace(
        stack="prod", rendered=True, refresh=False, base=None, prices=None, out=tmp_path
    )
    stack = Stack("prod", tmp_path, notices=("Not validated by the API server.",))
    assert command.report(options, stack, engine, Pack(tmp_path)) == "unchanged"
    comment = (tmp_path / "comment.md").read_text()
    assert comment.index("**Not validated by the API server.**") < comment.index("| created |")


def test_missing_configuration_of_the_policies_is_noted(tmp_path: Path) -> None:
    """For example, `pulumi stack rename` does not rename this file."""
    options = argparse.Namespace(
        stack="prod", rendered=True, refresh=False, base=None, prices=None, out=tmp_path
    )
    notes = []
    for configuration in (None, tmp_path / "prod.json"):
        engine = Engine(tmp_path / "events", plans.policy_summary(), plans.summary())
        command.report(options, Stack("prod", tmp_path), engine, Pack(tmp_path, configuration))
        comment = (tmp_path / "comment.md").read_text()
        notes.append("policies/config/prod.json does not exist" in comment)
    assert notes == [True, False]


def test_a_policy_pack_that_fails_to_start_is_reported_consistently(tmp_path: Path) -> None:
    comments = []
    for name in ("gpu-platform-pack-one", "gpu-platform-pack-other"):
        pack = tmp_path / name
        problem = plans.diagnostic("error", f'policy pack "{pack}" failed to start')
        engine = Engine(tmp_path / "events", problem, plans.summary("failed"))
        options = argparse.Namespace(
            stack="prod", rendered=True, refresh=False, base=None, prices=None, out=tmp_path
        )
        assert command.report(options, Stack("prod", tmp_path), engine, Pack(pack)) == "failed"
        comments.append((tmp_path / "comment.md").read_text())
    assert comments[0] == comments[1]
    assert "policies" in comments[0]
    assert "gpu-platform-pack" not in comments[0]


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
    pack = Pack(project, project / "staging.json")
    command.report(options, Stack("staging", project), engine, pack)
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
