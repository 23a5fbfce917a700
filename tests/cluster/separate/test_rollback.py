"""A bad canary under load is rolled back: real servers, Prometheus, API server and permissions.

The load replaces the gateway: it chooses a version for each request according to the weights of the
route in the API server.
"""

import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from infra.inference_service import build_canary, routes
from infra.serving.rollback import rollback_objects
from infra.serving.traffic import stable_backends
from recorder.rollback import FIELD_MANAGER
from tests.cluster.api_server import ApiServer, api_server
from tests.cluster.environments import add_nodes
from tests.cluster.load import Background
from tests.cluster.platform import Platform, await_
from tests.inference.engine.exports import write_probe
from tests.inference.serving import Server, serving
from tests.infra.observability.promtool import promtool
from tests.infra.serving import examples
from tests.operators.definitions import GoModule, module_folder
from tests.training.programs import free_port

GATEWAY_API = GoModule(
    "sigs.k8s.io/gateway-api@v1.4.0", "h1:ZwlNM6zOHq0h3WUX2gfByPs2yAEsy/EenYJB78jpQfQ="
)
NAMESPACE = "ml"
PROBES = "tests.inference.engine.probes"
CLIENTS, PAUSE, WEIGHT = 8, 0.2, 20
NODE = 700
ROLLED_BACK = "gpu-platform.dev/rolled-back"
_log = logging.getLogger(__name__)


def canary_service(prometheus: str, **canary: Any) -> Any:
    """The service with a canary and limits, as in a stack file."""
    limits = {"prometheus": prometheus, "image": "inference", "latency_seconds": 1.0}
    found = {"weight": WEIGHT, "rollback": limits, **canary}
    return examples.serving(
        job=None, url="s3://models/good/export", route=examples.GATEWAY, canary=found
    )


@dataclass
class Cluster:
    """A namespace in an API server, with functions that apply objects as the stack does."""

    platform: Platform
    api: ApiServer
    folder: Path

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Apply as Pulumi does: server-side, without overwriting fields of other managers."""
        file = self.folder / "objects.yaml"
        file.write_text(yaml.safe_dump_all(manifests))
        self.platform.shell(f"kubectl apply --server-side --field-manager=pulumi --filename {file}")

    def route(self) -> dict[str, Any]:
        routes = self.api.objects("httproutes.gateway.networking.k8s.io", NAMESPACE)
        (found,) = (each for each in routes if each["metadata"]["name"] == "digits")
        return found

    def weights(self) -> dict[str, int]:
        (rule,) = self.route()["spec"]["rules"]
        return {each["name"]: each["weight"] for each in rule["backendRefs"]}

    def is_rolled_back(self) -> bool:
        """Return whether a rollback is complete: it is reported, and its fields are released."""
        managers = {each["manager"] for each in self.route()["metadata"]["managedFields"]}
        return self.weights() == {"digits": 100} and FIELD_MANAGER not in managers

    def events(self) -> list[dict[str, Any]]:
        found = self.api.objects("events", NAMESPACE)
        return [each for each in found if each["reason"] == "CanaryRolledBack"]


@pytest.fixture(scope="module")
def cluster(control_plane: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("rollback")
    gateway_api = module_folder(GATEWAY_API, folder)
    crds = gateway_api / "config" / "crd" / "standard"
    control_plane.shell(f"kubectl apply --server-side --filename {crds}")
    account = {"name": "inference", "namespace": NAMESPACE}
    add_nodes(control_plane, range(NODE, NODE + 1), "NVIDIA-L4")
    try:
        with api_server(control_plane) as api:
            made = Cluster(control_plane, api, folder)
            made.apply(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
            )
            yield made
    finally:
        control_plane.shell(f"kubectl delete namespace {NAMESPACE} --timeout=600s")
        control_plane.shell(f"kubectl delete node simulated-{NODE}")


@contextmanager
def started(command: list[str], log: Path, **environment: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}
        )
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(500)


@contextmanager
def prometheus(folder: Path, servers: dict[str, Server]) -> Iterator[str]:
    """Scrape the servers as often as the stack does, with its labels."""
    targets = [
        {
            "targets": [server.admin.base_url.netloc.decode()],
            "labels": {"namespace": NAMESPACE, "service": name, "pod": f"{name}-0"},
        }
        for name, server in servers.items()
    ]
    job = {"job_name": "inference", "scrape_interval": "5s", "static_configs": targets}
    file, port = folder / "prometheus.yaml", free_port()
    file.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    command = [
        str(promtool().with_name("prometheus")),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with started(command, folder / "prometheus.log"):
        url = f"http://127.0.0.1:{port}"
        await_(lambda: _is_ready(f"{url}/-/ready"), "Prometheus")
        yield url


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


@contextmanager
def rolling_back(cluster: Cluster, service: Any) -> Iterator[None]:
    """Run the pod's command with the rights of its service account."""
    cluster.apply(*rollback_objects(service, stable_backends(service)))
    account = "digits-rollback"
    token = cluster.platform.shell(f"kubectl create token {account} -n {NAMESPACE}").strip()
    kubeconfig = json.loads(cluster.platform.shell("kubectl config view --raw --minify -o json"))
    kubeconfig["users"][0]["user"] = {"token": token}
    kubeconfig["contexts"][0]["context"]["namespace"] = NAMESPACE
    file = cluster.folder / "kubeconfig"
    file.write_text(json.dumps(kubeconfig))
    objects = {each["kind"]: each for each in rollback_objects(service, stable_backends(service))}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    command = [sys.executable, *container["command"][1:]]
    with started(command, cluster.folder / "rollback.log", KUBECONFIG=str(file)):
        yield


@dataclass
class Load(Background):
    """Clients that choose a version according to the weights of the route."""

    cluster: Cluster
    urls: dict[str, str]
    outcomes: Counter[tuple[str, int]] = field(default_factory=Counter)
    weights: dict[str, int] = field(default_factory=lambda: {"digits": 100})
    in_flight: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()

    def _work(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        async with (
            httpx.AsyncClient(timeout=20, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._follow())
            for _ in range(CLIENTS):
                group.create_task(self._call(client))

    async def _follow(self) -> None:
        while not self._ending.is_set():
            self.weights = await asyncio.to_thread(self.cluster.weights)
            await asyncio.sleep(0.2)

    async def _call(self, client: httpx.AsyncClient) -> None:
        tensor = {"name": "inputs", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 1]}
        while not self._ending.is_set():
            names, weights = zip(*self.weights.items(), strict=True)
            (name,) = random.choices(names, weights)  # noqa: S311
            self.in_flight[name] += 1
            answer = await client.post(self.urls[name], json={"inputs": [tensor]})
            self.in_flight[name] -= 1
            self.outcomes[name, answer.status_code] += 1
            await asyncio.sleep(PAUSE)

    def uses_canary(self) -> bool:
        """Return whether clients still choose the canary or wait for its responses."""
        return "digits-canary" in self.weights or self.in_flight["digits-canary"] > 0

    def failed(self) -> int:
        return sum(count for (_, code), count in self.outcomes.items() if code != 200)


@pytest.mark.parametrize("fault", ["Broken", "Slow"])
def test_a_bad_canary_under_load_is_rolled_back(
    cluster: Cluster, tmp_path: Path, fault: str
) -> None:
    write_probe(tmp_path / "export")
    bad = f"s3://models/{fault.lower()}/export"
    handlers = {"digits": "Probe", "digits-canary": fault}
    with ExitStack() as stack:
        servers = {}
        for name, handler in handlers.items():
            (tmp_path / name).mkdir()
            settings = {"name": "probe", "handler": f"{PROBES}:{handler}"}
            servers[name] = stack.enter_context(
                serving(tmp_path / name, tmp_path / "export", **settings)
            )
            servers[name].wait_until_ready()
        url = stack.enter_context(prometheus(tmp_path, servers))
        before = canary_service(url, weight=0, url=bad)
        service = canary_service(url, url=bad)
        cluster.apply(*build_canary(before), *routes(before))
        cluster.platform.shell(
            f"kubectl rollout status -n {NAMESPACE} deployment/digits-canary --timeout=600s"
        )
        stack.enter_context(rolling_back(cluster, service))
        urls = {
            name: f"{server.client.base_url}/v2/models/probe/infer"
            for name, server in servers.items()
        }
        load = stack.enter_context(Load(cluster, urls))
        await_(lambda: load.outcomes["digits", 200] > 200, "requests")
        assert load.failed() == 0
        cluster.apply(*routes(service))
        assert cluster.weights() == {"digits": 80, "digits-canary": 20}
        began = time.monotonic()
        await_(cluster.is_rolled_back, "the rollback")
        taken = time.monotonic() - began
        _log.info("%s: %.1f s, %d failed: %s", fault, taken, load.failed(), load.outcomes)
        # No request to the stable version fails, and none after the rollback.
        await_(lambda: not load.uses_canary(), "the last response of the canary")
        settled = load.failed()
        time.sleep(3)
        assert load.failed() == settled
        assert {name for (name, code) in load.outcomes if code != 200} <= {"digits-canary"}
        assert "more than" in cluster.route()["metadata"]["annotations"][ROLLED_BACK]
        known = len(cluster.events())
        assert known >= 1

        # An update of the stack, without force, neither fails nor undoes the rollback.
        again = canary_service(url, weight=50, url=bad)
        cluster.apply(*routes(again))
        await_(cluster.is_rolled_back, "the rollback again")
        assert len(cluster.events()) == known + 1
        # The next canary receives its share of requests.
        better = canary_service(url, url="s3://models/better/export", weight=10)
        cluster.apply(*routes(better))
        time.sleep(2)
        assert cluster.weights() == {"digits": 90, "digits-canary": 10}
