"""Nodes that exist only in the API server: kwok reports them as Ready and simulates their pods."""

import json
import subprocess
import time
from collections.abc import Sequence

from kube.accelerators import NVIDIA_GPU
from kube.names import GPU_COUNT_LABEL, GPU_PRODUCT_LABEL
from simulation import ClusterError

GPUS = 8
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", NVIDIA_GPU: str(GPUS)}
NEW_NODE_TAINT = "node.kubernetes.io/not-ready"
"""Taint of new nodes. Controllers remove it shortly after a node becomes Ready."""
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}


def manifest(index: int, product: str, *, tainted: bool = False) -> dict[str, object]:
    """Return a Node with eight GPUs.

    `tainted` adds a taint, so that only pods that tolerate the taint run on the node.
    """
    labels = {
        "type": "kwok",
        "kubernetes.io/hostname": f"simulated-{index}",
        "kubernetes.io/os": "linux",
        "nvidia.com/gpu.present": "true",
        GPU_PRODUCT_LABEL: product,
        GPU_COUNT_LABEL: str(GPUS),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"simulated-{index}",
            "labels": labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [TAINT] if tainted else []},
        "status": {"capacity": CAPACITY, "allocatable": CAPACITY},
    }


def ensure(count: int, product: str, kubectl: Sequence[str], *, tainted: bool = False) -> None:
    """Create or update the nodes, and wait until all of them are Ready.

    Raises:
        ClusterError: If the nodes do not become Ready in time.
        CalledProcessError: If kubectl fails.
    """
    if not count:
        return
    nodes = [manifest(index, product, tainted=tainted) for index in range(count)]
    subprocess.run(
        [*kubectl, "apply", "--server-side", "--force-conflicts", "--filename=-"],
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}),
        text=True,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    deadline = time.monotonic() + 60 + count / 10
    while (ready := _count_ready(kubectl)) < count:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{ready} of {count} simulated nodes are Ready: kwok is too slow "
                "or has exited (`make logs` prints the path of its log)"
            )
        time.sleep(0.2)


def _count_ready(kubectl: Sequence[str]) -> int:
    """Count the nodes that accept pods: they are Ready and lack the taint of new nodes."""
    # `kubectl wait` checks one node after another, which takes minutes for a thousand nodes.
    each = '{.status.conditions[?(@.type=="Ready")].status} {.spec.taints[*].key}'
    template = f'{{range .items[*]}}{each}{{"\\n"}}{{end}}'
    command = [*kubectl, "get", "nodes", "--selector=type=kwok", f"--output=jsonpath={template}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum("True" in line and NEW_NODE_TAINT not in line for line in lines.splitlines())
