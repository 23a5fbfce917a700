"""Workflows for GitHub and GitLab: valid, pinned, and with minimum permissions."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from devcluster.paths import CHECKOUT
from devcluster.toolchain import pins
from gitops.__main__ import main
from gitops.changed import child_pipeline
from infra.settings.images import BuildSettings, identity
from tests.gitops.pipelines import (
    GITHUB,
    GITLAB,
    GITLAB_JOBS,
    SETUP,
    STACK,
    WORKFLOWS,
    gitlab,
    gitlab_jobs,
    jobs,
    steps,
)
from tests.platforms import unavailable

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


def test_update_has_the_same_timeout_on_both_hosts() -> None:
    minutes = jobs(STACK)["run"]["timeout-minutes"]
    assert minutes == "${{ inputs.task == 'update' && 120 || 30 }}"
    # The default of a project is one hour.
    assert gitlab_jobs()[".update"]["timeout"] == "120 minutes"


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


def test_merge_queues_start_the_required_checks() -> None:
    for name in ("preview", "ci"):
        # PyYAML reads the key `on` as true.
        assert (
            "merge_group"
            in yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())[True]
        )


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


def test_newer_commits_cancel_gitlab_previews_but_no_pending_update() -> None:
    """By default, GitLab cancels an entire outdated pipeline if none of its jobs has started."""
    # Both the pipeline and its child pipeline include the file.
    assert gitlab_jobs()["workflow"]["auto_cancel"] == {"on_new_commit": "interruptible"}
    canceled = {name for name, job in gitlab_jobs().items() if job.get("interruptible")}
    assert canceled == {".preview", ".outdated", ".rendered"}
    found = gitlab()
    rules = found["environments"]["rules"]
    canceled = {rule["variables"]["KIND"] for rule in rules if rule.get("interruptible")}
    assert canceled == {"preview", "rendered"}
    assert not any(found[name].get("interruptible") for name in ("environments", "pulumi"))


def test_updates_start_after_a_merge_or_by_hand() -> None:
    # PyYAML reads the key `on` as true.
    github = yaml.safe_load((GITHUB / "workflows" / "update.yml").read_text())[True]
    assert set(github) == {"push", "workflow_dispatch"}
    (condition,) = (
        rule["if"]
        for rule in gitlab()["environments"]["rules"]
        if rule["variables"]["KIND"] == "update"
    )
    sources = re.search(r"\$CI_PIPELINE_SOURCE =~ /(.*)/$", condition)
    assert sources is not None
    started = ("push", "web", "schedule", "merge_request_event", "parent_pipeline", "webide")
    assert [each for each in started if re.search(sources[1], each)] == ["push", "web"]


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
