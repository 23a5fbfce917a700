"""Workloads find room: a gang is placed as a whole or never."""

from collections.abc import Iterator
from decimal import Decimal

from infra.settings.checks.registry import check, job_key, service_key
from infra.settings.gpu import GpuSettings
from infra.settings.inference import InferenceSettings
from infra.settings.problems import full_key
from infra.settings.tenancy import TenancySettings
from infra.settings.training import TrainingJobSettings, TrainingSettings
from infra.settings.types import parse_quantity
from infra.settings.volcano import VolcanoSettings


@check("training", "tenancy", "volcano", "gpu")
def gangs_find_room(
    training: TrainingSettings,
    tenancy: TenancySettings,
    volcano: VolcanoSettings,
    gpu: GpuSettings,
) -> Iterator[str]:
    """A gang is placed as a whole or never: quota and queue must have room for all of it."""
    for key, job in training.jobs.items():
        resource = job.gpu_resource or gpu.resource
        gang = job.fewest_nodes * job.gpus_per_node
        asks = f"{job.fewest_nodes} nodes x {job.gpus_per_node} GPUs = {gang} {resource}"
        quota = tenancy.quota.gpus
        if quota is not None and resource == gpu.resource and gang > quota:
            yield (
                f"{job_key(key, 'nodes')} is {job.fewest_nodes}: {asks}, more than "
                f"{full_key('tenancy', 'quota', 'gpus')} of {quota}. The gang would never start."
            )
        queue = volcano.queues.get(job.queue)
        if queue is None:
            continue
        for name, amount in queue.capability.items():
            need = _gang_need(job, resource, name)
            if need > parse_quantity(amount):
                yield (
                    f"{job_key(key, 'queue')} is {job.queue!r}, whose capability of {name} is "
                    f"{amount}, but the gang needs {_plain(need)} ({asks}). It would never start."
                )


def _gang_need(job: TrainingJobSettings, gpu_resource: str, name: str) -> Decimal:
    """What the whole gang needs of a resource to start."""
    each = {
        gpu_resource: Decimal(job.gpus_per_node),
        "cpu": parse_quantity(job.cpu),
        "memory": parse_quantity(job.memory),
    }
    return each.get(name, Decimal(0)) * job.fewest_nodes


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


@check("inference", "tenancy", "gpu")
def services_find_room(
    inference: InferenceSettings, tenancy: TenancySettings, gpu: GpuSettings
) -> Iterator[str]:
    """The GPUs of all services fit the quota even when every one has all its replicas.

    An update that rolls adds a pod before it takes one away, and would wait for ever without room.
    """
    quota = tenancy.quota.gpus
    on_gpus = [
        service
        for service in inference.services.values()
        if service.gpus > 0 and (service.gpu_resource or gpu.resource) == gpu.resource
    ]
    total = sum(service.most_pods * service.gpus for service in on_gpus)
    updated = max((service.gpus for service in on_gpus), default=0)
    if quota is not None and total > quota:
        yield (
            f"{full_key('inference', 'services')} may use {total} {gpu.resource} in all, more than "
            f"{full_key('tenancy', 'quota', 'gpus')} of {quota}: write fewer replicas or GPUs."
        )
    elif quota is not None and total + updated > quota:
        yield (
            f"{full_key('inference', 'services')} may use {total} {gpu.resource} in all, which "
            f"leaves no room in {full_key('tenancy', 'quota', 'gpus')} of {quota} for the pod that "
            f"an update adds before it takes one away: write fewer replicas, or a quota of "
            f"{total + updated}."
        )


@check("training", "inference", "tenancy")
def containers_are_admitted(
    training: TrainingSettings, inference: InferenceSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """No container is larger than the namespace's limit for one."""
    most = tenancy.limits.max_memory
    workloads = {job_key(key, "memory"): job.memory for key, job in training.jobs.items()}
    for key, job in training.jobs.items():
        if job.launcher is not None:
            workloads[job_key(key, "launcher", "memory")] = job.launcher.memory
        for name, step in job.steps.items():
            workloads[job_key(key, "steps", name, "memory")] = step.memory
    workloads |= {
        service_key(key, "memory"): service.memory for key, service in inference.services.items()
    }
    for here, memory in workloads.items():
        if most is not None and parse_quantity(memory) > parse_quantity(most):
            yield (
                f"{here} is {memory}, more than {full_key('tenancy', 'limits', 'max_memory')} of "
                f"{most}: no such pod is admitted."
            )
