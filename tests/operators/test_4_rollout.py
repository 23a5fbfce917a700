"""New versions under constant load on real nodes, behind a real gateway: no request is lost.

The tests follow the order of an operator's work. Each version is a separate training run.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from infra.inference_service import build, build_canary, routes
from tests.cluster.load import Load, inference_request
from tests.cluster.platform import Platform, await_
from tests.infra.serving.examples import CANARY, DIGEST, serving
from tests.operators import gateway
from tests.operators.definitions import KEDA, module_folder

CLIENTS = 8
PAUSE = 0.05
SHARE, TOLERANCE, SAMPLE = 0.20, 0.06, 800


@dataclass
class Rollout:
    """A service with two trained model versions, and its address for clients."""

    platform: Platform
    url: str
    first: str
    second: str

    def service(self, **settings: Any) -> dict[str, Any]:
        """Return the service for the stack file; None omits a setting."""
        common = {
            "run": self.first,
            "priority_class": "serving",
            "gpus": 1,
            "cpu": "100m",
            "memory": "768Mi",
            "replicas": 2,
            "min_ready_seconds": 3,
            "route": {"gateway": {"name": gateway.GATEWAY, "namespace": gateway.NAMESPACE}},
        }
        return {name: value for name, value in {**common, **settings}.items() if value is not None}

    def update(self, status: int = 0, **settings: Any) -> str:
        """Write the service's settings and update the stack, as a user would."""
        services = {"digits": self.service(**settings)}
        self.platform.edit(
            lambda config: config["gpu-platform:inference"].update(services=services)
        )
        up = "pulumi up --yes --skip-preview --non-interactive --color never --stack dev 2>&1"
        return self.platform.shell(up if status == 0 else f"! {up}")

    def settled(self) -> None:
        """Wait until all stable pods belong to the last update."""
        self.platform.shell("kubectl rollout status -n ml-dev deployment/digits --timeout=600s")
        await_(lambda: len(self.pods()) == 2, "two pods")

    def pods(self) -> list[str]:
        """Return the names of the stable pods, including terminating ones."""
        selector = "gpu-platform.dev/service=digits"
        found = self.platform.kubectl("get", "pods", "-n", "ml-dev", "-l", selector)
        return [item["metadata"]["name"] for item in found["items"]]

    def version(self, run: str) -> str:
        """The short name of a run's weights."""
        folder = self.platform.state / "real" / "volumes" / "checkpoints" / run / "export"
        weights = json.loads((folder / "manifest.json").read_text())["weights"]
        return str(weights["sha256"])[:12]


@pytest.fixture(scope="module")
def rollout(real: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollout]:
    """A rollout with two trained versions, the first of which is served through the gateway.

    The cluster stays up for the faults (tests/faults), and is taken down after them.
    """
    folder = tmp_path_factory.mktemp("gateway")
    real.reset()
    real.hyperparameters(epochs=10)
    assert "(correct)" in real.make("up")
    first = real.run_name()
    with gateway.running(real, folder) as url:
        real.hyperparameters(seed=7)
        made = Rollout(real, url, first, "")
        real.edit(
            lambda config: config["gpu-platform:inference"].update(
                services={"digits": made.service()}
            )
        )
        real.make("up")
        made.second = real.run_name()
        made.settled()
        infer = f"{url}/v2/models/digits/infer"
        await_(lambda: answers(infer), "the route")
        yield made


def answers(infer: str) -> bool:
    return (
        httpx.post(infer, json=inference_request(), timeout=60, trust_env=False).status_code
        == httpx.codes.OK
    )


@pytest.fixture(scope="module")
def load(rollout: Rollout) -> Iterator[Load]:
    """Load without pauses, so that the service is busy during all tests."""
    url = f"{rollout.url}/v2/models/digits/infer"
    with Load(url, inference_request(), CLIENTS, PAUSE) as clients:
        yield clients


def test_first_version_serves_all_requests(rollout: Rollout, load: Load) -> None:
    seen = load.during(lambda: None, at_least=50)
    assert seen.failed == {}
    assert set(seen.versions) == {rollout.version(rollout.first)}


def test_version_that_never_becomes_ready_receives_no_requests(
    rollout: Rollout, load: Load
) -> None:
    canary = {"weight": 20, "run": rollout.second, "digest": DIGEST}
    outputs: list[str] = []

    def fail() -> None:
        outputs.append(rollout.update(status=1, canary=canary, progress_deadline_seconds=15))

    seen = load.during(fail, at_least=50)
    assert "digits-canary" in outputs[0]
    assert seen.failed == {}
    assert set(seen.versions) == {rollout.version(rollout.first)}


def test_canary_receives_its_share_of_requests_once_it_is_ready(
    rollout: Rollout, load: Load
) -> None:
    canary = {"weight": 20, "run": rollout.second}
    coming = load.during(lambda: rollout.update(canary=canary), at_least=50)
    assert coming.failed == {}
    second = rollout.version(rollout.second)
    await_(lambda: second in load.during(lambda: None, at_least=20).versions, "the canary")
    there = load.during(lambda: None, at_least=SAMPLE)
    assert there.failed == {}
    assert abs(there.versions[second] / there.answered - SHARE) < TOLERANCE


def test_weight_zero_sends_all_requests_to_the_stable_version(rollout: Rollout, load: Load) -> None:
    canary = {"weight": 0, "run": rollout.second}
    going = load.during(lambda: rollout.update(canary=canary))
    assert going.failed == {}
    await_(lambda: only(load, rollout.version(rollout.first)), "the first version alone")


def test_promotion_is_a_rolling_update_without_lost_requests(rollout: Rollout, load: Load) -> None:
    def promote() -> None:
        rollout.update(run=rollout.second)
        rollout.settled()

    seen = load.during(promote, at_least=100)
    assert seen.failed == {}
    assert set(seen.versions) == {rollout.version(run) for run in (rollout.first, rollout.second)}
    await_(lambda: only(load, rollout.version(rollout.second)), "the second version alone")


def test_no_request_is_lost_when_a_pod_is_deleted_under_load(rollout: Rollout, load: Load) -> None:
    pod = rollout.pods()[0]

    def delete() -> None:
        rollout.platform.shell(f"kubectl delete pod -n ml-dev {pod} --timeout=600s")
        rollout.settled()

    seen = load.during(delete, at_least=100)
    assert seen.failed == {}


def test_only_in_flight_requests_are_lost_when_a_worker_is_killed(
    rollout: Rollout, load: Load
) -> None:
    pod = rollout.pods()[0]
    before = lost_workers(rollout, pod)
    seen = load.during(lambda: kill_worker(rollout, pod), at_least=200)
    await_(lambda: lost_workers(rollout, pod) == before + 1, "the worker's successor")
    assert set(seen.failed) <= {"503"}
    assert sum(seen.failed.values()) <= CLIENTS
    calm = load.during(lambda: None, at_least=100)
    assert calm.failed == {}


@pytest.fixture(scope="module")
def keda(rollout: Rollout, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An API server with the definitions of KEDA."""
    module = module_folder(KEDA, tmp_path_factory.mktemp("keda"))
    definition = module / "config/crd/bases/keda.sh_scaledobjects.yaml"
    rollout.platform.shell(f"kubectl apply --server-side --filename {definition}")


@pytest.mark.parametrize(
    "settings",
    [
        {"route": {"gateway": {"name": "public", "section": "http"}, "path": "/digits"}},
        {"route": {"ingress": {"class_name": "nginx"}}, "canary": CANARY},
        {"autoscaling": {"max": 4, "requests_in_flight": 8, "cpu_percent": 70}},
        {
            "autoscaling": {
                "min": 0,
                "max": 4,
                "requests_in_flight": 8,
                "keda": {"prometheus": "http://prometheus:9090", "activation_query": "sum(up)"},
            }
        },
        {"job": None, "url": "s3://models/export", "digest": DIGEST},
        {"tls": {"secret": "tls"}, "api_keys": {"secret": "callers"}, "replicas": 3},
    ],
    ids=[
        "gateway route with a path",
        "ingress with a canary",
        "autoscaling by requests",
        "autoscaling by KEDA",
        "downloaded model",
        "TLS and API keys",
    ],
)
def test_api_server_accepts_the_objects_of_other_rollout_settings(
    rollout: Rollout, keda: None, tmp_path: Path, settings: dict[str, Any]
) -> None:
    service = serving(**settings)
    manifests = [*build(service), *build_canary(service), *routes(service)]
    for manifest in manifests:
        # In this namespace, no existing object has the same name, so nothing is merged.
        manifest["metadata"]["namespace"] = "default"
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    options = "--server-side --force-conflicts --dry-run=server --validate=strict"
    rollout.platform.shell(f"kubectl apply {options} --filename {file}")


KILL = """
import os, pathlib
parent = {}
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    parent[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
servers = [pid for pid in parent if parent[pid] == 1]
[worker] = [pid for pid in parent if parent[pid] in servers]
os.kill(worker, 9)
"""


def only(load: Load, version: str) -> bool:
    return set(load.during(lambda: None, at_least=40).versions) == {version}


def lost_workers(rollout: Rollout, pod: str) -> int:
    """Return the number of workers that a pod's server has lost, from its metrics."""
    address = rollout.platform.kubectl("get", "pod", "-n", "ml-dev", pod)["status"]["podIP"]
    text = httpx.get(f"http://{address}:8081/metrics", timeout=60, trust_env=False).text
    (line,) = (
        each for each in text.splitlines() if each.startswith("inference_worker_deaths_total")
    )
    return int(float(line.split()[1]))


def kill_worker(rollout: Rollout, pod: str) -> None:
    """Send SIGKILL to the worker process, a child of the fork server below PID 1."""
    command = ["kubectl", "exec", "-n", "ml-dev", pod, "--", "python3", "-c", KILL]
    rollout.platform.shell(shlex.join(command))
