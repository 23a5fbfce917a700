"""The jobs that the benchmark of scale submits: from settings, by the product's own builders."""

from __future__ import annotations

from typing import Any

from infra import storage, tenancy, volcano
from infra.manifests import Manifest
from infra.pods import GpuNodes
from infra.settings import StackSettings, validate
from infra.training_run import TrainingJobArgs, manifests, run_name

NAMESPACE = "scale"
QUEUE = "research"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
VOLCANO_JOBS = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{NAMESPACE}/jobs"
LASTS = "gpu-platform.dev/lasts"
"""Annotation of pods that go on running on simulated nodes, where those of a job end at once."""

IMAGE = f"127.0.0.1:5000/gpu-platform/training@sha256:{'7' * 64}"


def configuration(jobs: int, nodes: int, first: int = 0) -> dict[str, Any]:
    """Configuration of a stack with `jobs` training jobs of `nodes` pods with eight GPUs each.

    Jobs are numbered from `first`; each has a seed of its own and is a run of its own.
    """
    job = {
        "queue": QUEUE,
        "nodes": nodes,
        "gpus_per_node": 8,
        "cpu": 16,
        "memory": "128Gi",
        "shm": "32Gi",
        "annotations": {LASTS: "yes"},
    }
    program = {"model": "digits-net", "dataset": "digits", "epochs": 20}
    local = {"path": "/var/lib/shared-volumes/checkpoints", "nodes": {"type": ["kwok"]}}
    volume = {"capacity": "5Gi", "access_modes": ["ReadWriteMany"], "local": local}
    return {
        "cluster": {"context": "gpu-platform-simulated"},
        "gpu": {"install": False},
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


def surroundings(settings: StackSettings) -> list[Manifest]:
    """What the jobs of a stack need besides themselves, in the order of creation."""
    space = tenancy.TenancyArgs(tenancy=settings.tenancy, gpu_resource=settings.gpu.resource)
    claim = {"namespace": NAMESPACE, "name": "checkpoints"}
    return [
        tenancy.namespace(settings.tenancy),
        *tenancy.manifests(space),
        *(volcano.queue(key, queue) for key, queue in settings.volcano.queues.items()),
        *(storage.volume(key, made, claim) for key, made in settings.storage.volumes.items()),
        *(storage.claim(key, NAMESPACE, made) for key, made in settings.storage.claims.items()),
    ]


def gangs(settings: StackSettings) -> list[Manifest]:
    """The Volcano Jobs of the stack."""
    made: list[Manifest] = []
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
        made += manifests(args, run_name(args), IMAGE)
    return made


def plain_pods(job: Manifest) -> list[Manifest]:
    """The pods of a Volcano Job, each by itself, for the scheduler that Kubernetes has anyway."""
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


def checked(jobs: int, nodes: int) -> StackSettings:
    """The settings of `configuration`."""
    return validate(configuration(jobs, nodes))
