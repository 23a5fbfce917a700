"""Jobs of every kind in front of a real API server and real Volcano, on simulated nodes."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.cluster.platform import Platform, await_, copy_checkout
from tests.infra.kinds import configuration, job, objects, surroundings
from tests.infra.test_any_job import jobs
from tests.tiers import unavailable

# Their definitions come from the Go modules of their operators.
DEFINITIONS = {
    "github.com/kubeflow/training-operator@v1.8.1": (
        "h1:mVvoBSCInbMBX0gGSn4+Ihj3ycwoLO1iEAw+0qPhQfc=",
        ("manifests/base/crds/kubeflow.org_pytorchjobs.yaml",),
    ),
    "github.com/kubeflow/trainer/v2@v2.0.0": (
        "h1:mnQSR9iPKItxyUR8mq66XsmxqKNVHwr9YYOB7BTU9dU=",
        (
            "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
        ),
    ),
    "github.com/ray-project/kuberay/ray-operator@v1.4.2": (
        "h1:A4tGzbIky8sInAUxZBdBb+rrpZ7fbqoxdsOtm559Zqg=",
        ("config/crd/bases/ray.io_rayjobs.yaml",),
    ),
}
STEPS = {
    "prepare": {"command": ["./prepare"], "writes_datasets": True},
    "evaluate": {"command": ["./evaluate"], "after": ["train"], "gpus": 1},
    "export": {"command": ["./export"], "after": ["evaluate"]},
}


class Cluster:
    """An API server with the definitions of all kinds, and four nodes of eight GPUs."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def apply(self, manifests: list[dict[str, Any]], *options: str) -> None:
        file = self.platform.checkout / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
        command = ["kubectl", "apply", "--server-side", "--validate=strict", "-f", str(file)]
        self.platform.shell(shlex.join([*command, *options]))

    def phases(self) -> dict[str, str]:
        """Phases of the Volcano Jobs by name."""
        found = self.platform.kubectl("get", "jobs.batch.volcano.sh", "-n", "ml")["items"]
        return {
            item["metadata"]["name"]: item.get("status", {}).get("state", {}).get("phase", "")
            for item in found
        }


def definitions(folder: Path) -> list[Path]:
    """Files of definitions, from modules whose hash is the pinned one."""
    if shutil.which("go") is None:
        unavailable("definitions of other kinds come from Go modules, and there is no Go")
    files: list[Path] = []
    for module, (pinned, names) in DEFINITIONS.items():
        done = subprocess.run(
            ["go", "mod", "download", "-json", module],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        described = json.loads(done.stdout)
        assert described.get("Sum") == pinned, described
        files += [Path(described["Dir"]) / name for name in names]
    return files


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kinds")
    platform = Platform(copy_checkout(folder / "checkout"), folder / "state", "simulated")
    devcluster = ".venv/bin/python -m devcluster"
    try:
        platform.run(f"{devcluster} up --nodes simulated --simulated-nodes=4")
        files = " ".join(f"-f {shlex.quote(str(file))}" for file in definitions(folder))
        platform.shell(f"kubectl apply --server-side {files}")
        made = Cluster(platform)
        made.apply([m for m in surroundings(configuration(job("volcano"))) if wanted(m)])
        made.apply(bound_claims())
        yield made
    finally:
        platform.run(f"{devcluster} down --purge --nodes simulated")


def wanted(manifest: dict[str, Any]) -> bool:
    """No storage driver runs here, and the network is nobody's."""
    return manifest["kind"] in ("Namespace", "Queue", "PriorityClass", "ServiceAccount")


def bound_claims() -> list[dict[str, Any]]:
    """Volumes and the claims that are bound to them, as Volcano wants them before it places."""
    made: list[dict[str, Any]] = []
    for name in ("checkpoints", "datasets"):
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {
            **common,
            "capacity": {"storage": "1Ti"},
            "hostPath": {"path": f"/shared/{name}"},
            "claimRef": {"namespace": "ml", "name": name},
        }
        claim = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Ti"}}}
        made += [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": volume,
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": "ml"},
                "spec": claim,
            },
        ]
    return made


def pods_of(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod template inside an object; what is inside custom resources nobody validates."""
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield {"metadata": value["metadata"], "spec": spec}
        for inner in value.values():
            yield from pods_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods_of(inner)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(described=jobs())
@example(described=job("ray", retries=7, deadline_seconds=60, suspend=True))
def test_the_api_server_accepts_the_objects_of_any_valid_job_and_their_pods(
    cluster: Cluster, described: dict[str, Any]
) -> None:
    # A field of a later Volcano is left to the tests of the builders.
    described.pop("network_topology", None)
    built = objects(described)
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            **pod,
            "metadata": {**pod["metadata"], "name": f"pod-{number}", "namespace": "ml"},
        }
        for number, pod in enumerate(pods_of([m["spec"] for m in built]))
    ]
    assert pods
    cluster.apply([*built, *pods], "--dry-run=server")


def test_a_field_that_a_kind_does_not_have_is_not_accepted(cluster: Cluster) -> None:
    group, bad = objects(job("pytorch"))
    bad["spec"]["runPolicy"]["minAvailable"] = 2
    with pytest.raises(AssertionError, match="minAvailable"):
        cluster.apply([group, bad], "--dry-run=server")


def test_every_kind_of_volcanos_own_is_placed_as_a_whole_and_completes(cluster: Cluster) -> None:
    kinds = ("volcano", "mpi", "tensorflow", "plain")
    for kind in kinds:
        cluster.apply(objects(job(kind), f"{kind}-0123abcd"))
    done = dict.fromkeys((f"{kind}-0123abcd" for kind in kinds), "Completed")
    await_(lambda: cluster.phases().items() >= done.items(), 240, "all four kinds are complete")


def test_steps_run_one_after_the_other(cluster: Cluster) -> None:
    described = job("volcano", steps=STEPS, after=["prepare"])
    cluster.apply(objects(described, "steps-4567cdef"))

    def flow() -> str:
        found = cluster.platform.kubectl("get", "jobflow", "-n", "ml", "steps-4567cdef")
        return str(found.get("status", {}).get("state", {}).get("phase", ""))

    await_(lambda: flow() == "Succeed", 120, "the flow has succeeded")
    found = cluster.platform.kubectl("get", "pods", "-n", "ml")["items"]
    started = {
        pod["metadata"]["name"].split("-")[3]: pod["metadata"]["creationTimestamp"]
        for pod in found
        if pod["metadata"]["name"].startswith("steps-")
    }
    order = [started[step] for step in ("prepare", "train", "evaluate", "export")]
    assert order == sorted(order)
    assert len(set(order)) > 1
