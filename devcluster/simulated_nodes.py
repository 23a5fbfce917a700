"""Nodes that exist in the API server only: kwok reports them Ready and plays their pods."""

import json
import subprocess

from devcluster.spec import ClusterSpec, Kind

GPUS = 8
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
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
    """Creates the simulated nodes that are not there. Raises CalledProcessError."""
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
    names = [f"node/simulated-{index}" for index in range(spec.simulated_nodes)]
    subprocess.run(
        [*kubectl, "wait", "--for=condition=Ready", "--timeout=60s", *names],
        stdout=subprocess.DEVNULL,
        check=True,
    )
