"""Workflows for GitHub and GitLab: valid by their schemas, pinned, with minimum permissions."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from devcluster.toolchain import pins
from gitops.__main__ import main

GITHUB = CHECKOUT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SETUP = GITHUB / "actions" / "setup" / "action.yml"
GITLAB = CHECKOUT / "gitops" / "gitlab" / "pulumi.gitlab-ci.yml"
WRITES = {
    "preview": {"live": {"pull-requests": "write"}},
    "update": {},
    "drift": {"drift": {"issues": "write"}},
}


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]
    return found


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job["steps"]
    return found


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        *(("vendor.github-workflows", file) for file in WORKFLOWS),
        ("vendor.github-actions", SETUP),
        ("vendor.gitlab-ci", GITLAB),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_schema_accepts_it(schema: str, file: Path) -> None:
    transform = ["--data-transform", "gitlab-ci"] if "gitlab" in schema else []
    done = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema),
            *(*transform, str(file)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_three_workflows_exist() -> None:
    assert {file.stem for file in WORKFLOWS} >= set(WRITES)


@pytest.mark.parametrize("file", [*WORKFLOWS, SETUP], ids=lambda file: file.name)
def test_every_action_is_pinned_by_digest_with_its_version_beside_it(file: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", file.read_text())
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_one_action_has_one_digest() -> None:
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
def test_nothing_from_outside_becomes_part_of_a_script(file: Path) -> None:
    assert "pull_request_target" not in file.read_text()
    for job in jobs(file).values():
        for step in steps(job):
            assert "${{" not in step.get("run", ""), step


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_no_checkout_leaves_a_token_behind(file: Path) -> None:
    for job in jobs(file).values():
        for step in steps(job):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_forks_get_no_secret_no_environment_and_no_cluster() -> None:
    preview = jobs(GITHUB / "workflows" / "preview.yml")
    rendered = yaml.safe_dump(preview["rendered"])
    assert "secrets." not in rendered
    assert "environment" not in preview["rendered"]
    assert "--rendered" in rendered
    assert "!= github.repository" in preview["rendered"]["if"]
    assert "== github.repository" in preview["live"]["if"]


def test_an_update_needs_an_approval_and_is_alone() -> None:
    update = jobs(GITHUB / "workflows" / "update.yml")["update"]
    assert update["environment"] == "${{ matrix.stack }}"
    assert update["concurrency"]["cancel-in-progress"] is False
    assert "${{ matrix.stack }}" in update["concurrency"]["group"]
    preview, carried_out = steps(update)[-2:]
    assert 'test "$status" = 0 || test "$status" = 2' in preview["run"]
    assert "--policy-pack policies" in carried_out["run"]


def test_both_hosts_run_the_same_commands() -> None:
    def commands(text: str) -> set[str]:
        found = re.findall(r"python -m gitops (?:preview|comment)[^|\n]*", text)
        return {" ".join(command.split()) for command in found}

    github = commands("".join(file.read_text() for file in WORKFLOWS))
    gitlab = commands(GITLAB.read_text())
    assert github == gitlab


def test_the_commands_are_ones_that_the_program_has(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(file.read_text() for file in [*WORKFLOWS, GITLAB])
    for command, line in re.findall(r"gitops (preview|comment|changed)([^|)\n]*)", text):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert set(re.findall(r"--[a-z-]+", line)) <= options


def test_the_pulumi_of_every_pipeline_is_the_pinned_one() -> None:
    (pulumi,) = (p for p in pins.load().module("tools").programs if p.name == "pulumi")
    version = (pulumi.answer or "").removeprefix("v")
    setup = SETUP.read_text()
    assert f"pulumi-version: {version}" in setup
    assert f":{version}\n" in GITLAB.read_text()
    operator = (CHECKOUT / "gitops" / "operator" / "stacks.yaml").read_text()
    assert set(re.findall(r"image: pulumi/pulumi:(\S+)", operator)) == {version}
