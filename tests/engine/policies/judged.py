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

_HOST_PATHS = {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
_CONTAINER = {"name": "main", "image": "evil.example.com/miner:latest"}
_PRIVILEGED = {**_CONTAINER, "securityContext": {"privileged": True}}
_LIMITS = {"limits": {"nvidia.com/gpu": "8", "memory": "256Gi"}}
_POD = {"restartPolicy": "Never", "containers": [{**_CONTAINER, "resources": _LIMITS}]}
_BATCH_JOB = {"parallelism": 4, "backoffLimit": 10, "template": {"spec": _POD}}
_HOST_PODS = {"template": {"spec": {"hostPID": True, **_HOST_PATHS}}}
_VOLCANO_JOB = {"queue": "other", "minAvailable": 1, "maxRetry": 100_000}
_SPEC = {"containers": [_PRIVILEGED]}

_CASES: list[tuple[str, str, str, Any, str]] = [
    ("yaml/v1:Pod", "v1", "Pod", _SPEC, "not-privileged"),
    ("helm.sh/v3:Pod", "v1", "Pod", _SPEC, "not-privileged"),
    ("kustomize/v1:Pod", "v1", "Pod", _SPEC, "not-privileged"),
    ("apps/v1:DeploymentPatch", "apps/v1", "Deployment", _HOST_PODS, "no-host-path"),
    ("batch/v1:JobPatch", "batch/v1", "Job", _BATCH_JOB, "training-scheduler"),
    (
        "batch.volcano.sh/v1alpha1:JobPatch",
        *("batch.volcano.sh/v1alpha1", "Job", _VOLCANO_JOB),
        "training-retries-bounded",
    ),
    ("apps/v1:DeploymentPatch", "apps/v1", "Deployment", {"replicas": 5000}, "manifest-readable"),
]

REJECTED = {(way[-1], f"case{index}x") for index, way in enumerate(_CASES)}
"""The rule that must reject each object, and the tag in the object's name."""


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


def stack(namespace: str) -> list[Manifest]:
    """Return the objects with the type tokens under which they are registered."""
    return [
        {
            "type token": f"kubernetes:{token}",
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": f"case{index}x", "namespace": namespace},
            "spec": spec,
        }
        for index, (token, version, kind, spec, _) in enumerate(_CASES)
    ]
