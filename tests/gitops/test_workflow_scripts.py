"""Scripts of the workflows, run with stand-ins for the programs that they call."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gitops.pipelines import GITHUB, STACK, bash, gitlab, gitlab_jobs, jobs, script


def script_of_github_update() -> str:
    return script(STACK, "run", "Update")


def script_of_gitlab_update() -> str:
    return "\n".join(gitlab_jobs()[".update"]["script"])


def test_a_canceled_update_interrupts_pulumi(tmp_path: Path) -> None:
    (tmp_path / "step.sh").write_text(script(STACK, "run", "Update"))
    pulumi = tmp_path / "pulumi"
    pulumi.write_text("#!/bin/sh\necho $$\n")
    pulumi.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STACK": "prod"}
    with subprocess.Popen(
        ["bash", "-e", "step.sh"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as step:
        output, _ = step.communicate()
    # The runner sends its signals to the process that it started, and kills the others.
    assert output == f"{step.pid}\n"


@pytest.mark.parametrize("update", [script_of_github_update, script_of_gitlab_update])
@pytest.mark.parametrize("configured", [True, False])
def test_update_uses_the_configuration_of_the_policies_if_it_exists(
    update: Callable[[], str], configured: bool, tmp_path: Path
) -> None:
    """Previews use the defaults of the rules if an environment has no such file."""
    file = tmp_path / "policies/config/prod.json"
    file.parent.mkdir(parents=True)
    if configured:
        file.write_text("{}")
    pulumi = tmp_path / "pulumi"
    pulumi.write_text('#!/bin/sh\necho "$@"\n')
    pulumi.chmod(0o755)
    done = bash(update(), tmp_path, STACK="prod", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "--policy-pack policies" in done.stdout
    assert ("--policy-pack-config policies/config/prod.json" in done.stdout) == configured


@pytest.mark.parametrize("update", [script_of_github_update, script_of_gitlab_update])
def test_update_does_not_revert_the_changes_of_a_later_update(
    update: Callable[[], str], tmp_path: Path
) -> None:
    """A plan does not prevent this: it allows the update of an object that both commits change."""
    pulumi = tmp_path / "pulumi"
    pulumi.write_text(
        '#!/bin/sh\ntest "$1" = up && echo updated || echo \'[{"environment": {\n'
        '"git.dirty": "false",\n"git.head": "\'$LAST\'",\n"git.headName": "HEAD"}}]\'\n'
    )
    pulumi.chmod(0o755)
    commits = """
        git init --quiet
        for name in one two three
        do git -c user.name=t -c user.email=t@example.com commit --quiet --allow-empty -m $name
        done
        git rev-parse HEAD~2 HEAD~ HEAD
        git update-ref refs/remotes/origin/main HEAD
        git checkout --quiet HEAD~
    """
    first, second, third = bash(commits, tmp_path).stdout.split()
    branch = {"GITHUB_REF_NAME": "main", "CI_COMMIT_REF_NAME": "main"}
    variables = {"STACK": "prod", "PATH": f"{tmp_path}:{os.environ['PATH']}", **branch}
    # The commit of an update from a local machine may be unknown, and a new stack has no update.
    for last in (first, second, "0" * 40, ""):
        done = bash(update(), tmp_path, LAST=last, **variables)
        assert (done.returncode, done.stdout) == (0, "updated\n"), done.stderr
    done = bash(update(), tmp_path, LAST=third, **variables)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"a later commit ({third}) was already applied" in done.stderr
    # A force push may remove the last commit, whose changes are then to be reverted.
    text = f"git update-ref refs/remotes/origin/main HEAD\n{update()}"
    assert bash(text, tmp_path, LAST=third, **variables).stdout == "updated\n"


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ("success success skipped", 0),
        ("success skipped skipped", 0),
        ("success failure skipped", 1),
        ("failure skipped skipped", 1),
        ("success cancelled skipped", 1),
    ],
)
def test_result_job_combines_the_results_of_all_jobs(
    results: str, status: int, tmp_path: Path
) -> None:
    preview = jobs(GITHUB / "workflows" / "preview.yml")
    result = preview["result"]
    assert result["name"] == "previewed"
    assert result["if"] == "always()"
    assert set(result["needs"]) == set(preview) - {"result"}
    text = script(GITHUB / "workflows" / "preview.yml", "result", None)
    assert bash(text, tmp_path, RESULTS=results).returncode == status


def test_removed_environments_are_in_the_summary(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text("#!/bin/sh\necho 'lab was removed' >&2; echo '[]'\n")
    python.chmod(0o755)
    text = script(GITHUB / "workflows" / "preview.yml", "changed", None)
    done = bash(
        f"{text}\nsleep 0.2",
        tmp_path,
        PATH=f"{python.parent}:{os.environ['PATH']}",
        BASE="",
        GITHUB_OUTPUT="output",
        GITHUB_STEP_SUMMARY="summary",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output").read_text() == "stacks=[]\n"
    assert "lab was removed" in (tmp_path / "summary").read_text()


@pytest.mark.parametrize("host", ["github", "gitlab"])
def test_an_update_after_a_force_push_affects_all_environments(host: str, tmp_path: Path) -> None:
    if host == "github":
        text = script(GITHUB / "workflows" / "update.yml", "changed", None)
    else:
        found = gitlab()
        text = "\n".join(found["environments"]["script"])
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls; echo "[]"\n')
    python.chmod(0o755)
    commits = """
        git init --quiet
        for name in one two
        do git -c user.name=t -c user.email=t@example.com commit --quiet --allow-empty -m $name
        done
        git rev-parse HEAD~ HEAD
    """
    first, second = bash(commits, tmp_path).stdout.split()
    path = f"{python.parent}:{os.environ['PATH']}"
    files = {"GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary", "KIND": "update"}
    for head, base in ((second, first), (first, second)):
        done = bash(f"git reset --hard {head}\n{text}", tmp_path, PATH=path, BASE=base, **files)
        assert done.returncode == 0, done.stderr
    merged, rewritten = (tmp_path / "calls").read_text().splitlines()
    assert f"--base {first} --skip" in merged
    # Without a revision, all environments are listed.
    assert "--base  --skip" in rewritten


def github_base() -> str:
    """Return the base that GitHub's previews use, for a pull request to `main`."""
    preview = jobs(GITHUB / "workflows" / "preview.yml")
    bases = {
        preview["changed"]["steps"][-1]["env"]["BASE"],
        preview["live"]["with"]["base"],
        preview["rendered"]["env"]["BASE"],
    }
    # The event of the merge queue has a base; the others have a branch.
    parts = {part for base in bases for part in base.strip("${} ").split(" || ")}
    parts.remove("github.event.merge_group.base_sha")
    assert parts == {"format('origin/{0}', github.base_ref)"}
    return "origin/main"


def gitlab_base() -> str:
    """Return the base that GitLab's previews use, for a merge request to `main`."""
    found = gitlab()
    bases = {
        gitlab_jobs()[".preview"]["variables"]["BASE"],
        found["environments"]["rules"][0]["variables"]["BASE"],
    }
    (base,) = bases
    return str(base).replace("$CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main")


@pytest.mark.parametrize("base", [github_base, gitlab_base])
def test_previews_do_not_include_changes_that_others_have_merged(
    base: Callable[[], str], tmp_path: Path
) -> None:
    """Both hosts preview a merge with the target branch, which is newer than the event."""
    commits = """
        git() { command git -c user.name=t -c user.email=t@example.com "$@"; }
        git init --quiet --initial-branch=main origin
        cd origin
        for name in old theirs newest
        do touch $name && git add . && git commit --quiet -m $name
        done
        git checkout --quiet -b branch main~2
        touch ours && git add . && git commit --quiet -m ours
        git checkout --quiet --detach main~
        git merge --quiet --no-edit branch
        git clone --quiet . ../clone && cd ../clone
    """
    diff = f"git diff --name-only {base()}...HEAD"
    done = bash(f"{commits}\n{diff}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ours"]


def test_a_merge_request_behind_its_target_branch_does_not_affect_all_environments(
    tmp_path: Path,
) -> None:
    found = gitlab()
    text = "\n".join(found["environments"]["script"])
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$*" >&2\n')
    (tmp_path / "python3").chmod(0o755)
    commits = """
        git init --quiet --initial-branch=main
        for name in one two
        do git -c user.name=t -c user.email=t@example.com commit --quiet --allow-empty -m $name
        done
        git checkout --quiet -b behind main~
    """
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = bash(f"{commits}\n{text}", tmp_path, PATH=path, BASE="main", KIND="preview")
    assert done.returncode == 0, done.stderr
    assert "--base main --skip" in done.stderr


@pytest.mark.parametrize(
    ("tag", "problem"),
    [("v1.2.0", ""), ("v1.3.0", "a different version"), ("v1.2", "a different version")],
)
def test_release_requires_a_matching_version_and_changelog_section(
    tag: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    sections = (
        "# Changelog",
        "## Unreleased",
        "- later",
        "## 1.2.0 (today)",
        "- now",
        "## 1.2.0.1",
    )
    log = "\n\n".join([*sections, "- old\n"])
    (tmp_path / "CHANGELOG.md").write_text(log)
    text = script(GITHUB / "workflows" / "release.yml", "build", "Notes")
    done = bash(text, tmp_path, TAG=tag)
    assert (done.returncode == 0) is (problem == "")
    assert problem in done.stderr
    if not problem:
        assert (tmp_path / "notes.md").read_text().split() == ["-", "now"]


def test_release_without_a_changelog_section_fails(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('version = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n- later\n")
    text = script(GITHUB / "workflows" / "release.yml", "build", "Notes")
    done = bash(text, tmp_path, TAG="v1.2.0")
    assert done.returncode == 1
    assert "no section ## 1.2.0" in done.stderr
