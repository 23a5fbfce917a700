"""The examples on simulated nodes under real Volcano, with the commands in their READMEs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import packaged
from tests.cluster.platform import ROOT, Platform, await_
from tests.readme import blocks

ORIGINS = {"organization/gpu-platform/prod": "organization/gpu-platform/simulated"}
CONTEXT = {"kubernetes:context=prod": "kubernetes:context=gpu-platform-simulated"}
UPDATE = {"pulumi up": "pulumi up --yes --skip-preview"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the package, which replaces the READMEs' first commands."""
    return packaged.environment(tmp_path_factory.mktemp("installed"))


def deploy(cluster: Platform, installed: Path, example: str) -> dict[str, Any]:
    """Execute the commands of the example's README; return the outputs of its stack."""
    folder = cluster.checkout / "examples" / example
    (folder / ".venv").symlink_to(installed)
    install, update = blocks(folder / "README.md")
    assert install.own_cluster
    script = update.script
    for written, here in (ORIGINS | CONTEXT | UPDATE).items():
        script = script.replace(written, here)
    cluster.shell(f"cd {folder} && {' && '.join(script.splitlines())}")
    return dict(json.loads(cluster.shell(f"cd {folder} && pulumi stack output --json")))


def placed(cluster: Platform, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pods of a run once all of them have a node."""
    label = f"volcano.sh/job-name={run['name']}"
    found: list[dict[str, Any]] = []

    def all_placed() -> bool:
        found[:] = cluster.kubectl("get", "pods", "-n", run["namespace"], "-l", label)["items"]
        return len(found) == run["nodes"] and all(p["spec"].get("nodeName") for p in found)

    await_(all_placed, f"the pods of {run['name']} have nodes")
    return found


def test_team_stack_uses_the_platforms_queue_and_claim(cluster: Platform, installed: Path) -> None:
    platform = cluster.outputs()
    program = cluster.checkout / "examples" / "team-stack" / "__main__.py"
    assert len(program.read_text().splitlines()) < 30
    run = deploy(cluster, installed, "team-stack")["run"]
    pods = placed(cluster, run)
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"volcano"}
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert run["namespace"] == platform["namespace"]
    job = cluster.kubectl("get", "jobs.batch.volcano.sh", "-n", run["namespace"], run["name"])
    assert job["spec"]["queue"] == "research"
    for pod in pods:
        container, *_ = pod["spec"]["containers"]
        assert container["image"] == platform["images"]["training"]
        assert container["resources"]["limits"][platform["gpuNodes"]["resource"]] == "8"
        volumes = [volume.get("persistentVolumeClaim", {}) for volume in pod["spec"]["volumes"]]
        assert platform["claims"]["checkpoints"] in [v.get("claimName") for v in volumes]


def test_commands_on_the_reuse_page_show_the_outputs(cluster: Platform) -> None:
    (commands,) = (block for block in blocks(ROOT / "docs" / "reuse.md") if not block.own_cluster)
    shown = cluster.shell(commands.script.replace("--stack dev", "--stack simulated"))
    assert "nodeSelector" in shown
    assert "gpusPerNode" in shown


def workloads(cluster: Platform) -> list[str]:
    """Return the workloads in the cluster that install components."""
    kinds = "daemonsets,deployments,statefulsets,runtimeclasses,customresourcedefinitions"
    found = cluster.kubectl("get", kinds, "--all-namespaces")["items"]
    return sorted(f"{made['kind']} {made['metadata']['name']}" for made in found)


def test_existing_volcano_and_device_plugin_are_not_installed_again(
    cluster: Platform, installed: Path
) -> None:
    before = workloads(cluster)
    run = deploy(cluster, installed, "existing-cluster")["run"]
    pods = placed(cluster, run)
    assert workloads(cluster) == before
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"volcano"}
    queue = cluster.kubectl("get", "queue", "language")
    assert queue["status"]["state"] == "Open"
    claim = cluster.kubectl("get", "persistentvolumeclaim", "checkpoints", "-n", "language")
    assert claim["status"]["phase"] == "Bound"
