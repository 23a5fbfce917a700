"""The pack in the hands of the real engine: what it refuses, what it repairs, what it lets pass."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from devcluster.toolchain import Toolchain
from tests.policies import manifests
from tests.policies.harness import REMOVED, UNKNOWN_VALUE, changed

PROGRAM = '''
"""Registers the manifests of a file; `unknown` stands for what only an update will tell."""

import json
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes

provider = kubernetes.Provider("rendered", render_yaml_to_directory="rendered")
digest = kubernetes.core.v1.ConfigMap(
    "later", metadata={"namespace": "training"}, opts=pulumi.ResourceOptions(provider=provider)
).metadata.apply(lambda metadata: metadata.uid)


def with_outputs(value):
    if isinstance(value, dict):
        return {key: with_outputs(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_outputs(item) for item in value]
    return digest if value == "unknown" else value


for manifest in json.loads(Path("manifests.json").read_text()):
    version, name = manifest["apiVersion"], manifest["metadata"]["name"]
    version = version if "/" in version else f"core/{version}"
    pulumi.CustomResource(
        f"kubernetes:{version}:{manifest['kind']}",
        f"{manifest['kind'].lower()}-{name}",
        with_outputs(manifest),
        pulumi.ResourceOptions(provider=provider),
    )
'''
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, tools: Toolchain) -> Run:
    """Runs `pulumi COMMAND` with the pack over the manifests."""
    runtime = {"name": "python", "options": {"virtualenv": str(CHECKOUT / ".venv")}}
    (tmp_path / "Pulumi.yaml").write_text(yaml.safe_dump({"name": "judged", "runtime": runtime}))
    (tmp_path / "__main__.py").write_text(PROGRAM)
    state = tmp_path / "state"
    state.mkdir()
    variables = {
        "PATH": f"{tools.bin}{os.pathsep}{os.environ['PATH']}",
        "HOME": os.environ["HOME"],
        "PULUMI_HOME": str(tools.pulumi_home),
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_SKIP_UPDATE_CHECK": "1",
        "PULUMI_CONFIG_PASSPHRASE": "unused",
    }

    def pulumi(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["pulumi", *arguments, "--non-interactive"],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def judged(
        command: str, stack: list[dict[str, Any]], config: dict[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "manifests.json").write_text(json.dumps(stack))
        (tmp_path / "config.json").write_text(json.dumps(config or {}))
        pulumi("stack", "init", "test")
        pack = ["--policy-pack", str(CHECKOUT / "policies"), "--policy-pack-config", "config.json"]
        always = ["--yes", "--skip-preview"] if command == "up" else []
        return pulumi(command, "--stack", "test", *pack, *always)

    return judged


def test_a_stack_that_keeps_every_rule_passes(run: Run):
    done = run("preview", manifests.whole_stack())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mandatory" not in done.stdout
    assert "failed on it" not in done.stdout


def test_a_mandatory_rule_refuses_and_says_what_to_write(run: Run):
    container = "spec/tasks/0/template/spec/containers/0"
    job = changed(manifests.volcano_job(), (f"{container}/resources/limits/nvidia.com~gpu", "0.5"))
    done = run("preview", [job])
    assert done.returncode != 0
    assert "gpu-counts-whole" in done.stdout
    assert 'Job "digits" in namespace "training"' in done.stdout
    place = 'spec.tasks[0].template.spec.containers[0].resources.limits["nvidia.com/gpu"]'
    assert f'{place}: found "0.5"; write a whole number of nvidia.com/gpu' in done.stdout


def test_an_unknown_image_does_not_silence_the_rules_beside_it(run: Run):
    container = "spec/tasks/0/template/spec/containers/0"
    job = changed(
        manifests.volcano_job(),
        (f"{container}/image", "unknown"),
        (f"{container}/volumeMounts", [{"name": "unknown", "mountPath": "/checkpoints"}]),
        (f"{container}/securityContext/privileged", True),
    )
    done = run("preview", [job])
    assert done.returncode != 0
    assert "not-privileged" in done.stdout
    assert "shm-mounted" in done.stdout
    assert "can't run policy" not in done.stdout
    assert UNKNOWN_VALUE not in done.stdout


def test_a_stack_rule_refuses_what_only_the_whole_stack_shows(run: Run):
    stack = [item for item in manifests.whole_stack() if item["kind"] != "ResourceQuota"]
    done = run("preview", stack)
    assert done.returncode != 0
    assert "namespace-gpu-quota" in done.stdout
    assert "no quota of GPUs in namespace training" in done.stdout


def test_a_remediation_changes_what_is_registered(run: Run, tmp_path: Path):
    spec = "spec/tasks/0/template/spec"
    job = changed(
        manifests.volcano_job(),
        (f"{spec}/tolerations", REMOVED),
        (f"{spec}/containers/0/volumeMounts", REMOVED),
        (f"{spec}/volumes", REMOVED),
    )
    others = [item for item in manifests.whole_stack() if item["metadata"]["name"] != "digits"]
    repaired = {"enforcementLevel": "remediate"}
    config = {"gpu-toleration": repaired, "shm-mounted": {**repaired, "size": "2Gi"}}
    done = run("up", [*others, job], config)
    assert done.returncode == 0, done.stdout + done.stderr
    written = next((tmp_path / "rendered").rglob("*job-*digits*.yaml"))
    pod = yaml.safe_load(written.read_text())["spec"]["tasks"][0]["template"]["spec"]
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    memory = {"medium": "Memory", "sizeLimit": "2Gi"}
    assert pod["volumes"] == [{"name": "shared-memory", "emptyDir": memory}]
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    assert pod["containers"][0]["volumeMounts"] == mounts


def test_configuration_that_does_not_fit_the_schema_is_refused(run: Run):
    done = run("preview", [], {"shm-fits-memory": {"share": "half"}})
    assert done.returncode != 0
    assert "shm-fits-memory" in done.stdout + done.stderr
    assert "share" in done.stdout + done.stderr
