"""Nodes that exist in the API server only: kwok reports them Ready and plays their pods."""

import json
import subprocess
import time

from devcluster.errors import DevclusterError
from devcluster.spec import ClusterSpec, Kind

GPUS = 8
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
NEW = "node.kubernetes.io/not-ready"
"""Taint of a node that was not seen ready yet; controllers take it away a little later."""
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}


def manifest(index: int, spec: ClusterSpec) -> dict[str, object]:
    """A Node of eight GPUs. Beside real nodes it is tainted, so that nothing real lands on it."""
    labels = {
        "type": "kwok",
        "kubernetes.io/hostname": f"simulated-{index}",
        "kubernetes.io/os": "linux",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": spec.gpu_product,
        "nvidia.com/gpu.count": str(GPUS),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"simulated-{index}",
            "labels": labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [TAINT] if spec.kind is Kind.REAL else []},
        "status": {"capacity": CAPACITY, "allocatable": CAPACITY},
    }


def ensure(spec: ClusterSpec, kubectl: list[str]) -> None:
    """Creates the simulated nodes that are not there, and waits until they are ready.

    Raises CalledProcessError, or DevclusterError when they do not become ready.
    """
    if not spec.simulated_nodes:
        return
    nodes = [manifest(index, spec) for index in range(spec.simulated_nodes)]
    subprocess.run(
        [*kubectl, "apply", "--server-side", "--force-conflicts", "--filename=-"],
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}),
        text=True,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    patience = time.monotonic() + 60 + spec.simulated_nodes / 10
    while (ready := _ready(kubectl)) < spec.simulated_nodes:
        if time.monotonic() > patience:
            raise DevclusterError(
                f"{ready} of {spec.simulated_nodes} simulated nodes are ready: kwok is too slow, "
                "or has ended (`make logs` tells where it logs)"
            )
        time.sleep(0.2)


def _ready(kubectl: list[str]) -> int:
    """Nodes that pods can go to: ready, and without the controllers' taint of new nodes."""
    # Not `kubectl wait`, which looks at one node after the other: of a thousand, for minutes.
    each = '{.status.conditions[?(@.type=="Ready")].status} {.spec.taints[*].key}'
    lines = f'{{range .items[*]}}{each}{{"\\n"}}{{end}}'
    ask = [*kubectl, "get", "nodes", "--selector=type=kwok", f"--output=jsonpath={lines}"]
    said = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    return sum("True" in line and NEW not in line for line in said.splitlines())
