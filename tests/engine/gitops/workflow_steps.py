"""Execution of the workflows' `run:` steps in order, as a runner does, with an empty home."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devcluster.environment import PASSPHRASE
from devcluster.toolchain import Toolchain
from tests.engine.conftest import Outcome

STEP_FILES = ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")


@dataclass(frozen=True)
class Runner:
    """A fresh machine: an empty home, a checkout from a Git server, and the pinned tools."""

    folder: Path
    tools: Toolchain
    backend: str
    variables: dict[str, str]
    """Environment variables such as the credentials that an OIDC step provides."""

    def __post_init__(self) -> None:
        for name in ("home", "temp"):
            (self.folder / name).mkdir(parents=True)
        for name in STEP_FILES:
            (self.folder / name).touch()

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    @property
    def environment(self) -> dict[str, str]:
        bins = (Path(sys.executable).parent, self.tools.bin)
        written = (self.folder / "GITHUB_ENV").read_text().splitlines()
        return {
            "PATH": ":".join([*map(str, bins), os.environ["PATH"]]),
            "HOME": str(self.folder / "home"),
            "RUNNER_TEMP": str(self.folder / "temp"),
            "GITHUB_REF_NAME": "main",
            **{name: str(self.folder / name) for name in STEP_FILES},
            "PULUMI_HOME": str(self.tools.pulumi_home),
            "PULUMI_SKIP_UPDATE_CHECK": "1",
            "PULUMI_BACKEND_URL": self.backend,
            "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
            **self.variables,
            **dict(line.split("=", 1) for line in written),
        }

    def clone(self, url: str) -> None:
        """Check out the repository and link its requirements instead of installing them."""
        done = self.bash(f"git clone --quiet {url} checkout", self.folder)
        assert done.status == 0, done.text
        (self.checkout / ".venv").symlink_to(Path(sys.executable).parent.parent)

    def bash(self, script: str, folder: Path | None = None, **variables: str) -> Outcome:
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=folder or self.checkout,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=800,
            check=False,
        )
        return Outcome(done.returncode, done.stdout)

    def job(self, workflow: str, job: str, expressions: dict[str, str]) -> dict[str, str]:
        """Run the steps of a job whose conditions hold, and return the outputs of the steps.

        `expressions` has the values of the workflow's expressions. All others are empty.
        """
        file = self.checkout / ".github" / "workflows" / workflow
        found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"][job]
        shared = {
            name: self.evaluate(text, expressions) for name, text in found.get("env", {}).items()
        }
        for step in found["steps"]:
            if "run" in step and self.is_true(step.get("if"), expressions):
                own = {
                    n: self.evaluate(text, expressions) for n, text in step.get("env", {}).items()
                }
                # The workflow's expressions do not contain the backend of the tests.
                given = {k: v for k, v in {**shared, **own}.items() if v}
                done = self.bash(step["run"], **given)
                assert done.status == 0, f"{step.get('name')}: {done.text}"
                lines = (self.folder / "GITHUB_OUTPUT").read_text().splitlines()
                for name, _, value in (line.partition("=") for line in lines):
                    expressions[f"steps.{step.get('id')}.outputs.{name}"] = value
        return dict(line.split("=", 1) for line in lines)

    @staticmethod
    def evaluate(text: str, expressions: dict[str, str]) -> str:
        if not text.startswith("${{"):
            return text
        return expressions.get(text.removeprefix("${{").removesuffix("}}").strip(), "")

    @staticmethod
    def is_true(condition: str | None, expressions: dict[str, str]) -> bool:
        """Evaluate a condition made of comparisons with `==`, `!=` and `&&`."""
        for part in (condition or "").split(" && ") if condition else ():
            left, operator, right = part.split(" ", 2)
            equal = expressions.get(left, "") == right.strip("'")
            if equal is not (operator == "=="):
                return False
        return True
