"""Network isolation of a stack, enforced by kube-router on real nodes.

Every refused connection is possible before the enforcer starts.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import cache_root
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import ensure
from kube.kinds.record import RENDEZVOUS_PORT
from kube.names import WORKLOAD_LABEL
from tests.cluster.gangs import MALFORMED_QUEUE, WEBHOOK
from tests.cluster.platform import UPDATE, Platform, await_
from tests.faults.units import Units
from tests.platforms import unavailable

SPEC = cluster_spec(Kind.REAL)
NAMESPACE = "ml-dev"
CALLERS, STRANGERS = "callers", "strangers"
API = (SPEC.control_plane.address, SPEC.network.api_port)
REGISTRY = (SPEC.control_plane.address, SPEC.network.registry_port)
METRICS = 8080
"""Port of Volcano's scheduler."""
WEBHOOKS = 8443
MODEL_LABEL = f"{WORKLOAD_LABEL}=inference"
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""


def waiting(namespace: str, image: str) -> list[dict[str, Any]]:
    """Return a namespace with an idle pod."""
    container = {
        "name": "main",
        "image": image,
        "command": ["python3", "-c", "import signal; signal.pause()"],
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "main", "namespace": namespace},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        },
    ]


@dataclass(frozen=True)
class Isolated:
    """A stack with a training gang and a served model, and pods in two other namespaces."""

    platform: Platform

    @property
    def run(self) -> str:
        return self.platform.run_name()

    def first_pod(self, namespace: str, selector: str) -> dict[str, Any]:
        found = self.platform.kubectl("get", "pods", "-n", namespace, "-l", selector)["items"]
        return next(each for each in found if each["status"]["phase"] == "Running")

    def address(self, namespace: str, selector: str) -> str:
        return str(self.first_pod(namespace, selector)["status"]["podIP"])

    @property
    def server(self) -> str:
        """The name of a pod of the model server."""
        return str(self.first_pod(NAMESPACE, MODEL_LABEL)["metadata"]["name"])

    @property
    def recorder(self) -> str:
        labels = "app.kubernetes.io/name=failure-recorder"
        return str(self.first_pod(NAMESPACE, labels)["metadata"]["name"])

    def connects(self, namespace: str, name: str, host: str, port: int) -> bool:
        """Return True if a pod can open a TCP connection."""
        command = ["kubectl", "exec", "-n", namespace, name, "--", "python3", "-c", CONNECT]
        done = subprocess.run(
            [*command, host, str(port)],
            env=self.platform.shell_environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip() == "connected"

    def connections(self) -> dict[str, bool]:
        """Return which connections are possible, by description."""
        platform = self.platform
        service = platform.outputs()["inference"]["digits"]["service"]
        model = f"{service}.{NAMESPACE}.svc.cluster.local"
        master = self.address(
            NAMESPACE, f"volcano.sh/job-name={self.run},volcano.sh/task-spec=master"
        )
        scheduler = self.address("volcano-system", "app=volcano-scheduler")
        admission = self.address("volcano-system", "app=volcano-admission")
        worker = f"{self.run}-worker-0"
        return {
            f"{source} to {target}": self.connects(*pod, host, port)
            for source, pod, target, host, port in (
                ("caller", (CALLERS, "main"), "the model", model, 8080),
                ("stranger", (STRANGERS, "main"), "the model", model, 8080),
                ("stranger", (STRANGERS, "main"), "rank 0", master, RENDEZVOUS_PORT),
                ("stranger", (STRANGERS, "main"), "Volcano's metrics", scheduler, METRICS),
                ("stranger", (STRANGERS, "main"), "Volcano's webhooks", admission, WEBHOOKS),
                ("worker", (NAMESPACE, worker), "rank 0", master, RENDEZVOUS_PORT),
                ("worker", (NAMESPACE, worker), "the model", model, 8080),
                ("worker", (NAMESPACE, worker), "the API server", *API),
                ("server", (NAMESPACE, self.server), "rank 0", master, RENDEZVOUS_PORT),
                ("server", (NAMESPACE, self.server), "the API server", *API),
                ("recorder", (NAMESPACE, self.recorder), "the API server", *API),
                ("recorder", (NAMESPACE, self.recorder), "the registry", *REGISTRY),
            )
        }


@contextlib.contextmanager
def enforcers(platform: Platform, folder: Path) -> Iterator[None]:
    """Run kube-router's network policy controller in the namespaces of each node."""
    tools = ensure("real", cache_root(), sys.stderr.write, ["kube-router"])
    units = Units(platform.state / "real")
    with contextlib.ExitStack() as stack:
        for node in SPEC.real_nodes:
            command = [
                "nsenter",
                f"--target={units.node(node.name).pid}",
                "--net",
                "--mount",
                str(tools.bin / "kube-router"),
                "--run-firewall=true",
                "--run-router=false",
                "--run-service-proxy=false",
                "--enable-cni=false",
                f"--hostname-override={node.name}",
                f"--kubeconfig={platform.state / 'real' / 'nodes' / node.name / 'kubeconfig'}",
                f"--service-cluster-ip-range={SPEC.network.services}",
                "--health-port=0",
                "--iptables-sync-period=10s",
            ]
            log = stack.enter_context((folder / f"{node.name}.log").open("wb"))
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(_stop, process)
        yield


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="module")
def isolated(real: Platform) -> Iterator[Isolated]:
    if shutil.which("ipset", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        unavailable("ipset is not installed (Debian: ipset)")
    real.reset()
    real.hyperparameters(epochs=10)
    assert "(correct)" in real.make("up")
    served = real.run_name()

    def train_on(config: dict[str, Any]) -> None:
        """Serve the finished run, and start an endless run."""
        config["gpu-platform:inference"]["services"]["digits"].pop("job")
        config["gpu-platform:inference"]["services"]["digits"]["run"] = served
        job = config["gpu-platform:training"]["jobs"]["digits"]
        job["hyperparameters"] |= {"epochs": 5000, "step_delay": 0.05}

    real.edit(train_on)
    real.shell(UPDATE)
    made = Isolated(real)
    image = real.kubectl("get", "pod", made.server, "-n", NAMESPACE)["spec"]["containers"][0]
    manifests = [*waiting(CALLERS, image["image"]), *waiting(STRANGERS, image["image"])]
    file = real.checkout / "callers.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    real.shell(f"kubectl apply --server-side --filename {file}")
    for namespace in (CALLERS, STRANGERS):
        real.shell(f"kubectl wait --for=condition=Ready pod/main -n {namespace} --timeout=600s")
    real.await_epoch(made.run, 1)
    try:
        yield made
    finally:
        real.shell(f"kubectl delete --wait=false --ignore-not-found --filename {file}")


ALLOWED = {
    "caller to the model",
    "stranger to the model",
    "stranger to Volcano's webhooks",
    "worker to rank 0",
    "recorder to the API server",
}
TO_ADDRESS = {"worker to the API server", "server to the API server", "recorder to the registry"}


def possible_connections(isolated: Isolated) -> set[str]:
    return {name for name, connects in isolated.connections().items() if connects}


def test_only_allowed_connections_are_possible_with_network_policies(
    isolated: Isolated, tmp_path: Path
) -> None:
    platform = isolated.platform
    possible = isolated.connections()
    assert all(possible.values()), possible

    with enforcers(platform, tmp_path):
        # The rules of the two nodes are written by separate processes.
        await_(lambda: possible_connections(isolated) == ALLOWED, f"only {ALLOWED}")

        # The gang must resolve its DNS names and reconnect, and the API server must reach webhooks.
        platform.shell(f"kubectl delete pod -n {NAMESPACE} {isolated.run}-worker-0")
        await_(lambda: resumed(platform, isolated.run), "the gang trains again")
        assert WEBHOOK in platform.refusal(MALFORMED_QUEUE)

        platform.edit(restrict)
        platform.shell(UPDATE)
        changed = ALLOWED - {"stranger to the model"} | TO_ADDRESS
        await_(lambda: possible_connections(isolated) == changed, f"only {changed}")


def restrict(config: dict[str, Any]) -> None:
    """Allow only one namespace to call the model, and all pods to reach the control plane."""
    config["gpu-platform:tenancy"]["network"] = {
        "inference_from": [CALLERS],
        "egress_cidrs": [f"{SPEC.control_plane.address}/32"],
    }


def resumed(platform: Platform, run: str) -> bool:
    """Return True if rank 0 has resumed from a checkpoint and completed another epoch."""
    events = [line.get("event") for line in platform.logs(run)]
    return "resume" in events and "epoch" in events[events.index("resume") :]
