"""Models on real nodes: published, promoted, and downloaded once for all pods of a node.

The API server refuses every model that was not promoted.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster.spec import Kind, cluster_spec
from tests.cluster.platform import UPDATE, Platform, await_
from tests.faults.units import Units

CONFIGURATION = "policies/config/promoted.json"
SPEC = cluster_spec(Kind.REAL)
MODEL = f"{SPEC.control_plane.address}:{SPEC.network.registry_port}/models/digits"


CACHE = "/var/lib/model-cache"
"""Path of the cache directory, which exists on both nodes."""
NODE = SPEC.real_nodes[1].name


def add_model_cache(config: dict[str, Any]) -> None:
    """Add the claim for the cache, which is a directory on each node."""
    storage = config["gpu-platform:storage"]
    storage["volumes"]["shared-models"] = {
        "capacity": "1Gi",
        "access_modes": ["ReadWriteMany"],
        "local": {"path": CACHE, "nodes": {"nvidia.com/gpu.present": ["true"]}},
    }
    storage["claims"]["model-cache"] = {"size": "1Gi", "volume": "shared-models"}


def admit_only_promoted(config: dict[str, Any]) -> None:
    config["gpu-platform:tenancy"] |= {"admission": "deny", "admission_config": CONFIGURATION}


def serve(digest: str) -> Callable[[dict[str, Any]], None]:
    """Return an edit that makes the service download a version."""

    def edit(config: dict[str, Any]) -> None:
        service = config["gpu-platform:inference"]["services"]["digits"]
        service.pop("job", None)
        service["source"] = {"artifact": f"{MODEL}@{digest}", "download": True}
        # The registry of the embedded cluster has no TLS.
        service["fetch"] = {
            "size": "64Mi",
            "env": {"OCI_PLAIN_HTTP": "true"},
            "cache": {"claim": "model-cache", "size": "512Mi"},
        }
        service["node_selector"] = {"kubernetes.io/hostname": NODE}

    return edit


@dataclass
class Models:
    """The `models` commands with a key pair, and the runs in the embedded cluster."""

    platform: Platform
    checkpoints: Path
    keys: Path

    def run(self, action: str, *words: str) -> str:
        words = (action, "--plain-http", *words)
        return self.platform.shell(f"python -m gpu_platform models {' '.join(words)}")

    def pods(self) -> list[dict[str, Any]]:
        """Return the running pods of the service."""
        selector = "gpu-platform.dev/service=digits"
        found = self.platform.kubectl("get", "pods", "-n", "ml-dev", "-l", selector)["items"]
        return [pod for pod in found if pod["status"]["phase"] == "Running"]

    def copies(self, node: str) -> Path:
        """Return the node's cache directory."""
        process = Units(self.platform.state / "real").node(node)
        return Path(f"/proc/{process.pid}/root{CACHE}")

    def replace(self) -> list[str]:
        """Replace the pod on its node and return the events of the new pod's download."""
        (old,) = self.pods()
        self.platform.shell(f"kubectl delete pod -n ml-dev {old['metadata']['name']}")
        await_(lambda: len(self.ready()) == 1, "a new pod")
        (new,) = self.ready()
        assert new["metadata"]["uid"] != old["metadata"]["uid"]
        assert new["spec"]["nodeName"] == NODE
        name = new["metadata"]["name"]
        log = self.platform.shell(f"kubectl logs -n ml-dev {name} --container fetch")
        return [json.loads(line)["event"] for line in log.splitlines()]

    def ready(self) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.pods()
            if all(each["ready"] for each in pod["status"]["containerStatuses"])
        ]

    def requests(self) -> int:
        """Return the number of requests for the model in the registry's access log."""
        log = self.platform.state / "real" / "logs" / "gpu-node-0" / "registry.log"
        return log.read_text().count('"GET /v2/models/digits/')

    def publish(self) -> str:
        """Publish the export of the run in the cluster and return its digest."""
        run = self.platform.run_name()
        export = self.checkpoints / run / "export"
        output = self.run(
            "publish", f"{export} {MODEL} --key {self.keys}/model.key --namespace ml-dev"
        )
        found = re.search(r"sha256:[0-9a-f]{64}", output)
        assert found, output
        return found[0]

    def promote(self, digest: str, *words: str) -> str:
        return self.run(
            "promote", f"{MODEL}@{digest} production --key {self.keys}/model.pub", *words
        )


@pytest.fixture(scope="module")
def models(real: Platform, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    configuration = json.loads((real.checkout / "policies/config/dev.json").read_text())
    configuration["model-signed"] = {
        "repositories": [MODEL],
        "images": ["127.0.0.1:5000/*"],
    }
    (real.checkout / CONFIGURATION).write_text(json.dumps(configuration))
    real.edit(add_model_cache)
    assert "(correct)" in real.make("up")
    keys = tmp_path_factory.mktemp("keys")
    real.shell(f"openssl ecparam -name prime256v1 -genkey -noout -out {keys}/model.key")
    real.shell(f"openssl ec -in {keys}/model.key -pubout -out {keys}/model.pub")
    found = Models(real, checkpoints, keys)
    for node in SPEC.real_nodes:
        found.copies(node.name).mkdir(exist_ok=True)
    return found


@pytest.fixture(scope="module")
def good(models: Models) -> str:
    """The digest of a published model."""
    return models.publish()


def test_model_version_is_served_only_after_its_promotion(models: Models, good: str) -> None:
    platform = models.platform
    platform.edit(admit_only_promoted)
    platform.shell(UPDATE)
    platform.edit(serve(good))
    refused = platform.shell(f"! {UPDATE} 2>&1")
    assert "model-signed" in refused, refused
    assert "model of fetch" in refused

    models.promote(good, "--if 'accuracy >= 0.9'")
    assert "(correct)" in platform.make("up")
    # The previous pod may still be terminating.
    await_(lambda: len(models.pods()) == 1, "one pod")
    (pod,) = models.pods()
    (fetched,) = pod["status"]["initContainerStatuses"]
    assert fetched["state"]["terminated"]["exitCode"] == 0
    assert f"oci://{MODEL}@{good}" in pod["spec"]["initContainers"][0]["command"]


def test_later_pods_on_a_node_use_the_cache_and_replace_damaged_copies(
    models: Models, good: str
) -> None:
    folder, other = (models.copies(node.name) for node in reversed(SPEC.real_nodes))
    copies = {path.name: path for path in folder.iterdir() if not path.name.startswith(".")}
    assert good.removeprefix("sha256:") in copies
    assert len(copies) == 3
    for name, path in copies.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == name
    assert list(other.iterdir()) == []

    before = models.requests()
    assert before > 0
    assert models.replace() == ["copied_from_cache", "fetched"]
    assert models.requests() == before

    for path in copies.values():
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert models.replace() == [*["cached_copy_damaged"] * 3, "fetched"]
    assert models.requests() == before + 3
    assert models.replace() == ["copied_from_cache", "fetched"]
    assert models.requests() == before + 3


def test_worse_model_version_is_neither_promoted_nor_served(models: Models, good: str) -> None:
    platform = models.platform
    (served,) = models.pods()
    platform.hyperparameters(epochs=1)
    platform.make("up")
    worse = models.publish()
    assert worse != good
    refused = platform.shell(
        f"! python -m gpu_platform models promote --plain-http {MODEL}@{worse} production "
        f"--key {models.keys}/model.pub --if 'accuracy >= incumbent - 0.002' 2>&1"
    )
    assert "is not promoted" in refused, refused
    platform.edit(serve(worse))
    assert "model of fetch" in platform.shell(f"! {UPDATE} 2>&1")
    assert served["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in models.pods()}
