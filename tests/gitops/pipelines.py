"""Pipelines for GitHub and GitLab, and their scripts."""

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from devcluster.paths import CHECKOUT

GITHUB = CHECKOUT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SETUP = GITHUB / "actions" / "setup" / "action.yml"
GITLAB = CHECKOUT / "gitops" / "gitlab" / "pulumi.gitlab-ci.yml"
GITLAB_JOBS = GITLAB.with_name("jobs.gitlab-ci.yml")
STACK = GITHUB / "workflows" / "stack.yml"


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]
    return found


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job.get("steps", [])
    return found


def gitlab_jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(GITLAB_JOBS.read_text(), Loader=_GitlabLoader)  # noqa: S506
    return found


class _GitlabLoader(yaml.SafeLoader):
    """Loader that reads GitLab's `!reference` as the list of its keys."""


_GitlabLoader.add_constructor("!reference", lambda loader, node: loader.construct_sequence(node))


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


def gitlab() -> dict[str, Any]:
    """Return the pipeline that includes the job templates."""
    found: dict[str, Any] = yaml.load(GITLAB.read_text(), Loader=_GitlabLoader)  # noqa: S506
    return found
