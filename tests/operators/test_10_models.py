"""Models on real nodes: published, promoted, and downloaded by the pods that serve them.

The API server refuses every model that was not promoted.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster.spec import Kind, cluster_spec
from tests.cluster.platform import Platform, await_

CONFIGURATION = "policies/config/promoted.json"
UPDATE = "pulumi up --yes --skip-preview --non-interactive --color never --stack dev"
SPEC = cluster_spec(Kind.REAL)
MODEL = f"{SPEC.control_plane.address}:{SPEC.network.registry_port}/models/digits"


def admit_only_promoted(config: dict[str, Any]) -> None:
    config["gpu-platform:tenancy"] |= {"admission": "deny", "admission_config": CONFIGURATION}


def serve(digest: str) -> Callable[[dict[str, Any]], None]:
    """Return an edit that makes the service download a version."""

    def edit(config: dict[str, Any]) -> None:
        service = config["gpu-platform:inference"]["services"]["digits"]
        service.pop("job", None)
        service["source"] = {"artifact": f"{MODEL}@{digest}", "download": True}
        # The registry of the embedded cluster has no TLS.
        service["fetch"] = {"size": "64Mi", "env": {"OCI_PLAIN_HTTP": "true"}}

    return edit


@dataclass
class Models:
    """The commands for models, with a key, and the runs of the embedded cluster."""

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
    assert "(correct)" in real.make("up", timeout=1500)
    keys = tmp_path_factory.mktemp("keys")
    real.shell(f"openssl ecparam -name prime256v1 -genkey -noout -out {keys}/model.key")
    real.shell(f"openssl ec -in {keys}/model.key -pubout -out {keys}/model.pub")
    return Models(real, checkpoints, keys)


def test_a_version_is_served_after_its_promotion_and_not_before(models: Models) -> None:
    platform = models.platform
    good = models.publish()
    platform.edit(admit_only_promoted)
    platform.shell(UPDATE)
    platform.edit(serve(good))
    refused = platform.shell(f"! {UPDATE} 2>&1")
    assert "model-signed" in refused, refused
    assert "model of fetch" in refused

    models.promote(good, "--if 'accuracy >= 0.9'")
    assert "(correct)" in platform.make("up", timeout=600)
    # The previous pod may still be terminating.
    await_(lambda: len(models.pods()) == 1, 120, "one pod")
    (pod,) = models.pods()
    (fetched,) = pod["status"]["initContainerStatuses"]
    assert fetched["state"]["terminated"]["exitCode"] == 0
    assert f"oci://{MODEL}@{good}" in pod["spec"]["initContainers"][0]["command"]

    platform.hyperparameters(epochs=1)
    platform.make("up", timeout=600)
    worse = models.publish()
    assert worse != good
    refused = platform.shell(
        f"! python -m gpu_platform models promote --plain-http {MODEL}@{worse} production "
        f"--key {models.keys}/model.pub --if 'accuracy >= incumbent - 0.002' 2>&1"
    )
    assert "is not promoted" in refused, refused
    platform.edit(serve(worse))
    assert "model of fetch" in platform.shell(f"! {UPDATE} 2>&1")
    assert pod["metadata"]["uid"] in {each["metadata"]["uid"] for each in models.pods()}
