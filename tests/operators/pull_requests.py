"""A team's repository, in which each change to the stack is a pull request.

The settings that a pull request writes are those of docs/data-to-production.md.
"""

import copy
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.platform import ROOT, UPDATE, Platform

PAGE = ROOT / "docs" / "data-to-production.md"
POLICIES = Path("policies/config/dev.json")
RUN = re.compile(r"\b([a-z]+)-[0-9a-f]{8}\b")
PACK = f"--policy-pack policies --policy-pack-config {POLICIES}"


@dataclass(frozen=True)
class Change:
    """The settings below a heading of the page, and the policy rules that change."""

    settings: dict[str, Any]
    rules: dict[str, Any]

    def apply(self, config: dict[str, Any]) -> None:
        """Replace each job, sweep, service and image that the page shows in the stack file."""
        for section, entries in self.settings.items():
            for name, value in entries.items():
                if isinstance(value, dict):
                    config[section].setdefault(name, {}).update(copy.deepcopy(value))
                else:
                    config[section][name] = value


def remove_jobs(config: dict[str, Any]) -> None:
    """Remove the jobs and services of the stack."""
    config["gpu-platform:training"] = {"jobs": {}}
    config["gpu-platform:inference"] = {"services": {}}


def changes(runs: Mapping[str, str] | None = None) -> dict[str, Change]:
    """Return the changes on the page by heading; `runs` maps keys of jobs to names of runs."""
    known = runs or {}
    _, *parts = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)
    found = {}
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        blocks = {
            language: RUN.sub(lambda name: known.get(name[1], name[0]), block)
            for language, block in re.findall(r"```(yaml|json)\n(.*?)```", text, re.DOTALL)
        }
        settings = yaml.safe_load(blocks.get("yaml", "{}"))
        if settings:
            found[heading] = Change(settings, json.loads(blocks.get("json", "{}")))
    return found


@dataclass
class Repository:
    """A checkout in Git. The comment of each pull request is kept in a directory."""

    platform: Platform
    kept: Path
    number: int = 0

    def create(self) -> None:
        """Commit the checkout as it is."""
        self.git("init --quiet --initial-branch main")
        self.git("config user.name team")
        self.git("config user.email team@example.com")
        self.git("add --all")
        self.git("commit --quiet --message 'Add the stack'")

    def git(self, command: str) -> str:
        return self.platform.run(f"git {command}")

    def merge(self, title: str, change: Change) -> str:
        """Write a change on a branch, preview and merge it; return the comment."""

        def write() -> None:
            self.platform.edit(change.apply)
            if change.rules:
                policies = self.platform.checkout / POLICIES
                rules = json.loads(policies.read_text())
                policies.write_text(json.dumps(rules | change.rules, indent=2))
            self.git(f"commit --quiet --all --message {shlex.quote(title)}")

        return self._merge(title, write)

    def revert(self) -> str:
        """Revert the last pull request by another one; return the comment."""
        title = "Revert " + self.git("log -1 --format=%s").strip()
        return self._merge(title, lambda: self.git("revert --no-edit --mainline 1 HEAD"))

    def _merge(self, title: str, write: Callable[[], object]) -> str:
        self.number += 1
        branch = f"change-{self.number}"
        self.git(f"switch --quiet --create {branch}")
        write()
        self.platform.shell(
            "python -m gitops preview --stack dev --base main --out preview || [ $? = 2 ]"
        )
        comment = (self.platform.checkout / "preview" / "comment.md").read_text()
        (self.kept / f"{self.number}-comment.md").write_text(comment)
        self.git("switch --quiet main")
        self.git(f"merge --quiet --no-ff --message {shlex.quote(title)} {branch}")
        return comment

    def update(self, status: int = 0) -> str:
        """Update the stack to the main branch under the policies; return the output."""
        up = f"{UPDATE} {PACK} 2>&1"
        output = self.platform.shell(up if status == 0 else f"! {up}")
        (self.kept / f"{self.number}-update.txt").write_text(output)
        return output
