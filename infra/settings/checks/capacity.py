"""Checks that workloads fit the quota, the queues, and the GPUs and networks of the nodes."""

from collections.abc import Iterator
from decimal import Decimal

from infra.settings.amounts import (
    format_amount,
    programs_total,
    quota_limits,
    requirements,
    services_total,
    update_surge,
)
from infra.settings.cluster import GpuSettings
from infra.settings.inference import InferenceSettings
from infra.settings.monitoring import LogsSettings
from infra.settings.problems import full_key, job_key, service_key
from infra.settings.storage import StorageSettings
from infra.settings.tenancy import TenancySettings
from infra.settings.training import TrainingSettings
from infra.settings.training.job import LauncherSettings
from infra.settings.volcano import FIRST_WITH_FLOWS, FIRST_WITH_TOPOLOGY, VolcanoSettings
from kube.accelerators import MIG_PREFIX, NVIDIA_GPU, SHARED_SUFFIX
from kube.kinds import KINDS
from kube.kinds.volcano import with_ancestors
from kube.quantities import parse_quantity


def gangs_fit_quota_and_queue(
    training: TrainingSettings,
    inference: InferenceSettings,
    tenancy: TenancySettings,
    volcano: VolcanoSettings,
    gpu: GpuSettings,
    logs: LogsSettings,
) -> Iterator[str]:
    """Check that the quota and each job's queue can admit the whole gang and every step's pod.

    The quota must also admit the stack's own programs, which run at the same time. A queue's jobs
    are also limited by the capabilities of its ancestors. Volcano places a gang as a whole or not
    at all.
    """
    for key, job in training.all_jobs.items():
        programs = programs_total(inference, training, logs, job)
        for requirement in requirements(key, job, job.gpu_resource or gpu.offered):
            for quota, name, limit in quota_limits(tenancy, gpu):
                needed = requirement.amounts.get(name, Decimal(0))
                reserved = programs.get(name, Decimal(0))
                if needed and needed + reserved > limit:
                    amount = f"{format_amount(needed, name)} {name}"
                    exceeds = (
                        f", and the stack's own programs need {format_amount(reserved, name)}. "
                        "Together, they exceed"
                        if reserved
                        else ", more than"
                    )
                    yield (
                        f"{requirement.key} is {requirement.value}: the {requirement.subject} "
                        f"({requirement.request}) needs {amount}{exceeds} {quota} "
                        f"({format_amount(limit, name)}). The {requirement.subject} would never "
                        "start."
                    )
            for description, name, amount, reserved in _capabilities(volcano, job.queue):
                needed = requirement.amounts.get(name, Decimal(0))
                if needed > parse_quantity(amount) - reserved:
                    guaranteed = (
                        f" ({format_amount(reserved, name)} are guaranteed to other child queues)"
                        if reserved
                        else ""
                    )
                    yield (
                        f"{job_key(key, 'queue')} is {description}, whose capability for {name} is "
                        f"{amount}{guaranteed}, but the {requirement.subject} needs "
                        f"{format_amount(needed, name)} ({requirement.request}). The "
                        f"{requirement.subject} would never start."
                    )


def gpus_have_one_quota(tenancy: TenancySettings, gpu: GpuSettings) -> Iterator[str]:
    """Check that GPUs are limited by `tenancy.quota.gpus`, not by `tenancy.quota.devices`."""
    if gpu.offered in tenancy.quota.devices:
        yield (
            f"{full_key('tenancy', 'quota', 'devices', gpu.offered)} limits the stack's GPUs: "
            f"set {full_key('tenancy', 'quota', 'gpus')} instead."
        )


def _capabilities(volcano: VolcanoSettings, queue: str) -> Iterator[tuple[str, str, str, Decimal]]:
    """Yield each limit of a queue and its ancestors.

    The values are the description of the queue, the resource, the amount, and the part of the
    amount that is guaranteed to other queues below the ancestor.
    """
    parents = {name: each.parent for name, each in volcano.queues.items()}
    path = with_ancestors(queue, parents)
    for depth, name in enumerate(path):
        description = repr(queue) if name == queue else f"{queue!r}, below {name!r}"
        if name not in volcano.queues:
            continue
        others = [
            each
            for key, each in volcano.queues.items()
            if each.parent in path[1 : depth + 1] and key not in path
        ]
        for resource, amount in volcano.queues[name].capability.items():
            guarantees = (parse_quantity(each.guarantee.get(resource, "0")) for each in others)
            yield description, resource, amount, sum(guarantees, Decimal(0))


def services_fit_the_quota(
    inference: InferenceSettings,
    training: TrainingSettings,
    tenancy: TenancySettings,
    gpu: GpuSettings,
    logs: LogsSettings,
) -> Iterator[str]:
    """Check that the quota suffices for all service replicas and the stack's own programs.

    A rolling update adds a pod before it removes one. Without capacity for the additional pod, the
    update would wait forever.
    """
    total = services_total(inference, training, gpu, logs)
    surge = update_surge(inference, gpu)
    here = full_key("inference", "services")
    for quota, name, limit in quota_limits(tenancy, gpu):
        used = total.get(name, Decimal(0))
        needed = used + surge.get(name, Decimal(0))
        if used > limit:
            yield (
                f"{here} and the stack's own programs use up to {format_amount(used, name)} "
                f"{name}, more than {quota} ({format_amount(limit, name)}): reduce replicas or "
                "resources."
            )
        elif needed > limit:
            yield (
                f"{here} and the stack's own programs use up to {format_amount(used, name)} "
                f"{name}, and an update needs {format_amount(needed, name)}, because it adds a "
                f"pod before it removes one. This exceeds {quota} ({format_amount(limit, name)}): "
                f"reduce the replicas, or raise the quota to {format_amount(needed, name)}."
            )


def claims_fit_the_quota(storage: StorageSettings, tenancy: TenancySettings) -> Iterator[str]:
    """Check that the quota admits all claims of the stack."""
    limit = tenancy.quota.claims
    if limit is not None and len(storage.claims) > limit:
        yield (
            f"{full_key('storage', 'claims')} has {len(storage.claims)} claims, more than "
            f"{full_key('tenancy', 'quota', 'claims')} ({limit}): set a quota of at least "
            f"{len(storage.claims)}."
        )


def containers_are_admitted(
    training: TrainingSettings,
    inference: InferenceSettings,
    tenancy: TenancySettings,
    logs: LogsSettings,
) -> Iterator[str]:
    """Check that no container exceeds the namespace's maximum memory per container."""
    maximum = tenancy.limits.max_memory
    workloads = {job_key(key, "memory"): job.memory for key, job in training.all_jobs.items()}
    for key, job in training.all_jobs.items():
        if KINDS[job.kind].has_launcher:
            launcher = job.launcher or LauncherSettings()
            workloads[job_key(key, "launcher", "memory")] = launcher.memory
        if job.schedule is not None:
            workloads[job_key(key, "schedule", "memory")] = job.schedule.memory
        for name, step in job.steps.items():
            workloads[job_key(key, "steps", name, "memory")] = step.memory
    workloads |= {
        service_key(key, "memory"): service.memory for key, service in inference.services.items()
    }
    workloads |= {
        service_key(key, "canary", "rollback", "memory"): rollback.memory
        for key, rollback in inference.rollbacks.items()
    }
    if logs.recorder is not None:
        workloads[full_key("logs", "recorder", "memory")] = logs.recorder.memory
    if training.sweeps:
        here = full_key("training", "sweep_controller", "memory")
        workloads[here] = training.sweep_controller.memory
    for here, memory in workloads.items():
        if maximum is not None and parse_quantity(memory) > parse_quantity(maximum):
            yield (
                f"{here} is {memory}, more than {full_key('tenancy', 'limits', 'max_memory')} "
                f"({maximum}): the pods would be rejected."
            )


def gpus_are_offered(
    training: TrainingSettings, inference: InferenceSettings, gpu: GpuSettings
) -> Iterator[str]:
    """Check that workloads request GPU resources that the nodes offer."""
    requested = {
        job_key(key, "gpu_resource"): job.gpu_resource for key, job in training.all_jobs.items()
    }
    requested |= {
        service_key(key, "gpu_resource"): service.gpu_resource
        for key, service in inference.services.items()
        if service.gpus > 0
    }
    for here, name in requested.items():
        resource = name or gpu.offered
        if resource == gpu.resource != gpu.offered:
            yield (
                f"{here} is {resource!r}, but {full_key('gpu', 'time_slicing')} offers shared GPUs "
                f"as {gpu.offered}: use that name, or set time_slicing.rename: false."
            )
        if gpu.provider == "existing":
            continue
        if resource.startswith(MIG_PREFIX):
            if gpu.mig_strategy != "mixed":
                yield (
                    f"{here} is {resource!r}, which is offered only if "
                    f"{full_key('gpu', 'mig_strategy')} is 'mixed', not {gpu.mig_strategy!r}."
                )
        elif resource == NVIDIA_GPU + SHARED_SUFFIX != gpu.offered:
            yield (
                f"{here} is {resource!r}, which is offered only with time slicing: set "
                f"{full_key('gpu', 'time_slicing')}, or use {gpu.offered}."
            )
        elif resource.startswith("nvidia.com/") and resource not in (NVIDIA_GPU, gpu.offered):
            yield (
                f"{here} is {resource!r}, which provider {gpu.provider} does not offer: use "
                f"{gpu.offered}."
            )


def rdma_devices_are_not_gpus(training: TrainingSettings, gpu: GpuSettings) -> Iterator[str]:
    """Check that a job's GPUs and RDMA devices are different resources.

    A pod can request only one amount of each resource.
    """
    for key, job in training.all_jobs.items():
        resource = job.gpu_resource or gpu.offered
        if job.rdma is not None and job.rdma.resource == resource:
            yield (
                f"{job_key(key, 'rdma', 'resource')} is {resource!r}, which is also the "
                "job's GPU resource: set the resource name of the RDMA device, such as rdma/hca."
            )


def pods_request_one_time_sliced_gpu(
    training: TrainingSettings, inference: InferenceSettings, gpu: GpuSettings
) -> Iterator[str]:
    """Check that no pod requests several time-sliced GPUs.

    Several time-sliced GPUs could be shares of the same GPU, so training could hang. Steps and
    services are checked only if the device plugin rejects these pods (`refuse_more_than_one`).
    """
    if gpu.time_slicing is None:
        return
    requested = [
        (job_key(key, "gpus_per_node"), job.gpu_resource, job.gpus_per_node)
        for key, job in training.all_jobs.items()
    ]
    if gpu.time_slicing.refuse_more_than_one:
        requested += [
            (job_key(key, "steps", name, "gpus"), job.gpu_resource, step.gpus)
            for key, job in training.all_jobs.items()
            for name, step in job.steps.items()
        ]
        requested += [
            (service_key(key, "gpus"), service.gpu_resource, service.gpus)
            for key, service in inference.services.items()
        ]
    for path, resource, gpus in requested:
        if (resource or gpu.offered) == gpu.offered and gpus > 1:
            yield (
                f"{path} is {gpus}, but GPUs are shared by time slicing, so several may be shares "
                "of one GPU: set 1, or remove time_slicing."
            )


def node_ports_are_reachable(
    inference: InferenceSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """Check that clients outside the cluster can reach node ports in an isolated namespace."""
    network = tenancy.network
    for key, service in inference.services.items():
        if service.service_type == "NodePort" and network.isolate and not network.inference_cidrs:
            yield (
                f"{service_key(key, 'service_type')} is 'NodePort', but "
                f"{full_key('tenancy', 'network', 'isolate')} allows requests only from pods: list "
                f"the callers' address ranges in "
                f"{full_key('tenancy', 'network', 'inference_cidrs')}."
            )


def host_networks_are_admitted(
    training: TrainingSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """Check that the namespace's Pod Security level admits jobs on the host network."""
    level = tenancy.pod_security
    for key, job in training.all_jobs.items():
        if job.host_network and level != "privileged":
            yield (
                f"{full_key('tenancy', 'pod_security')} is {level!r}, but "
                f"{job_key(key, 'host_network')} is true, which only 'privileged' admits: "
                "set pod_security to privileged, or host_network to false."
            )


def job_settings_are_supported(
    training: TrainingSettings, volcano: VolcanoSettings
) -> Iterator[str]:
    """Check that the Volcano release supports steps, schedules and network topologies of jobs."""
    for key, job in training.all_jobs.items():
        if job.starts_in_flow and volcano.release < FIRST_WITH_FLOWS:
            yield (
                f"{job_key(key, 'steps' if job.steps else 'schedule')} is set, but "
                f"{full_key('volcano', 'version')} is {volcano.version}, which has no JobFlows: "
                "set 1.10.0 or later."
            )
        if job.network_topology is not None and volcano.release < FIRST_WITH_TOPOLOGY:
            yield (
                f"{job_key(key, 'network_topology')} is set, but "
                f"{full_key('volcano', 'version')} is {volcano.version}, which does not support "
                "it: set 1.12.0 or later, or use the job's `pack` instead."
            )
