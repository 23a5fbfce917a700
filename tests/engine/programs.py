"""Pulumi programs other than the stack's program, run by the real engine."""

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from devcluster.environment import PASSPHRASE
from devcluster.paths import cache_root
from devcluster.toolchain import Toolchain, ensure
from tests.engine.conftest import Outcome
from tests.platforms import unavailable
from tests.processes import kill_session

HERE = Path(__file__).parent
TYPESCRIPT = HERE / "data" / "typescript"


@dataclass(frozen=True)
class Program:
    """A project in a directory, with one stack in a separate backend."""

    folder: Path
    tools: Toolchain
    backend: Path
    path_directories: tuple[Path, ...] = ()
    """Additional directories for PATH."""
    stack: str = "test"
    variables: dict[str, str] = field(default_factory=dict)

    def create(self) -> None:
        self.backend.mkdir(exist_ok=True)
        made = self.run("stack", "init", self.stack)
        assert made.status == 0, made.text

    def up(self, *arguments: str) -> Outcome:
        return self.run("up", "--yes", "--skip-preview", "--stack", self.stack, *arguments)

    def preview(self, *arguments: str) -> Outcome:
        return self.run("preview", "--stack", self.stack, *arguments)

    def outputs(self) -> dict[str, Any]:
        text = self.run("stack", "output", "--json", "--stack", self.stack).text
        return dict(json.loads(text))

    def dependencies(self, kind: str) -> set[str]:
        """Return the names of the resources on which the only resource of a type depends."""
        exported = json.loads(self.run("stack", "export", "--stack", self.stack).text)
        (found,) = (r for r in exported["deployment"]["resources"] if r["type"] == kind)
        return {urn.rpartition("::")[2] for urn in found["dependencies"]}

    def manifests(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the rendered manifests by kind and name."""
        read = [yaml.safe_load(f.read_text()) for f in (self.folder / "rendered").rglob("*.yaml")]
        return {(made["kind"], made["metadata"]["name"]): made for made in read}

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of a command."""
        folders = [*map(str, self.path_directories), str(self.tools.bin), os.environ["PATH"]]
        return {
            "PATH": ":".join(folders),
            "HOME": os.environ["HOME"],
            "PULUMI_HOME": str(self.tools.pulumi_home),
            "PULUMI_BACKEND_URL": f"file://{self.backend}",
            "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
            "PULUMI_SKIP_UPDATE_CHECK": "1",
            # The tests must not find the cluster of the user who runs them.
            "KUBECONFIG": str(self.folder / "no-kubeconfig"),
            **self.variables,
        }

    def run(self, *arguments: str) -> Outcome:
        """Run a CLI command. Messages about plugins on PATH are removed from the output."""
        command = ["pulumi", *arguments, "--non-interactive"]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=800)
            finally:
                # The YAML host leaves plugin processes behind.
                kill_session(process)
        status = process.returncode
        return Outcome(status, stdout + (stderr if status else ""))


def language_hosts() -> Path:
    """Return a directory of language hosts for PATH. Without Go, skip the test or fail in CI."""
    if shutil.which("go") is None:
        unavailable("Pulumi's language hosts are built from Go modules, but Go is not installed")
    return ensure("engine", cache_root(), print, ["languages"]).bin


def node_modules() -> Path:
    """Return the packages of package-lock.json, downloaded once. Skip the test without npm."""
    lock = (TYPESCRIPT / "package-lock.json").read_bytes()
    made = cache_root() / "tools" / f"node-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not (made / "node_modules").exists():
        if shutil.which("npm") is None:
            unavailable("TypeScript programs require Node.js, but npm is not on PATH")
        # An interrupted installation leaves only this directory, never an incomplete target.
        fresh = made.with_name(f"{made.name}.{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(TYPESCRIPT / name, fresh)
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=fresh,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            unavailable(f"npm failed to install the TypeScript packages: {done.stderr}")
        fresh.rename(made)
    return made / "node_modules"
