"""Workloads fit the GPUs and networks as the cluster offers them."""

from collections.abc import Iterator

from infra.settings.checks.registry import check, job_key, service_key
from infra.settings.gpu import GpuSettings
from infra.settings.inference import InferenceSettings
from infra.settings.problems import full_key
from infra.settings.tenancy import TenancySettings
from infra.settings.training import TrainingSettings
from infra.settings.volcano import VolcanoSettings

_FIRST_WITH_TOPOLOGY = [1, 11]


@check("training", "inference", "gpu")
def gpus_are_offered(
    training: TrainingSettings, inference: InferenceSettings, gpu: GpuSettings
) -> Iterator[str]:
    """Workloads ask for GPUs in the way in which the nodes offer them."""
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


@check("training", "gpu")
def shared_gpus_are_asked_for_singly(training: TrainingSettings, gpu: GpuSettings) -> Iterator[str]:
    """Several shares of time-sliced GPUs may be one device, and training over them hangs."""
    sliced = gpu.time_slicing
    offered = f"{gpu.resource}.shared" if sliced and sliced.rename else gpu.resource
    for key, job in training.jobs.items():
        if sliced and (job.gpu_resource or gpu.resource) == offered and job.gpus_per_node > 1:
            yield (
                f"{job_key(key, 'gpus_per_node')} is {job.gpus_per_node}, but GPUs are shared by "
                "time slicing, so that several may be one device: write 1, or no time_slicing."
            )


@check("training", "tenancy")
def direct_networks_are_admitted(
    training: TrainingSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """RDMA pins memory (IPC_LOCK), and Pod Security admits that and host networks to privileged."""
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


@check("training", "volcano")
def topology_is_known(training: TrainingSettings, volcano: VolcanoSettings) -> Iterator[str]:
    """Volcano knows the network's topology from 1.11 on, and drops what it does not know."""
    release = [int(part) for part in volcano.version.removeprefix("v").split(".")[:2]]
    for key, job in training.jobs.items():
        if job.network_topology is not None and release < _FIRST_WITH_TOPOLOGY:
            yield (
                f"{job_key(key, 'network_topology')} is written, but "
                f"{full_key('volcano', 'version')} is {volcano.version}, which does not know it: "
                "write 1.11.0 or later, or the job's `pack` instead."
            )
