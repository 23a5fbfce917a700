import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.paths import CHECKOUT
from gitops import changed
from gitops.__main__ import main
from gitops.environments.difference import settings_of


@pytest.mark.parametrize(
    ("file", "stacks"),
    [
        ("Pulumi.prod.yaml", {"prod"}),
        ("policies/config/staging.json", {"staging"}),
        ("infra/pods.py", {"prod", "staging"}),
        ("policies/rules/gpu.py", {"prod", "staging"}),
        ("training/train.py", {"prod", "staging"}),
        ("kube/names.py", {"prod", "staging"}),
        ("requirements.txt", {"prod", "staging"}),
        ("recorder/archive.py", {"staging"}),
        ("requirements/recorder.txt", {"staging"}),
        (".dockerignore", {"staging"}),
        ("README.md", set()),
        ("tests/infra/test_pods.py", set()),
        ("gitops/config/prices.yaml", set()),
    ],
)
def test_changed_file_affects_the_expected_environments(file: str, stacks: set[str]) -> None:
    assert {s for s in ("prod", "staging") if changed.affects(["LICENSE", file], s)} == stacks


@pytest.mark.parametrize("stack", changed.known_stacks(CHECKOUT))
def test_every_source_of_an_image_affects_its_stack(stack: str) -> None:
    for image in settings_of(CHECKOUT / f"Pulumi.{stack}.yaml").images.workloads.values():
        for source in image.build.sources if image.build else ():
            file = f"{source}/file.py" if (CHECKOUT / source).is_dir() else source
            assert changed.affects([file], stack), source


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with three environments and a branch that changes one of them."""
    monkeypatch.setattr(changed, "PROJECT", tmp_path)
    for name in ("prod", "dev", "staging"):
        (tmp_path / f"Pulumi.{name}.yaml").write_text("config: {}\n")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    commit(tmp_path)
    git(tmp_path, "checkout", "--quiet", "-b", "branch")
    (tmp_path / "Pulumi.prod.yaml").write_text("config: {a: b}\n")
    commit(tmp_path)
    return tmp_path


def git(project: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=project, check=True)


def commit(project: Path) -> None:
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "x")


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["changed", *arguments]) == 0
    found: list[str] = json.loads(capsys.readouterr().out)
    return found


def test_environments_changed_on_a_branch_are_listed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(capsys, "--base", "main") == ["prod"]
    assert listed(capsys, "--base", "main", "--skip", "prod") == []


def test_project_may_be_a_subdirectory_of_the_repository(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = project / "platform"
    git(project, "checkout", "--quiet", "main")
    directory.mkdir()
    for file in project.glob("Pulumi.*.yaml"):
        git(project, "mv", file.name, directory.name)
    commit(project)
    git(project, "checkout", "--quiet", "-b", "next")
    (directory / "Pulumi.prod.yaml").write_text("config: {a: b}\n")
    (project / "Pulumi.dev.yaml").write_text("of another project")
    commit(project)
    monkeypatch.setattr(changed, "PROJECT", directory)
    assert listed(capsys, "--base", "main") == ["prod"]


def test_custom_image_sources_in_the_configuration_are_found(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = '{dockerfile: "./images/Dockerfile", sources: [our-code/]}'
    (project / "Pulumi.dev.yaml").write_text(f"config: {{a: {build}}} # our-docs\n")
    commit(project)
    for file, stacks in (
        ("our-code/deep/train.py", ["dev"]),
        ("images/Dockerfile", ["dev"]),
        (".dockerignore", ["dev"]),
        ("our-docs/page.md", []),
        ("our-code-2/train.py", []),
    ):
        git(project, "checkout", "--quiet", "-B", "next", "branch")
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text("x")
        commit(project)
        assert listed(capsys, "--base", "branch") == stacks, file


@pytest.mark.parametrize(
    "file",
    [
        "gitops/config/prices.yaml",
        "gitops/sweep_prices.py",
        "gitops/prices.py",
        "gitops/preview/capacity.py",
    ],
)
@pytest.mark.parametrize(
    ("budget", "affected"),
    [("{money: 100}", True), ('{"money": 100}', True), ("{gpu_hours: 100}", False)],
)
def test_price_changes_affect_only_stacks_with_a_money_budget(
    file: str, budget: str, affected: bool, tmp_path: Path
) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(f"config: {{budget: {budget}}}\n")
    assert changed.affects([file], "dev", tmp_path) == affected


@pytest.mark.parametrize(
    ("sources", "file"),
    [
        ("[.]", "any/file.py"),
        ("[./]", "any/file.py"),
        ('["a b"]', "a b/file.py"),
        ("['a b', c]", "a b/file.py"),
        ("[a b, c]", "a b/file.py"),
        ("\n  - a b\n  - c\n", "a b/file.py"),
        ('["it\'s, a #b/"]', "it's, a #b/file.py"),
        ("[src/../lib]", "lib/file.py"),
        ("[./a//b/./c/]", "a/b/c/file.py"),
    ],
)
def test_image_sources_are_found_in_every_yaml_notation(
    sources: str, file: str, tmp_path: Path
) -> None:
    text = f'# This isn\'t a "source".\nimage:\n  dockerfile: Dockerfile\n  sources: {sources}\n'
    (tmp_path / "Pulumi.dev.yaml").write_text(text)
    assert changed.affects([file], "dev", tmp_path)
    everything = sources in ("[.]", "[./]")
    assert changed.affects(["other/file.py", "src/file.py"], "dev", tmp_path) == everything


def test_old_paths_of_renamed_files_count_as_changed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "Pulumi.dev.yaml").write_text("config: {sources: [our-code]}\n")
    (project / "our-code").mkdir()
    (project / "our-code" / "train.py").write_text("one\ntwo\nthree\n")
    (project / "Pulumi.staging.yaml").write_text("config: {some: [unique, text]}\n")
    commit(project)
    git(project, "checkout", "--quiet", "-b", "next")
    git(project, "mv", "our-code/train.py", "train.py")
    git(project, "mv", "Pulumi.staging.yaml", "staging.yaml")
    commit(project)
    assert main(["changed", "--base", "branch"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == ["dev"]
    assert "the staging environment was removed" in shown.err


def test_names_of_files_may_contain_any_byte(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "training").mkdir(exist_ok=True)
    Path(os.fsdecode(os.fsencode(project / "training") + b"/\xff.py")).touch()
    commit(project)
    assert main(["changed", "--base", "main"]) == 0
    assert "prod" in json.loads(capsys.readouterr().out)


def test_a_removed_environment_is_reported(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "Pulumi.staging.yaml").unlink()
    commit(project)
    assert main(["changed", "--base", "main"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == ["prod"]
    assert "the staging environment was removed" in shown.err
    assert "pulumi destroy --stack staging" in shown.err


def test_a_removed_environment_that_is_skipped_is_not_reported(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "Pulumi.dev.yaml").unlink()
    commit(project)
    assert main(["changed", "--base", "main", "--skip", "dev", "--gitlab", "preview"]) == 0
    shown = capsys.readouterr()
    assert "removed-dev" not in json.loads(shown.out)
    assert shown.err == ""


def test_a_child_pipeline_has_a_job_for_each_environment(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "Pulumi.staging.yaml").unlink()
    commit(project)
    assert main(["changed", "--base", "main", "--gitlab", "preview"]) == 0
    pipeline = json.loads(capsys.readouterr().out)
    assert pipeline == {
        "include": [{"local": "gitops/gitlab/jobs.gitlab-ci.yml"}],
        "outdated": {"extends": ".outdated", "variables": {"STACKS": '["prod"]'}},
        "removed-staging": {"extends": ".removed", "variables": {"STACK": "staging"}},
        "preview-prod": {
            "extends": ".preview",
            "variables": {"STACK": "prod"},
            "environment": {"name": "preview-prod", "action": "prepare"},
        },
    }


def test_updates_of_a_child_pipeline_run_one_after_the_other() -> None:
    pipeline = changed.child_pipeline("update", ["dev", "staging", "prod"], [])
    needs = {name: job["needs"] for name, job in pipeline.items() if name.startswith("update-")}
    assert needs == {
        "update-dev": ["plan-dev"],
        "update-staging": ["plan-staging", "update-dev"],
        "update-prod": ["plan-prod", "update-staging"],
    }
    assert pipeline["plan-prod"]["environment"]["name"] == "preview-prod"
    assert pipeline["update-prod"]["environment"] == {"name": "prod"}


def test_child_pipeline_for_forks_has_no_environment() -> None:
    assert "environment" not in changed.child_pipeline("rendered", ["prod"], [])["rendered-prod"]


def test_a_child_pipeline_is_never_empty() -> None:
    assert set(changed.child_pipeline("update", [], [])) == {"include", "no-environment"}


def test_later_commits_on_the_base_are_ignored(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(project, "checkout", "--quiet", "main")
    (project / "Pulumi.staging.yaml").write_text("config: {c: d}\n")
    commit(project)
    git(project, "checkout", "--quiet", "branch")
    assert listed(capsys, "--base", "main") == ["prod"]


@pytest.mark.parametrize("base", ["", "0" * 40, "nowhere"])
def test_unknown_base_lists_all_environments_with_prod_last(
    base: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(capsys, "--base", base) == ["dev", "staging", "prod"]


def test_an_option_is_not_accepted_as_a_revision(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["changed", "--base=--output=x"]) == 1
    assert "not a Git revision" in capsys.readouterr().err


def test_changed_command_needs_only_python_and_git() -> None:
    command = [sys.executable, "-S", "-m", "gitops", "changed"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "prod" in json.loads(done.stdout)
