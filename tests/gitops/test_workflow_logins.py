"""Logins of the workflows to clouds and registries, with stand-ins for their CLIs."""

import base64
import json
import os
import re
from pathlib import Path

import pytest

from devcluster.paths import CHECKOUT
from tests.gitops.pipelines import STACK, bash, gitlab_jobs, script


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
    # GitLab runs `after_script` in a new shell, even after a failure.
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


def test_only_gitlab_jobs_that_reach_the_backend_log_in() -> None:
    tasks = {name for name, job in gitlab_jobs().items() if job.get("extends") == ".login"}
    assert tasks == {".preview", ".plan", ".update", ".drift"}
