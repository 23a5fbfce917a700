"""The policy pack under `pulumi up` with a real API server: rejected objects are not created."""

import shlex
from pathlib import Path

import pytest

from devcluster.paths import cache_root
from devcluster.toolchain import ensure
from tests.cluster.platform import Platform, await_
from tests.engine.policies import judged
from tests.engine.policies.judged import Run, program
from tests.policies import manifests
from tests.policies.harness import changed

SPACE = "refused"
STACK = judged.stack(SPACE)
OBJECTS = "pods,deployments,replicasets,jobs"


@pytest.fixture
def run(control_plane: Platform, tmp_path: Path) -> Run:
    kubeconfig = Path(control_plane.shell_environment["KUBECONFIG"])
    return program(tmp_path, ensure("engine", cache_root(), print), kubeconfig)


@pytest.fixture(scope="module")
def original_specs(control_plane: Platform) -> dict[str, object]:
    """Specifications of all workloads, including the Deployments that patches try to change."""
    control_plane.shell(f"kubectl create namespace {SPACE}")
    names = [item["metadata"]["name"] for item in STACK if item["kind"] == "Deployment"]
    for name in names:
        command = ["kubectl", "create", "deployment", name, "--image=web:1", f"-n{SPACE}"]
        control_plane.shell(shlex.join([*command, "--replicas=0"]))
    found: dict[str, object] = {}

    def have_replica_sets() -> bool:
        found.update(_specs(control_plane))
        return sum(key.startswith("ReplicaSet/") for key in found) == len(names)

    await_(have_replica_sets, f"a ReplicaSet of each of {names}")
    assert found.keys() >= {f"Deployment/{name}" for name in names}
    return found


# Each object is tested in a separate update, because the engine stops at the first rejected object.
# Tests of the engine tier preview objects with every type token; this test checks that an update
# neither creates nor patches an object.
@pytest.mark.parametrize(
    "manifest",
    [STACK[0], *(item for item in STACK if item["type token"].endswith("Patch"))],
    ids=lambda item: item["type token"],
)
def test_violations_are_neither_created_nor_patched(
    control_plane: Platform, original_specs: dict[str, object], run: Run, manifest: judged.Manifest
) -> None:
    done = run("up", [manifest])
    assert done.returncode != 0
    rejections = {(report.rule, *report.places) for report in done.reports}
    assert rejections & judged.REJECTED
    assert _specs(control_plane) == original_specs


def test_valid_objects_are_created(control_plane: Platform, run: Run) -> None:
    service = changed(
        manifests.service(),
        ("metadata", {"name": "good", "annotations": {"pulumi.com/skipAwait": "true"}}),
    )
    done = run("up", [service])
    assert done.returncode == 0, done.stdout + done.stderr
    assert control_plane.kubectl("get", "service", "good")["spec"]["type"] == "ClusterIP"


def _specs(platform: Platform) -> dict[str, object]:
    """Return the specification of every workload in the namespace."""
    items = platform.kubectl("get", OBJECTS, "-n", SPACE)["items"]
    return {f"{item['kind']}/{item['metadata']['name']}": item["spec"] for item in items}
