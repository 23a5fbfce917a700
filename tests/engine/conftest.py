"""The real Pulumi CLI, language host and Kubernetes provider, without a cluster."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.environment import PASSPHRASE
from devcluster.paths import CHECKOUT, cache_root
from devcluster.toolchain import Toolchain, ensure, missing
from tests.inference.conftest import server, trained
from tests.infra.conftest import provision

__all__ = ["provision", "server", "trained"]

Manifest = dict[str, Any]
Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="session")
def tools() -> Toolchain:
    """The tools of the engine tier. If they are missing, tests are skipped, or fail in CI."""
    if absent := missing("engine", cache_root()):
        reason = f"not built yet: {', '.join(absent)} (`make up NODES=simulated` builds them)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return ensure("engine", cache_root(), print)


@dataclass(frozen=True)
class Outcome:
    """Result of a command of the CLI."""

    status: int
    text: str


class Stack:
    """A stack of the project with a separate configuration and backend."""

    def __init__(self, folder: Path, tools: Toolchain, stack: str, edit: Edit | None) -> None:
        self.rendered = folder / "rendered"
        self._folder = folder
        self._name = stack
        self._file = folder / f"Pulumi.{stack}.yaml"
        self._selected = False
        (folder / "backend").mkdir()
        shutil.copy(CHECKOUT / "Pulumi.yaml", folder)
        document = yaml.safe_load((CHECKOUT / f"Pulumi.{stack}.yaml").read_text())
        document["config"]["gpu-platform:cluster"] = {"render_to": str(self.rendered)}
        if edit is not None:
            edit(document["config"])
        self._file.write_text(yaml.safe_dump(document, sort_keys=False))
        self._environment = {
            "PATH": f"{tools.bin}:{os.environ['PATH']}",
            "HOME": os.environ["HOME"],
            "PULUMI_HOME": str(tools.pulumi_home),
            "PULUMI_BACKEND_URL": f"file://{folder / 'backend'}",
            "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
            "PULUMI_SKIP_UPDATE_CHECK": "1",
            # The tests must not find the cluster of the user who runs them.
            "KUBECONFIG": str(folder / "no-kubeconfig"),
        }

    def edit(self, change: Edit) -> None:
        """Change the configuration."""
        document = yaml.safe_load(self._file.read_text())
        change(document["config"])
        self._file.write_text(yaml.safe_dump(document, sort_keys=False))

    def read_configuration(self, text: str) -> Outcome:
        """Return the CLI's interpretation of a configuration file with this text, as JSON."""
        self._file.write_text(text)
        return self._pulumi("config", "--json")

    def set_secret(self, path: str, value: str) -> None:
        """Store a secret in the configuration, as a user does."""
        words = ("--secret", "--path", f"gpu-platform:{path}", value)
        outcome = self._pulumi("config set", *words)
        assert outcome.status == 0, outcome.text

    def contains(self, text: str) -> bool:
        """Return whether a text occurs in the state, its history, backups or rendered manifests."""
        folder = self._file.parent
        return any(text.encode() in f.read_bytes() for f in folder.rglob("*") if f.is_file())

    def preview(self, *arguments: str) -> Outcome:
        """Preview an update."""
        return self._pulumi("preview", "--diff", *arguments)

    def up(self, *arguments: str) -> Outcome:
        """Update, which writes the manifests."""
        return self._pulumi("up", "--yes", "--skip-preview", *arguments)

    def outputs(self) -> dict[str, Any]:
        """The outputs of the stack."""
        text = self._command("stack", "output", "--json", "--stack", self._name).text
        found: dict[str, Any] = json.loads(text)
        return found

    def resources(self) -> list[str]:
        """Types of the resources in the stack's state."""
        text = self._command("stack", "export", "--stack", self._name).text
        found = json.loads(text)["deployment"].get("resources", [])
        return [resource["type"] for resource in found]

    def manifests(self) -> list[Manifest]:
        """All rendered manifests."""
        files = sorted(self.rendered.rglob("*.yaml"))
        return [yaml.safe_load(file.read_text()) for file in files]

    def _pulumi(self, command: str, *arguments: str) -> Outcome:
        if not self._selected:
            # For a stack without a salt, the CLI writes a new one next to the project.
            self._command("stack", "select", "--create", self._name, cwd=self._folder)
            self._selected = True
        options = ("--stack", self._name, "--config-file", str(self._file))
        return self._command(*command.split(), *options, *arguments)

    def _command(self, *arguments: str, cwd: Path = CHECKOUT) -> Outcome:
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive"],
            cwd=cwd,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=800,
            check=False,
        )
        return Outcome(done.returncode, done.stdout)


MakeStack = Callable[..., Stack]


@pytest.fixture(scope="session")
def engine(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> MakeStack:
    """Function that creates stacks: `engine(name, edit)`; `edit` changes the configuration."""

    def make(stack: str, edit: Edit | None = None) -> Stack:
        return Stack(tmp_path_factory.mktemp(stack), tools, stack, edit)

    return make
