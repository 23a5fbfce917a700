"""Objects of every job kind, validated by an API server with all custom resource definitions."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.cluster.platform import Platform, empty_cluster
from tests.infra.jobs import configuration, job, objects, surrounding_objects
from tests.infra.test_any_job import jobs
from tests.operators.definitions import GATEWAY_API
from tests.platforms import unavailable

# The definitions come from the Go modules of the operators.
DEFINITIONS = {
    "github.com/kubeflow/training-operator@v1.9.3": (
        "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
        ("manifests/base/crds/kubeflow.org_pytorchjobs.yaml",),
    ),
    "github.com/kubeflow/trainer/v2@v2.3.0": (
        "h1:Je+e7zvTLzB4qW09J1fB7pZrqvPtWuGng2NqdN5p5QU=",
        (
            "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
        ),
    ),
    "sigs.k8s.io/jobset@v0.12.0": (
        "h1:YYPuV0px8Ongq/RXmJg6V0w2UC67aiR+rCMD06vhQQQ=",
        ("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",),
    ),
    "github.com/ray-project/kuberay/ray-operator@v1.6.1": (
        "h1:IMtV0QW8AxGp4/CbPLd/olXBBxpUNQQr1n4Mu59khl4=",
        ("config/crd/bases/ray.io_rayjobs.yaml",),
    ),
    GATEWAY_API.name: (
        GATEWAY_API.sum,
        ("config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",),
    ),
}


class Cluster:
    """An API server with the definitions of all kinds."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def apply(self, manifests: list[dict[str, Any]], *options: str) -> None:
        file = self.platform.checkout / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
        command = ["kubectl", "apply", "--server-side", "--validate=strict", "-f", str(file)]
        self.platform.shell(shlex.join([*command, *options]))


def definitions(folder: Path) -> list[Path]:
    """Return the definition files from Go modules with pinned hashes."""
    if shutil.which("go") is None:
        unavailable("the definitions of other kinds are in Go modules, but Go is not installed")
    files: list[Path] = []
    for module, (pinned, names) in DEFINITIONS.items():
        done = subprocess.run(
            ["go", "mod", "download", "-json", module],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        download = json.loads(done.stdout)
        assert download.get("Sum") == pinned, download
        files += [Path(download["Dir"]) / name for name in names]
    return files


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kinds")
    with empty_cluster(folder) as platform:
        files = " ".join(f"-f {shlex.quote(str(file))}" for file in definitions(folder))
        platform.shell(f"kubectl apply --server-side {files}")
        made = Cluster(platform)
        made.apply(
            [m for m in surrounding_objects(configuration(job("notebook"))) if needs_no_driver(m)]
        )
        yield made


def needs_no_driver(manifest: dict[str, Any]) -> bool:
    """Return False for kinds that need a storage or network driver, which do not run here."""
    return manifest["kind"] in ("Namespace", "Queue", "PriorityClass", "ServiceAccount")


def pods_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every pod template: the API server does not validate those in custom resources."""
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
@given(job_settings=jobs())
@example(job_settings=job("notebook"))
@example(job_settings=job("volcano", state="stopped"))
@example(job_settings=job("ray", retries=7, deadline_seconds=60, state="suspended"))
def test_api_server_accepts_the_objects_and_pods_of_any_valid_job(
    cluster: Cluster, job_settings: dict[str, Any]
) -> None:
    # `network_topology` requires a later version of Volcano; only the builders' tests cover it.
    job_settings.pop("network_topology", None)
    built = objects(job_settings)
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            **pod,
            "metadata": {**pod["metadata"], "name": f"pod-{number}", "namespace": "ml"},
        }
        for number, pod in enumerate(pods_of([m.get("spec") for m in built]))
    ]
    assert pods
    # A dry run does not create the accounts that the pods of the same request need.
    if accounts := [m for m in built if m["kind"] == "ServiceAccount"]:
        cluster.apply(accounts)
    cluster.apply([*built, *pods], "--dry-run=server")


def test_unknown_field_of_a_kind_is_rejected(cluster: Cluster) -> None:
    group, bad = objects(job("pytorch"))
    bad["spec"]["runPolicy"]["minAvailable"] = 2
    with pytest.raises(AssertionError, match="minAvailable"):
        cluster.apply([group, bad], "--dry-run=server")
