"""A real gateway in front of the cluster: Traefik, configured with Gateway API objects."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import yaml

from devcluster.paths import cache_root
from devcluster.toolchain import ensure
from tests.cluster.platform import Platform, await_
from tests.training.programs import free_port

GATEWAY = "public"
NAMESPACE = "gateways"
CONTROLLER = "traefik.io/gateway-controller"


def objects(port: int) -> str:
    """Return a Gateway that listens at a port, and the objects that it needs."""
    listener = {
        "name": "http",
        "protocol": "HTTP",
        "port": port,
        "allowedRoutes": {"namespaces": {"from": "All"}},
    }
    made = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": "traefik"},
            "spec": {"controllerName": CONTROLLER},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": GATEWAY, "namespace": NAMESPACE},
            "spec": {"gatewayClassName": "traefik", "listeners": [listener]},
        },
    ]
    return yaml.safe_dump_all(made)


@contextlib.contextmanager
def running(platform: Platform, folder: Path, metrics: str = "") -> Iterator[str]:
    """Run a gateway and yield its address. `metrics` is the address that Prometheus scrapes."""
    tools = ensure("real", cache_root(), sys.stderr.write, ["traefik"])
    port = free_port()
    (gateway_api,) = tools.manifests["traefik"]
    platform.shell(f"kubectl apply --server-side --kustomize {gateway_api}")
    manifests = folder / "gateway.yaml"
    manifests.write_text(objects(port))
    platform.shell(f"kubectl apply --server-side --filename {manifests}")
    kubeconfig = platform.shell('printf %s "$KUBECONFIG"')
    exported = [
        f"--entrypoints.metrics.address={metrics}",
        "--metrics.prometheus.entrypoint=metrics",
        "--metrics.prometheus.addrouterslabels=true",
    ]
    flags = exported if metrics else []
    with (folder / "traefik.log").open("wb") as log:
        process = subprocess.Popen(
            [
                tools.bin / "traefik",
                f"--entrypoints.web.address=127.0.0.1:{port}",
                "--providers.kubernetesgateway",
                *flags,
                "--global.checknewversion=false",
                "--global.sendanonymoususage=false",
                "--log.level=INFO",
            ],
            env={"KUBECONFIG": kubeconfig, "PATH": os.environ["PATH"], "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            await_(lambda: _answers(url), f"the gateway; {folder / 'traefik.log'}")
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _answers(url: str) -> bool:
    """Return whether the gateway responds. It returns 404 until it knows a route."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False).status_code == httpx.codes.NOT_FOUND
    return False
