"""Download of the stack's charts by the provider, here from a registry for OCI artifacts.

The provider downloads them in Check, so no cluster is needed.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from devcluster.toolchain import Toolchain
from devcluster.toolchain.manifests import write_repository
from tests.infra.conftest import Provision
from tests.infra.examples import good
from tests.operators.definitions import VOLCANO, module_folder
from tests.registry import MANIFEST, Registry, registry
from tests.training.programs import free_port

__all__ = ["registry"]

CHART = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
CONFIG = "application/vnd.cncf.helm.config.v1+json"


def push(registry: Registry, package: Path, repository: str) -> str:
    """Push a packed chart as `helm push` does; return its version."""
    name, _, version = package.stem.rpartition("-")
    config = json.dumps({"name": name, "version": version, "apiVersion": "v2"}).encode()
    where = f"{repository}/{name}"
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": registry.put_blob(where, config, CONFIG),
        "layers": [registry.put_blob(where, package.read_bytes(), CHART)],
    }
    registry.put_manifest(where, version, json.dumps(manifest).encode())
    return version


@dataclass(frozen=True)
class Provider:
    """The Kubernetes provider, started without a cluster."""

    stub: provider_pb2_grpc.ResourceProviderStub

    def check(self, inputs: dict[str, Any]) -> provider_pb2.CheckResponse:
        """Check the inputs of a release, for which the provider fetches the chart."""
        urn = "urn:pulumi:prod::gpu-platform::kubernetes:helm.sh/v3:Release::volcano-release"
        request = provider_pb2.CheckRequest(urn=urn, news=properties(inputs))
        found: provider_pb2.CheckResponse = self.stub.Check(request)
        return found


def properties(values: dict[str, Any]) -> Any:
    def value(found: Any) -> PropertyValue:
        if isinstance(found, dict):
            return PropertyValue({key: value(item) for key, item in found.items()})
        if isinstance(found, list):
            return PropertyValue([value(item) for item in found])
        return PropertyValue(found)

    return PropertyValue.marshal_map({key: value(found) for key, found in values.items()})


@pytest.fixture(scope="module")
def provider(
    tools: Toolchain, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Provider]:
    (program,) = tools.pulumi_home.glob("plugins/resource-kubernetes-*/pulumi-resource-kubernetes")
    home = tmp_path_factory.mktemp("home")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "SSL_CERT_FILE": str(registry.authority),
        "KUBECONFIG": str(home / "no-kubeconfig"),
    }
    # The provider requires an address of the engine, but does not call it.
    command = [str(program), f"127.0.0.1:{free_port()}"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = provider_pb2_grpc.ResourceProviderStub(channel)
            stub.Configure(provider_pb2.ConfigureRequest(args=properties({})))
            yield Provider(stub)
        process.kill()


def test_chart_is_downloaded_from_an_oci_registry(
    provision: Provision,
    provider: Provider,
    registry: Registry,
    tmp_path: Path,
) -> None:
    source = module_folder(VOLCANO, tmp_path) / "installer" / "helm" / "chart" / "volcano"
    write_repository(source, tmp_path)
    (package,) = tmp_path.glob("*.tgz")
    version = push(registry, package, "mirror/charts")
    values = good()
    values["volcano"] |= {"repository": f"oci://{registry.host}/mirror/charts", "version": version}
    release = provision(values).inputs("volcano-release")
    assert not provider.check(release).failures
    # The provider replaces a version range with the version in the chart.
    ranged = provider.check({**release, "version": ">=1.0.0-0"})
    assert not ranged.failures
    assert ranged.inputs["version"] == version
    (failure,) = provider.check({**release, "version": "9.9.9"}).failures
    assert failure.property == "chart"
    assert f"{registry.host}/mirror/charts/volcano:9.9.9: not found" in failure.reason
