"""Workloads fit the quota, the queues and the GPUs and networks of the nodes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from infra.settings.cluster import GpuSettings
from infra.settings.inference import InferenceSettings
from infra.settings.problems import full_key, job_key, service_key
from infra.settings.tenancy import TenancySettings
from infra.settings.training.job import LauncherSettings, TrainingJobSettings, TrainingSettings
from infra.settings.volcano import VolcanoSettings
from kube.kinds import KINDS
from kube.quantities import parse_quantity


def gangs_find_room(
    training: TrainingSettings,
    tenancy: TenancySettings,
    volcano: VolcanoSettings,
    gpu: GpuSettings,
) -> Iterator[str]:
    """Check that quota and queue have capacity for each whole gang and for each step's pod.

    Volcano places a gang as a whole or not at all.
    """
    for key, job in training.jobs.items():
        resource = job.gpu_resource or gpu.resource
        queue = volcano.queues.get(job.queue)
        for need in _needs(key, job, resource):
            quota = tenancy.quota.gpus
            if quota is not None and resource == gpu.resource and need.gpus > quota:
                yield (
                    f"{need.here} is {need.value}: {need.asks}, more than "
                    f"{full_key('tenancy', 'quota', 'gpus')} of {quota}. "
                    f"The {need.who} would never start."
                )
            for name, amount in queue.capability.items() if queue else ():
                wanted = need.amounts.get(name, Decimal(0))
                if wanted > parse_quantity(amount):
                    yield (
                        f"{job_key(key, 'queue')} is {job.queue!r}, whose capability of {name} is "
                        f"{amount}, but the {need.who} needs {_plain(wanted)} ({need.asks}). "
                        "It would never start."
                    )


@dataclass(frozen=True)
class _Need:
    """Resources that must be free at once; `here` is the key whose `value` determines them."""

    here: str
    value: int
    who: str
    gpus: int
    asks: str
    amounts: Mapping[str, Decimal]


def _needs(key: str, job: TrainingJobSettings, gpu_resource: str) -> Iterator[_Need]:
    gang = job.min_pods * job.gpus_per_node
    leader = None
    if KINDS[job.kind].has_launcher:
        leader = job.launcher or LauncherSettings()
    yield _Need(
        job_key(key, "nodes"),
        job.min_pods,
        "gang",
        gang,
        f"{job.min_pods} nodes x {job.gpus_per_node} GPUs = {gang} {gpu_resource}"
        + (f", and a pod with {leader.cpu} CPUs and {leader.memory}" if leader else ""),
        {
            gpu_resource: Decimal(gang),
            "cpu": _together(job.cpu, job.min_pods, leader.cpu if leader else "0"),
            "memory": _together(job.memory, job.min_pods, leader.memory if leader else "0"),
        },
    )
    for name, step in job.steps.items():
        yield _Need(
            job_key(key, "steps", name, "gpus"),
            step.gpus,
            f"step {name}",
            step.gpus,
            f"one pod with {step.gpus} {gpu_resource}, {step.cpu} CPUs and {step.memory}",
            {
                gpu_resource: Decimal(step.gpus),
                "cpu": parse_quantity(step.cpu),
                "memory": parse_quantity(step.memory),
            },
        )


def _together(each: str, pods: int, leader: str) -> Decimal:
    return parse_quantity(each) * pods + parse_quantity(leader)


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


def services_find_room(
    inference: InferenceSettings, tenancy: TenancySettings, gpu: GpuSettings
) -> Iterator[str]:
    """Check that the GPU quota suffices for the maximum replicas of all services.

    A rolling update adds a pod before it removes one, and would wait forever without a free GPU.
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
            f"leaves nothing of {full_key('tenancy', 'quota', 'gpus')} of {quota} for the pod that "
            f"an update adds before it removes one: write fewer replicas, or a quota of "
            f"{total + updated}."
        )


def containers_are_admitted(
    training: TrainingSettings, inference: InferenceSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """Check that no container exceeds the memory limit of the namespace."""
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


_FIRST_WITH_TOPOLOGY = [1, 11]


def gpus_are_offered(
    training: TrainingSettings, inference: InferenceSettings, gpu: GpuSettings
) -> Iterator[str]:
    """Check that workloads request GPUs under the names that the nodes offer."""
    sliced = gpu.time_slicing
    offered = f"{gpu.resource}.shared" if sliced and sliced.rename else gpu.resource
    asked = {job_key(key, "gpu_resource"): job.gpu_resource for key, job in training.jobs.items()}
    asked |= {
        service_key(key, "gpu_resource"): service.gpu_resource
        for key, service in inference.services.items()
        if service.gpus > 0
    }
    for here, name in asked.items():
        resource = name or gpu.resource
        if sliced and sliced.rename and resource == gpu.resource:
            yield (
                f"{here} is {resource!r}, but {full_key('gpu', 'time_slicing')} offers shared GPUs "
                f"as {offered}: write that name, or time_slicing.rename: false."
            )
        if resource.startswith("nvidia.com/mig-") and gpu.install and gpu.mig_strategy != "mixed":
            yield (
                f"{here} is {resource!r}, which only {full_key('gpu', 'mig_strategy')} mixed "
                f"offers, but that is {gpu.mig_strategy!r}."
            )


def shared_gpus_are_asked_for_singly(training: TrainingSettings, gpu: GpuSettings) -> Iterator[str]:
    """Check that no pod requests several time-sliced GPUs.

    They may be the same device, over which training hangs.
    """
    sliced = gpu.time_slicing
    offered = f"{gpu.resource}.shared" if sliced and sliced.rename else gpu.resource
    for key, job in training.jobs.items():
        if sliced and (job.gpu_resource or gpu.resource) == offered and job.gpus_per_node > 1:
            yield (
                f"{job_key(key, 'gpus_per_node')} is {job.gpus_per_node}, but GPUs are shared by "
                "time slicing, so that several may be one device: write 1, or no time_slicing."
            )


def direct_networks_are_admitted(
    training: TrainingSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """Check that Pod Security admits RDMA, which needs IPC_LOCK, and host networks."""
    level = tenancy.pod_security
    for key, job in training.jobs.items():
        if job.rdma is not None and level != "privileged":
            yield (
                f"{full_key('tenancy', 'pod_security')} is {level!r}, but {job_key(key, 'rdma')} "
                "needs the capability IPC_LOCK, which only 'privileged' admits."
            )
        if job.host_network and level != "privileged":
            yield (
                f"{full_key('tenancy', 'pod_security')} is {level!r}, but "
                f"{job_key(key, 'host_network')} is true, which only 'privileged' admits."
            )


def topology_is_known(training: TrainingSettings, volcano: VolcanoSettings) -> Iterator[str]:
    """Check that Volcano supports the network topology, which it ignores before 1.11."""
    release = [int(part) for part in volcano.version.removeprefix("v").split(".")[:2]]
    for key, job in training.jobs.items():
        if job.network_topology is not None and release < _FIRST_WITH_TOPOLOGY:
            yield (
                f"{job_key(key, 'network_topology')} is set, but "
                f"{full_key('volcano', 'version')} is {volcano.version}, which does not support "
                "it: write 1.11.0 or later, or the job's `pack` instead."
            )
