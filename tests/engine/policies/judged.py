"""A Pulumi program that registers manifests, and the pack's reports about them."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devcluster.paths import CHECKOUT
from devcluster.toolchain import Toolchain

Manifest = dict[str, Any]

PROGRAM = '''
"""Register the manifests of a file; `unknown` stands for values known only after an update.

`type token` overrides the type token that follows from `apiVersion` and `kind`.
"""

import json
import os
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes

kubeconfig = os.environ.get("CLUSTER")
place = {"kubeconfig": kubeconfig} if kubeconfig else {"render_yaml_to_directory": "rendered"}
provider = kubernetes.Provider("provider", **place)
later_id = kubernetes.core.v1.ConfigMap(
    "later", metadata={"namespace": "default"}, opts=pulumi.ResourceOptions(provider=provider)
).id


def with_outputs(value):
    if isinstance(value, dict):
        return {key: with_outputs(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_outputs(item) for item in value]
    return later_id if value == "unknown" else value


for index, manifest in enumerate(json.loads(Path("manifests.json").read_text())):
    token = manifest.pop("type token", None)
    version, kind = manifest["apiVersion"], manifest["kind"]
    version = version if "/" in version else f"core/{version}"
    place = manifest["metadata"].get("namespace", "cluster")
    pulumi.CustomResource(
        token or f"kubernetes:{version}:{kind}",
        f"{index}-{kind.lower()}-{manifest['metadata']['name']}-in-{place}",
        with_outputs(manifest),
        pulumi.ResourceOptions(provider=provider),
    )
'''


@dataclass(frozen=True)
class Report:
    """One line that the pack prints in the engine's output."""

    rule: str
    level: str
    urn: str
    message: str

    @property
    def places(self) -> list[str]:
        """Tag of the resource's fixture in its name, if any."""
        return re.findall(r"case[0-9]+x", self.urn)[-1:]


@dataclass(frozen=True)
class CheckResult:
    """Result of a command."""

    returncode: int
    stdout: str
    stderr: str
    reports: list[Report]


Run = Callable[..., CheckResult]


def program(
    folder: Path,
    tools: Toolchain,
    kubeconfig: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Return a function that runs `pulumi COMMAND` with the pack on manifests in a directory.

    Without a kubeconfig, the provider writes the manifests to files.
    """
    runtime = {"name": "python", "options": {"virtualenv": str(CHECKOUT / ".venv")}}
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump({"name": "judged", "runtime": runtime}))
    (folder / "__main__.py").write_text(PROGRAM)
    (folder / "state").mkdir()
    events = folder / "events"
    variables = {
        "PATH": f"{tools.bin}{os.pathsep}{os.environ['PATH']}",
        "HOME": os.environ["HOME"],
        "PULUMI_HOME": str(tools.pulumi_home),
        "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
        "PULUMI_SKIP_UPDATE_CHECK": "1",
        "PULUMI_CONFIG_PASSPHRASE": "unused",
        **({"CLUSTER": str(kubeconfig)} if kubeconfig is not None else {}),
        # --event-log is a hidden flag of the CLI.
        "PULUMI_DEBUG_COMMANDS": "1",
        **(environment or {}),
    }

    def pulumi(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["pulumi", *arguments, "--non-interactive"],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )

    def judged(command: str, stack: list[Manifest], config: Manifest | None = None) -> CheckResult:
        (folder / "manifests.json").write_text(json.dumps(stack))
        (folder / "config.json").write_text(json.dumps(config or {}))
        events.unlink(missing_ok=True)
        pulumi("stack", "init", "test")
        pack = ["--policy-pack", str(CHECKOUT / "policies"), "--policy-pack-config", "config.json"]
        always = ["--yes", "--skip-preview"] if command == "up" else []
        done = pulumi(command, "--stack", "test", *pack, *always, "--event-log", str(events))
        return CheckResult(done.returncode, done.stdout, done.stderr, _reports(events))

    return judged


def _reports(events: Path) -> list[Report]:
    lines = events.read_text().splitlines() if events.exists() else []
    found = [json.loads(line).get("policyEvent") for line in lines]
    return [
        Report(
            event["policyName"],
            event["enforcementLevel"],
            event.get("resourceUrn", ""),
            event["message"],
        )
        for event in found
        if event is not None
    ]
