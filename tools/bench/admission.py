"""Latency of pod creation with and without admission policies, for `make bench-policies`."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
import yaml

from devcluster import lifecycle
from devcluster.lifecycle import Cluster
from devcluster.progress import Reporter
from devcluster.spec import Kind, cluster_spec
from gitops.forecast.sandbox import connect
from policies.admission import manifests
from policies.catalogue import RULES
from policies.configuration import configure
from tools.bench.outcome import print_line
from tools.bench.workloads import Manifest, pod

WITHOUT, WITH = "pod creation", "pod creation with admission"
_PODS = "/api/v1/namespaces/default/pods"
_POLICY_DELAY = 5
"""Time (s) until the API server enforces new policies."""


def measure(repetitions: int, pods: int = 200) -> dict[str, list[float]]:
    """Return the median time (s) to create a pod in each round, without and with policies.

    Each round creates its pods one after another in a separate cluster without nodes.
    """
    samples: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    with tempfile.TemporaryDirectory(prefix="admission-") as directory:
        os.environ["GPU_PLATFORM_STATE"] = directory
        try:
            cluster = lifecycle.up(cluster_spec(Kind.SIMULATED, 0), Reporter())
            with connect(cluster.layout.kubeconfig) as client:
                _create_pods(client, pods)  # opens connections and fills caches; not measured
                for turn in range(repetitions):
                    samples[WITHOUT].append(_create_pods(client, pods))
                    with _enforced_policies(cluster):
                        samples[WITH].append(_create_pods(client, pods))
                    medians = [f"{1000 * values[-1]:.1f} ms" for values in samples.values()]
                    print_line(f"  {turn + 1}/{repetitions} without and with policies: {medians}")
        finally:
            lifecycle.down(Kind.SIMULATED, purge=True)
    return samples


def _create_pods(client: httpx.Client, count: int) -> float:
    seconds = []
    for number in range(count):
        manifest = pod(f"pod-{number}")
        start = time.perf_counter()
        response = client.post(_PODS, json=manifest)
        seconds.append(time.perf_counter() - start)
        response.raise_for_status()
    client.delete(_PODS, params={"gracePeriodSeconds": 0}).raise_for_status()
    return statistics.median(seconds)


@contextmanager
def _enforced_policies(cluster: Cluster) -> Iterator[None]:
    built = manifests(configure({}, RULES), "deny")
    _kubectl(cluster, ["apply", "--server-side", "--filename=-"], built)
    time.sleep(_POLICY_DELAY)
    yield
    _kubectl(cluster, ["delete", "--filename=-"], built)
    time.sleep(_POLICY_DELAY)


def _kubectl(cluster: Cluster, arguments: Sequence[str], objects: Sequence[Manifest]) -> None:
    command = [*cluster.kubectl, *arguments]
    text = yaml.dump_all(objects, Dumper=yaml.CSafeDumper)
    subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)
