"""Simulated cluster for `make bench-scale`, which exists only during the measurement."""

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
from typing import Any

import yaml

from devcluster import lifecycle
from devcluster.lifecycle import Cluster
from devcluster.paths import Layout
from devcluster.progress import Reporter
from devcluster.spec import Kind, cluster_spec
from infra import storage, tenancy, volcano
from infra.manifests import Manifest
from infra.pods import GpuNodes
from infra.settings import StackSettings, validate
from infra.settings.volcano import SchedulerSettings
from infra.training_run import TrainingJobArgs, manifests, run_name
from infra.volcano import scheduler_configuration
from simulation import nodes as simulated_nodes
from tools.bench.outcome import print_line

_BATCH = 250
"""Objects per kubectl command. After 300 requests, a command sends at most 50 requests per second,
so larger batches would be slower."""


@contextmanager
def simulated_cluster(nodes: int) -> Iterator[Cluster]:
    """Run a cluster with a real API server and Volcano, without affecting other clusters.

    Pods with the `KEEP_RUNNING` annotation keep running; other pods of a Job succeed immediately.
    """
    reporter = Reporter()
    with tempfile.TemporaryDirectory(prefix="scale-") as directory:
        os.environ["GPU_PLATFORM_STATE"] = directory
        layout = Layout.of(Kind.SIMULATED)
        layout.scheduler_configuration.parent.mkdir(parents=True)
        text = scheduler_configuration(SchedulerSettings(), hierarchical=False)
        layout.scheduler_configuration.write_text(text)
        bare, complete = cluster_spec(Kind.SIMULATED, 0), cluster_spec(Kind.SIMULATED, nodes)
        try:
            # The first start writes kwok's stages. They are edited before the second start.
            lifecycle.up(bare, reporter)
            lifecycle.down(Kind.SIMULATED, purge=False)
            _keep_pods_running(layout)
            cluster = lifecycle.up(bare, reporter)
            print_line(f"{nodes} simulated nodes")
            simulated_nodes.ensure(nodes, complete.gpu_product, cluster.kubectl)
            _await_volcano(cluster)
            yield replace(cluster, spec=complete)
        finally:
            lifecycle.down(Kind.SIMULATED, purge=True)


def create(cluster: Cluster, objects: Sequence[Manifest]) -> None:
    """Create objects, one request after another. Raise CalledProcessError if a request fails."""
    for first in range(0, len(objects), _BATCH):
        batch = list(objects[first : first + _BATCH])
        subprocess.run(
            [*cluster.kubectl, "create", "--filename=-"],
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": batch}),
            text=True,
            stdout=subprocess.DEVNULL,
            check=True,
        )


def delete_all(cluster: Cluster, *paths: str) -> None:
    """Delete all objects under the given API paths and wait until they are gone."""
    # `kubectl delete --all` waits for one object after another. With a thousand objects, this would
    # take longer than the measurement.
    for path in paths:
        delete = [*cluster.kubectl, "delete", "--raw", path]
        subprocess.run(delete, check=True, stdout=subprocess.DEVNULL)
        query = [*cluster.kubectl, "get", "--raw", f"{path}?limit=1"]
        while json.loads(subprocess.run(query, capture_output=True, check=True).stdout)["items"]:
            time.sleep(0.5)


def _await_volcano(cluster: Cluster) -> None:
    query = [*cluster.kubectl, "get", "queues.scheduling.volcano.sh", "default"]
    for _ in range(60):
        if subprocess.run(query, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(1)
    sys.exit(f"Volcano did not start within a minute; see {cluster.layout.logs}")


def _keep_pods_running(layout: Layout) -> None:
    (file,) = layout.control_plane.rglob("kwok.yaml")
    stages = list(yaml.safe_load_all(file.read_text()))
    (completing,) = (s for s in stages if s["metadata"].get("name") == "pod-complete")
    condition = {"key": f'.metadata.annotations["{KEEP_RUNNING}"]', "operator": "DoesNotExist"}
    completing["spec"]["selector"]["matchExpressions"].append(condition)
    file.write_text(yaml.safe_dump_all(stages))


NAMESPACE = "scale"
QUEUE = "research"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
VOLCANO_JOBS = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{NAMESPACE}/jobs"
KEEP_RUNNING = "gpu-platform.dev/lasts"
"""Annotation of pods that keep running on simulated nodes. Pods without it succeed immediately."""

IMAGE = f"127.0.0.1:5000/gpu-platform/training@sha256:{'7' * 64}"


def configuration(jobs: int, nodes: int, first: int = 0) -> dict[str, Any]:
    """Return the configuration of `jobs` training jobs with `nodes` pods of eight GPUs each.

    Jobs are numbered from `first`. Each job has a different seed and is therefore a different run.
    """
    job = {
        "queue": QUEUE,
        "nodes": nodes,
        "gpus_per_node": 8,
        "cpu": 16,
        "memory": "128Gi",
        "shm": "32Gi",
        "annotations": {KEEP_RUNNING: "yes"},
    }
    program = {"model": "digits-net", "dataset": "digits", "epochs": 20}
    local = {"path": "/var/lib/shared-volumes/checkpoints", "nodes": {"type": ["kwok"]}}
    volume = {"capacity": "5Gi", "access_modes": ["ReadWriteMany"], "local": local}
    return {
        "cluster": {"context": "gpu-platform-simulated"},
        "gpu": {"provider": "existing"},
        "volcano": {"install": False, "queues": {QUEUE: {}}},
        "storage": {
            "volumes": {"checkpoints": volume},
            "claims": {"checkpoints": {"size": "5Gi", "volume": "checkpoints"}},
        },
        "tenancy": {"namespace": NAMESPACE},
        "images": {"workloads": {"training": {"reference": IMAGE}}},
        "training": {
            "jobs": {
                f"job-{number}": {**job, "hyperparameters": {**program, "seed": number}}
                for number in range(first, first + jobs)
            }
        },
    }


def prerequisites(settings: StackSettings) -> list[Manifest]:
    """Return the objects that the jobs of a stack require, in the order of creation."""
    args = tenancy.TenancyArgs(tenancy=settings.tenancy, gpu_resource=settings.gpu.resource)
    claim = {"namespace": NAMESPACE, "name": "checkpoints"}
    return [
        tenancy.namespace(settings.tenancy),
        tenancy.limit_range(args.tenancy),
        *tenancy.manifests(args),
        *(volcano.queue(key, queue) for key, queue in settings.volcano.queues.items()),
        *(storage.volume(key, volume, claim) for key, volume in settings.storage.volumes.items()),
        *(storage.claim(key, NAMESPACE, each) for key, each in settings.storage.claims.items()),
    ]


def gangs(settings: StackSettings) -> list[Manifest]:
    """Return the Volcano Jobs of the stack."""
    created: list[Manifest] = []
    for key, job in settings.training.jobs.items():
        args = TrainingJobArgs(
            key=key,
            job=job,
            namespace=NAMESPACE,
            image=IMAGE,
            image_identity=IMAGE,
            gpu_nodes=GpuNodes(resource=settings.gpu.resource),
            claims={name: name for name in settings.storage.claims},
        )
        created += manifests(args, run_name(args), IMAGE)
    return created


def plain_pods(job: Manifest) -> list[Manifest]:
    """Return the pods of a Volcano Job as plain pods for Kubernetes' default scheduler."""
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **task["template"]["metadata"],
                "name": f"{name}-{task['name']}-{index}",
                "namespace": namespace,
            },
            "spec": {**task["template"]["spec"], "schedulerName": "default-scheduler"},
        }
        for task in job["spec"]["tasks"]
        for index in range(task["replicas"])
    ]


def settings_of(jobs: int, nodes: int) -> StackSettings:
    """Return the stack settings that `configuration` describes."""
    return validate(configuration(jobs, nodes))
