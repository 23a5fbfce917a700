"""A simulated cluster of the benchmark's own, which lives as long as it is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import yaml

from benchmarks.outcome import say
from benchmarks.scale_jobs import LASTS
from devcluster import lifecycle, simulated_nodes
from devcluster.lifecycle import Cluster
from devcluster.paths import Layout
from devcluster.progress import Reporter
from devcluster.spec import Kind, cluster_spec
from infra.manifests import Manifest
from infra.scheduler_configuration import scheduler_configuration
from infra.settings.scheduler import SchedulerSettings

_AT_ONCE = 250
"""Objects of one kubectl, which after 300 requests makes no more than 50 a second."""


@contextmanager
def simulated_cluster(nodes: int) -> Iterator[Cluster]:
    """A cluster with real API server and Volcano; other clusters are left alone.

    Pods with the annotation `LASTS` go on running; without it those of a Job end at once.
    """
    reporter = Reporter()
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        os.environ["GPU_PLATFORM_STATE"] = folder
        layout = Layout.of(Kind.SIMULATED)
        layout.scheduler_configuration.parent.mkdir(parents=True)
        text = scheduler_configuration(SchedulerSettings(), hierarchical=False)
        layout.scheduler_configuration.write_text(text)
        bare, whole = cluster_spec(Kind.SIMULATED, 0), cluster_spec(Kind.SIMULATED, nodes)
        try:
            # kwok reads its stages when it starts, and they are there after the first start.
            lifecycle.up(bare, reporter)
            lifecycle.down(Kind.SIMULATED, purge=False)
            _let_pods_last(layout)
            cluster = lifecycle.up(bare, reporter)
            say(f"{nodes} simulated nodes")
            simulated_nodes.ensure(whole, cluster.kubectl)
            _await_volcano(cluster)
            yield replace(cluster, spec=whole)
        finally:
            lifecycle.down(Kind.SIMULATED, purge=True)


def create(cluster: Cluster, objects: Sequence[Manifest]) -> None:
    """Creates objects, in one request after the other. Raises CalledProcessError."""
    for first in range(0, len(objects), _AT_ONCE):
        some = list(objects[first : first + _AT_ONCE])
        subprocess.run(
            [*cluster.kubectl, "create", "--filename=-"],
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": some}),
            text=True,
            stdout=subprocess.DEVNULL,
            check=True,
        )


def delete_all(cluster: Cluster, *paths: str) -> None:
    """Deletes what the API server has under some paths, and waits until it is gone."""
    # Not `kubectl delete --all`, which waits for one object after the other: of a thousand, for
    # longer than they were measured.
    for path in paths:
        delete = [*cluster.kubectl, "delete", "--raw", path]
        subprocess.run(delete, check=True, stdout=subprocess.DEVNULL)
        ask = [*cluster.kubectl, "get", "--raw", f"{path}?limit=1"]
        while json.loads(subprocess.run(ask, capture_output=True, check=True).stdout)["items"]:
            time.sleep(0.5)


def _await_volcano(cluster: Cluster) -> None:
    ask = [*cluster.kubectl, "get", "queues.scheduling.volcano.sh", "default"]
    for _ in range(60):
        if subprocess.run(ask, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(1)
    sys.exit(f"Volcano did not start within a minute; see {cluster.layout.logs}")


def _let_pods_last(layout: Layout) -> None:
    (file,) = layout.control_plane.rglob("kwok.yaml")
    stages = list(yaml.safe_load_all(file.read_text()))
    (completing,) = (s for s in stages if s["metadata"].get("name") == "pod-complete")
    condition = {"key": f'.metadata.annotations["{LASTS}"]', "operator": "DoesNotExist"}
    completing["spec"]["selector"]["matchExpressions"].append(condition)
    file.write_text(yaml.safe_dump_all(stages))
