"""Workflows for GitHub and GitLab: valid, pinned, and with minimum permissions."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from devcluster.toolchain import pins
from gitops.__main__ import main
from gitops.changed import child_pipeline
from infra.settings.images import BuildSettings, identity
from tests.tiers import unavailable

GITHUB = CHECKOUT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SETUP = GITHUB / "actions" / "setup" / "action.yml"
GITLAB = CHECKOUT / "gitops" / "gitlab" / "pulumi.gitlab-ci.yml"
GITLAB_JOBS = GITLAB.with_name("jobs.gitlab-ci.yml")
STACK = GITHUB / "workflows" / "stack.yml"
LOGIN = {"id-token": "write"}
WRITES: dict[str, dict[str, dict[str, str]]] = {
    "preview": {
        "live": {"pull-requests": "write", **LOGIN},
        "outdated": {"pull-requests": "write"},
    },
    "update": {"plan": LOGIN, "update": LOGIN},
    "drift": {"drift": {"issues": "write", **LOGIN}},
    "ci": {},
    "release": {"publish": {"contents": "write", "attestations": "write", **LOGIN}},
}


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]
    return found


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job.get("steps", [])
    return found


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-actions", [SETUP]),
        ("vendor.gitlab-ci", [GITLAB, GITLAB_JOBS]),
    ],
)
def test_workflows_match_their_schema(schema: str, files: list[Path]) -> None:
    validate(schema, files)


def validate(schema: str, files: list[Path]) -> None:
    transform = ["--data-transform", "gitlab-ci"] if "gitlab" in schema else []
    done = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema),
            *(*transform, *map(str, files)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_child_pipelines_match_the_schema_and_extend_existing_jobs(tmp_path: Path) -> None:
    files = []
    for kind in ("preview", "rendered", "update", "drift"):
        pipeline = child_pipeline(kind, ["staging", "prod"], ["dev"])
        files.append(tmp_path / f"{kind}.json")
        files[-1].write_text(json.dumps(pipeline))
        del pipeline["include"]
        assert {job["extends"] for job in pipeline.values()} <= set(gitlab_jobs()), kind
    validate("vendor.gitlab-ci", files)


def test_gitlab_files_do_not_list_environments() -> None:
    for file in (GITLAB, GITLAB_JOBS):
        assert not re.search(r"\b(staging|prod)\b", file.read_text())


def gitlab_jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(GITLAB_JOBS.read_text(), Loader=_GitlabLoader)  # noqa: S506
    return found


class _GitlabLoader(yaml.SafeLoader):
    """Loader that reads GitLab's `!reference` as the list of its keys."""


_GitlabLoader.add_constructor(
    "!reference",
    lambda loader, node: loader.construct_sequence(node),
)


def test_zizmor_finds_no_problems() -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    if not zizmor.exists():
        unavailable("zizmor is not installed: run `make check`")
    done = subprocess.run(
        [str(zizmor), "--offline", "--no-progress", str(GITHUB)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_expected_workflows_exist() -> None:
    assert {file.stem for file in WORKFLOWS} == {*WRITES, STACK.stem}


@pytest.mark.parametrize("file", [*WORKFLOWS, SETUP], ids=lambda file: file.name)
def test_every_action_is_pinned_by_digest_with_its_version_in_a_comment(file: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", file.read_text())
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_each_action_is_pinned_to_a_single_digest() -> None:
    text = "".join(file.read_text() for file in [*WORKFLOWS, SETUP])
    used = set(re.findall(r"uses: ([\w/-]+)@([0-9a-f]{40})", text))
    assert len({name for name, _ in used}) == len(used)


@pytest.mark.parametrize("name", WRITES)
def test_jobs_have_minimum_permissions(name: str) -> None:
    file = GITHUB / "workflows" / f"{name}.yml"
    assert yaml.safe_load(file.read_text())["permissions"] == {}
    for job_name, job in jobs(file).items():
        expected = {"contents": "read", **WRITES[name].get(job_name, {})}
        assert job["permissions"] == expected, job_name


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_scripts_contain_no_template_expressions(file: Path) -> None:
    assert "pull_request_target" not in file.read_text()
    for job in jobs(file).values():
        for step in steps(job):
            assert "${{" not in step.get("run", ""), step


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_checkouts_do_not_persist_credentials(file: Path) -> None:
    for job in jobs(file).values():
        for step in steps(job):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_uploads_include_all_files_and_replace_the_artifact_of_an_earlier_attempt() -> None:
    uploads = [
        step
        for file in WORKFLOWS
        for job in jobs(file).values()
        for step in steps(job)
        if step.get("uses", "").startswith("actions/upload-artifact@")
    ]
    assert len(uploads) == 4
    # Otherwise, the upload fails, because the artifact of the failed attempt exists.
    assert all(step["with"].get("overwrite") for step in uploads)
    # By default, the action leaves out hidden directories.
    assert all(
        step["with"].get("include-hidden-files")
        for step in uploads
        if step["with"]["path"].startswith(".")
    )


def test_caches_of_packages_and_plugins_are_keyed_by_the_requirements() -> None:
    used = yaml.safe_load(SETUP.read_text())["runs"]["steps"]
    (cache,) = (step["with"] for step in used if step.get("uses", "").startswith("actions/cache@"))
    assert cache["path"] == "~/.pulumi/plugins"
    assert "hashFiles('requirements.txt')" in cache["key"]
    common = gitlab_jobs()[".gitops"]
    assert common["cache"]["key"]["files"] == ["requirements.txt"]
    homes = [common["variables"][name] for name in ("PIP_CACHE_DIR", "PULUMI_HOME")]
    # Pulumi stores its login next to the plugins, so only the plugins are cached.
    suffixes = ("", "/plugins")
    paths = [f"{home}{suffix}" for home, suffix in zip(homes, suffixes, strict=True)]
    assert [f"$CI_PROJECT_DIR/{path}" for path in common["cache"]["paths"]] == paths


def test_forks_have_no_access_to_secrets_environments_or_clusters() -> None:
    preview = jobs(GITHUB / "workflows" / "preview.yml")
    rendered = yaml.safe_dump(preview["rendered"])
    assert "secrets." not in rendered
    assert "environment" not in preview["rendered"]
    assert "--rendered" in rendered
    assert "!= github.repository" in preview["rendered"]["if"]
    assert "== github.repository" in preview["live"]["if"]


def test_dependabot_is_treated_like_a_fork() -> None:
    preview = jobs(GITHUB / "workflows" / "preview.yml")
    author = "github.event.pull_request.user.login"
    assert f"{author} != 'dependabot[bot]'" in preview["live"]["if"]
    assert f"{author} == 'dependabot[bot]'" in preview["rendered"]["if"]


def test_updates_need_approval_and_do_not_run_concurrently() -> None:
    update = jobs(GITHUB / "workflows" / "update.yml")["update"]
    assert update["with"]["environment"] == "${{ matrix.stack }}"
    assert update["concurrency"]["cancel-in-progress"] is False
    assert "${{ matrix.stack }}" in update["concurrency"]["group"]


@pytest.mark.parametrize("name", ["drift", "release"])
def test_drift_and_release_workflows_do_not_run_concurrently(name: str) -> None:
    found = yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())["concurrency"]
    assert found["group"].startswith(name)
    assert found["cancel-in-progress"] is False


def test_update_is_bound_to_the_previously_saved_plan() -> None:
    planned = jobs(GITHUB / "workflows" / "update.yml")
    assert planned["update"]["needs"] == ["changed", "plan"]
    assert planned["plan"]["with"]["environment"] == "preview-${{ matrix.stack }}"
    found = {step.get("name"): step for step in steps(jobs(STACK)["run"])}
    assert "--save-plan .plan/plan.json" in found["Plan"]["run"]
    assert 'test "$status" = 0 || test "$status" = 2' in found["Plan"]["run"]
    assert "--plan .plan/plan.json" in found["Update"]["run"]
    assert "--policy-pack policies" in found["Update"]["run"]
    names = [
        step["with"]["name"]
        for step in steps(jobs(STACK)["run"])
        if "artifact@" in step.get("uses", "") and step["if"] != "inputs.task == 'preview'"
    ]
    assert names == ["plan-${{ inputs.stack }}"] * 2


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
    # The commit of an update on somebody's machine may be unknown, and a new stack has no update.
    for last in (first, second, "0" * 40, ""):
        done = bash(update(), tmp_path, LAST=last, **variables)
        assert (done.returncode, done.stdout) == (0, "updated\n"), done.stderr
    done = bash(update(), tmp_path, LAST=third, **variables)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"a later commit ({third}) was already applied" in done.stderr
    # A force push may remove the last commit, whose changes are then to be reverted.
    text = f"git update-ref refs/remotes/origin/main HEAD\n{update()}"
    assert bash(text, tmp_path, LAST=third, **variables).stdout == "updated\n"


@pytest.mark.parametrize("file", [STACK, GITLAB_JOBS], ids=lambda file: file.stem)
def test_files_of_an_earlier_step_do_not_change_the_identity_of_images(
    file: Path, tmp_path: Path
) -> None:
    """Otherwise, the update would build an image that the plan does not contain."""
    build = BuildSettings(dockerfile="Dockerfile", base_image="debian:13.1", sources=["."])
    (tmp_path / "Dockerfile").touch()
    before = identity(build, tmp_path)
    # An update reads the plan, and a drift check writes a report before its second preview.
    found = re.findall(r"--plan (\S+)/plan\.json|--refresh --out (\S+)", file.read_text())
    directories = ["".join(each) for each in found]
    assert len(directories) == 2
    for directory in directories:
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / "report.json").touch()
    assert identity(build, tmp_path) == before


def test_callers_use_every_task_of_the_reusable_workflow() -> None:
    callers = [
        job
        for file in WORKFLOWS
        for job in jobs(file).values()
        if job.get("uses") == "./.github/workflows/stack.yml"
    ]
    tasks = {job["with"]["task"] for job in callers}
    text = STACK.read_text()
    assert tasks == {"preview", "plan", "update", "drift"}
    assert set(re.findall(r"inputs.task == '(\w+)'", text)) == tasks
    for job in callers:
        assert job["permissions"]["id-token"] == "write"
    # Permissions declared there would apply to all of its tasks.
    assert "permissions:" not in text


def script(file: Path, job: str, name: str | None) -> str:
    found: str = next(
        step["run"] for step in steps(jobs(file)[job]) if step.get("name") == name and "run" in step
    )
    return found


def bash(text: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", text],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


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


def test_merge_queues_start_the_required_checks() -> None:
    for name in ("preview", "ci"):
        # PyYAML reads the key `on` as true.
        assert (
            "merge_group"
            in yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())[True]
        )


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
        found = yaml.load(GITLAB.read_text(), Loader=_GitlabLoader)  # noqa: S506
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
    found = yaml.load(GITLAB.read_text(), Loader=_GitlabLoader)  # noqa: S506
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
    found = yaml.load(GITLAB.read_text(), Loader=_GitlabLoader)  # noqa: S506
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


def test_only_actions_and_gh_run_with_the_permissions_to_release() -> None:
    release = jobs(GITHUB / "workflows" / "release.yml")
    assert release["publish"]["needs"] == "build"
    scripts = [step["run"] for step in steps(release["publish"]) if "run" in step]
    assert [text.split()[:3] for text in scripts] == [["gh", "release", "create"]]
    # The job has no checkout, from which gh would read the repository.
    assert release["publish"]["env"]["GH_REPO"] == "${{ github.repository }}"
    uploaded, downloaded = (
        step["with"]
        for job in ("build", "publish")
        for step in steps(release[job])
        if "artifact@" in step.get("uses", "")
    )
    assert uploaded["name"] == downloaded["name"]
    assert uploaded["path"].split() == ["dist", "notes.md"]


def test_release_without_a_changelog_section_fails(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('version = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n- later\n")
    text = script(GITHUB / "workflows" / "release.yml", "build", "Notes")
    done = bash(text, tmp_path, TAG="v1.2.0")
    assert done.returncode == 1
    assert "no section ## 1.2.0" in done.stderr


@pytest.mark.parametrize(
    ("registry", "command"),
    [
        ("1.dkr.ecr.eu-west-1.amazonaws.com", "docker login --username AWS"),
        ("europe-docker.pkg.dev", "gcloud auth configure-docker europe-docker.pkg.dev"),
        ("lab.azurecr.io", "az acr login --name lab"),
        ("registry.example.com", "docker login --username robot"),
    ],
)
def test_login_command_depends_on_the_registry(registry: str, command: str, tmp_path: Path) -> None:
    for name in ("aws", "az", "gcloud", "docker"):
        program = tmp_path / name
        # A program that exits without reading the password could terminate the writer with SIGPIPE.
        call = f"$DOCKER_CONFIG {name} $*"
        program.write_text(f'#!/bin/sh\ncat >/dev/null\necho "{call}" >> {tmp_path}/calls\n')
        program.chmod(0o755)
    variables = {"REGISTRY": registry, "REGISTRY_USER": "robot", "REGISTRY_PASSWORD": "s3cret"}
    # A runner deletes the content of its temporary directory after each job.
    temporary = {"RUNNER_TEMP": str(tmp_path / "temp"), "GITHUB_ENV": str(tmp_path / "env")}
    (tmp_path / "temp").mkdir()
    path = f"{tmp_path}:{os.environ['PATH']}"
    text = script(STACK, "run", "Registry")
    done = bash(text, tmp_path, PATH=path, **variables, **temporary)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text()
    assert f"{tmp_path}/temp/docker {command}" in calls
    assert "s3cret" not in calls
    assert (tmp_path / "env").read_text() == f"DOCKER_CONFIG={tmp_path}/temp/docker\n"


GITLAB_VARIABLES = {"CI_JOB_ID": "42"}


def gitlab_login(directory: Path, **variables: str) -> tuple[dict[str, str], str]:
    """Run the login script of GitLab's jobs; return its variables and the calls of cloud CLIs."""
    for name in ("aws", "az", "gcloud"):
        program = directory / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {directory}/calls\necho issued\n')
        program.chmod(0o755)
    (directory / "calls").touch()
    login = gitlab_jobs()[".login"]["before_script"][-1]
    given = {name: f"jwt-{name}" for name in gitlab_jobs()[".login"]["id_tokens"]} | variables
    given |= GITLAB_VARIABLES | {"TMPDIR": str(directory)}
    path = f"{directory}:{os.environ['PATH']}"
    done = bash(f"{login}\nenv -0 > {directory}/env", directory, PATH=path, **given)
    assert done.returncode == 0, done.stderr
    text = (directory / "env").read_text()
    found = dict(item.split("=", 1) for item in text.split("\0") if item)
    return found, (directory / "calls").read_text()


@pytest.mark.parametrize(
    ("variables", "file", "token"),
    [
        ({"AWS_ROLE_ARN": "arn:role"}, "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ID_TOKEN"),
        ({"AZURE_CLIENT_ID": "client"}, "AZURE_FEDERATED_TOKEN_FILE", "AZURE_ID_TOKEN"),
    ],
)
def test_gitlab_login_writes_the_token_for_each_cloud(
    variables: dict[str, str], file: str, token: str, tmp_path: Path
) -> None:
    found, _ = gitlab_login(tmp_path, **variables)
    written = Path(found[file])
    assert written.read_text() == f"jwt-{token}"
    assert written.parent.stat().st_mode & 0o077 == 0


def test_gitlab_writes_a_configuration_for_google_cloud(tmp_path: Path) -> None:
    provider = "projects/1/locations/global/workloadIdentityPools/ci/providers/gitlab"
    found, _ = gitlab_login(
        tmp_path,
        GOOGLE_WORKLOAD_IDENTITY_PROVIDER=provider,
        GOOGLE_SERVICE_ACCOUNT="ci@lab.iam.gserviceaccount.com",
    )
    written = json.loads(Path(found["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
    assert written["audience"] == f"//iam.googleapis.com/{provider}"
    assert "/ci@lab.iam.gserviceaccount.com:" in written["service_account_impersonation_url"]
    source = Path(written["credential_source"]["file"])
    assert source.read_text() == "jwt-GOOGLE_ID_TOKEN"


def test_gitlab_jobs_leave_no_credentials_on_the_machine(tmp_path: Path) -> None:
    before = {*tmp_path.iterdir()}
    found, _ = gitlab_login(
        tmp_path, AZURE_CLIENT_ID="client", REGISTRY="lab.azurecr.io", AZURE_TENANT_ID="tenant"
    )
    written = {Path(found[name]) for name in ("AZURE_FEDERATED_TOKEN_FILE", "DOCKER_CONFIG")}
    assert all(path.exists() for path in written)
    homes = {Path(found[name]).parent for name in ("AZURE_CONFIG_DIR", "CLOUDSDK_CONFIG")}
    assert {path.parent for path in written} == homes
    # GitLab runs `after_script` in a new shell, also after a failure.
    (clean,) = gitlab_jobs()[".login"]["after_script"]
    assert bash(clean, tmp_path, TMPDIR=str(tmp_path), **GITLAB_VARIABLES).returncode == 0
    left = {path.name for path in {*tmp_path.iterdir()} - before}
    assert left == {"aws", "az", "gcloud", "calls", "env"}


def test_gitlab_login_does_nothing_without_variables(tmp_path: Path) -> None:
    found, calls = gitlab_login(tmp_path)
    files = {"AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE"}
    assert not {*files, "GOOGLE_APPLICATION_CREDENTIALS"} & set(found)
    assert calls == ""
    # The runner may be logged in already.
    assert "DOCKER_CONFIG" not in found


@pytest.mark.parametrize(
    ("registry", "login", "call"),
    [
        ("1.dkr.ecr.eu-west-1.amazonaws.com", "AWS:issued", "aws ecr get-login-password"),
        ("europe-docker.pkg.dev", "oauth2accesstoken:issued", "gcloud auth print-access-token"),
        (
            "lab.azurecr.io",
            "00000000-0000-0000-0000-000000000000:issued",
            "az acr login --name lab",
        ),
        ("registry.gitlab.example", "job:token", ""),
        ("registry.example.com", "robot:s3cret", ""),
    ],
)
def test_gitlab_has_a_login_for_each_registry(
    registry: str, login: str, call: str, tmp_path: Path
) -> None:
    found, calls = gitlab_login(
        tmp_path,
        REGISTRY=registry,
        REGISTRY_USER="robot",
        REGISTRY_PASSWORD="s3cret",
        CI_REGISTRY="registry.gitlab.example",
        CI_REGISTRY_USER="job",
        CI_REGISTRY_PASSWORD="token",
    )
    assert (call in calls) if call else (calls == "")
    written = json.loads((Path(found["DOCKER_CONFIG"]) / "config.json").read_text())
    assert base64.b64decode(written["auths"][registry]["auth"]).decode() == login


def test_jobs_on_github_read_every_documented_variable_of_a_cloud() -> None:
    page = (CHECKOUT / "docs" / "pull-requests.md").read_text()
    rows = re.findall(r"^ *\| (?:AWS|Google Cloud|Azure) \|.*", page, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    # Unlike GitLab, GitHub does not pass variables to jobs as environment variables.
    assert documented == {
        name
        for name in re.findall(r"vars\.([A-Z_]+)", STACK.read_text())
        if name.startswith(("AWS", "GOOGLE", "AZURE"))
    }


def test_newer_commits_cancel_gitlab_previews_but_no_pending_update() -> None:
    """By default, GitLab cancels all jobs of a pipeline of which none has started."""
    # Both the pipeline and its child pipeline include the file.
    assert gitlab_jobs()["workflow"]["auto_cancel"] == {"on_new_commit": "interruptible"}
    canceled = {name for name, job in gitlab_jobs().items() if job.get("interruptible")}
    assert canceled == {".preview", ".outdated", ".rendered"}
    found = yaml.load(GITLAB.read_text(), Loader=_GitlabLoader)  # noqa: S506
    rules = found["environments"]["rules"]
    canceled = {rule["variables"]["KIND"] for rule in rules if rule.get("interruptible")}
    assert canceled == {"preview", "rendered"}
    assert not any(found[name].get("interruptible") for name in ("environments", "pulumi"))


def test_only_gitlab_jobs_that_reach_the_backend_log_in() -> None:
    tasks = {name for name, job in gitlab_jobs().items() if job.get("extends") == ".login"}
    assert tasks == {".preview", ".plan", ".update", ".drift"}


def test_both_hosts_run_the_same_commands() -> None:
    def commands(text: str) -> set[str]:
        found = re.findall(r"python -m gitops (?:preview|comment)[^|\n]*", text)
        return {" ".join(command.split()) for command in found}

    github = commands("".join(file.read_text() for file in WORKFLOWS))
    gitlab = commands(GITLAB_JOBS.read_text())
    assert github == gitlab


def test_workflow_commands_use_existing_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(file.read_text() for file in [*WORKFLOWS, GITLAB, GITLAB_JOBS])
    for command, line in re.findall(r"gitops (preview|comment|changed)([^|)\n]*)", text):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert set(re.findall(r"--[a-z-]+", line)) <= options


def test_all_pipelines_use_the_pinned_pulumi_version() -> None:
    (pulumi,) = (p for p in pins.load().module("tools").programs if p.name == "pulumi")
    version = (pulumi.answer or "").removeprefix("v")
    setup = SETUP.read_text()
    assert f"pulumi-version: {version}" in setup
    common = gitlab_jobs()[".gitops"]
    # Images of one language, such as pulumi-python-3.11, contain no kubectl and no cloud CLI.
    assert common["image"] == {"name": f"pulumi/pulumi:{version}", "entrypoint": [""]}
    python = re.search(r'python-version: "(.*)"', setup)
    assert python is not None
    assert common["variables"]["PYENV_VERSION"] == python[1]
    operator = (CHECKOUT / "gitops" / "operator" / "stacks.yaml").read_text()
    assert set(re.findall(r"image: pulumi/pulumi:(\S+)", operator)) == {f"{version}-nonroot"}
