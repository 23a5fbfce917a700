"""What has to fit within one job: every contradiction is a sentence that begins with a verb."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from infra.settings.jobs import tensorflow
from infra.settings.jobs.capabilities import missing_capabilities
from infra.settings.jobs.mounts import TAKEN_VOLUMES
from infra.settings.jobs.steps import order_problem
from kube.kinds import KINDS
from kube.shared_memory import shm_problem

if TYPE_CHECKING:
    from infra.settings.training import TrainingJobSettings

RESERVED_ANNOTATIONS = ("scheduling.k8s.io/", "scheduling.volcano.sh/", "volcano.sh/")
"""Beginnings of annotations that decide how a pod is placed, and so belong to the builders."""


def contradictions(job: TrainingJobSettings) -> Iterator[str]:
    """Everything within the job that does not fit together."""
    yield from missing_capabilities(job)
    yield from _program(job)
    yield from _size(job)
    yield from _network(job)
    yield from _surroundings(job)


def _program(job: TrainingJobSettings) -> Iterator[str]:
    if job.hyperparameters is None and job.command is None:
        yield "has neither hyperparameters nor command: write one of them"
    if job.hyperparameters is not None and job.command is not None:
        yield "has hyperparameters and command: write one of them, a command takes its own flags"
    if job.hyperparameters is not None and KINDS[job.kind].program == tensorflow.PROGRAM:
        for sentence in tensorflow.unfollowed(job.hyperparameters):
            yield f"has hyperparameters whose {sentence}"


def _size(job: TrainingJobSettings) -> Iterator[str]:
    if job.min_nodes is not None and job.min_nodes > job.nodes:
        yield (
            f"has min_nodes {job.min_nodes}, more than nodes {job.nodes}: nodes is the most, "
            "min_nodes the fewest"
        )
    if job.node_gpus is not None and job.node_gpus < job.gpus_per_node:
        yield (
            f"has node_gpus {job.node_gpus}, but gpus_per_node {job.gpus_per_node}: no such node "
            "has room for a pod"
        )
    if problem := shm_problem(job.shared_memory, job.memory):
        yield problem
    if job.whole_node and not job.spread:
        yield "has whole_node, but spread false: pods with a node each are spread, leave spread out"


def _network(job: TrainingJobSettings) -> Iterator[str]:
    if job.rdma is not None and job.nodes == 1:
        yield "has rdma but a single node: leave rdma out, or write nodes above 1"
    if job.nccl is None:
        return
    if job.nodes == 1:
        yield "has nccl but a single node, within which it needs no network: leave nccl out"
    if job.nccl.uses_rdma and job.rdma is None:
        yield (
            f"has nccl.network {job.nccl.network!r}, but no rdma: write the device that the pods "
            "get (rdma.resource and rdma.interface), or network tcp"
        )
    if not job.nccl.uses_rdma and job.rdma is not None:
        yield "has nccl.network 'tcp', but rdma: leave rdma out, or write infiniband or roce"
    decided = set(job.nccl.to_environment("eth0")) & set(job.env)
    if decided:
        yield f"sets {sorted(decided)[0]} in env, which nccl decides: write it in one place"


def _surroundings(job: TrainingJobSettings) -> Iterator[str]:
    twice = set(job.env) & set(job.env_from)
    if twice:
        yield f"has {sorted(twice)[0]} in env and in env_from: write it in one of them"
    for name in job.volumes:
        if name in TAKEN_VOLUMES:
            yield f"has a volume {name!r}, a name that is taken: choose another"
    paths = [volume.path.rstrip("/") for volume in job.volumes.values()]
    for path in sorted({path for path in paths if paths.count(path) > 1}):
        yield f"has two volumes at {path}: give each a path of its own"
    for name in job.annotations:
        if name.startswith(RESERVED_ANNOTATIONS):
            yield f"sets annotations.{name}, which decides the placement: leave it out"
    problem = order_problem(job.steps, job.after)
    if problem is not None:
        yield problem
    if job.steps and job.ttl_seconds is not None:
        # A JobFlow makes a job of its steps that is missing again, at every change of another.
        yield (
            f"has steps and ttl_seconds {job.ttl_seconds}: Volcano would run a step again as soon "
            "as its job was removed, so leave ttl_seconds out and remove the finished run yourself"
        )
    if any(step.writes_datasets for step in job.steps.values()) and job.datasets is None:
        yield "has a step with writes_datasets, but no datasets: write the claim"
