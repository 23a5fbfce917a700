"""What has to fit between concerns: each check is told the concerns that it compares.

A check runs only when the concerns that it needs are valid by themselves, so that one mistake is
reported once.
"""

from collections.abc import Callable, Collection, Iterator
from decimal import Decimal
from typing import Final

from infra.settings.gpu import GpuSettings
from infra.settings.images import ImagesSettings
from infra.settings.inference import InferenceSettings
from infra.settings.problems import full_key
from infra.settings.storage import ClaimSettings, StorageSettings
from infra.settings.tenancy import TenancySettings
from infra.settings.training import TrainingJobSettings, TrainingSettings
from infra.settings.types import parse_quantity
from infra.settings.volcano import VolcanoSettings

Check = Callable[..., Iterator[str]]
_Reference = tuple[str, str | None, str, str, Collection[str]]
"""Field, name in it, and the concern, table and keys that it has to be in."""

_BUILT_IN_PRIORITIES: Final = ("system-cluster-critical", "system-node-critical")

CHECKS: list[tuple[tuple[str, ...], Check]] = []


def _check(*concerns: str) -> Callable[[Check], Check]:
    """Register a check and the concerns that are its arguments."""

    def register(check: Check) -> Check:
        CHECKS.append((concerns, check))
        return check

    return register


def _choice(known: Collection[str]) -> str:
    names = sorted(known)
    return f"write one of: {', '.join(names)}" if names else "none is declared yet"


def _job_key(key: str, *path: str) -> str:
    return full_key("training", "jobs", key, *path)


def _service_key(key: str, *path: str) -> str:
    return full_key("inference", "services", key, *path)


@_check("volcano")
def parents_exist(volcano: VolcanoSettings) -> Iterator[str]:
    """A queue's parent is a queue, too."""
    for name, queue in volcano.queues.items():
        if queue.parent is not None and queue.parent not in {*volcano.queues, "root"} - {name}:
            yield (
                f"{full_key('volcano', 'queues', name, 'parent')} is {queue.parent!r}, which is "
                f"no other queue of this stack: {_choice(set(volcano.queues) - {name})}."
            )


@_check("storage")
def claims_fit_their_volumes(storage: StorageSettings) -> Iterator[str]:
    """A claim of a static volume asks for no more than the volume offers."""
    owners: dict[str, str] = {}
    for key, claim in storage.claims.items():
        if claim.volume is None:
            continue
        here = full_key("storage", "claims", key)
        volume = storage.volumes.get(claim.volume)
        if volume is None:
            yield (
                f"{here}.volume is {claim.volume!r}, which is not declared under "
                f"{full_key('storage', 'volumes')}: {_choice(storage.volumes)}."
            )
            continue
        if claim.volume in owners:
            yield (
                f"{here}.volume is {claim.volume!r}, which claim {owners[claim.volume]!r} has "
                "already: a volume serves one claim."
            )
        owners[claim.volume] = key
        if parse_quantity(claim.size) > parse_quantity(volume.capacity):
            yield (
                f"{here}.size is {claim.size}, more than the {volume.capacity} of volume "
                f"{claim.volume!r}."
            )
        if missing := sorted(set(claim.access_modes) - set(volume.access_modes)):
            yield (
                f"{here}.access_modes has {', '.join(missing)}, which volume {claim.volume!r} does "
                f"not offer: it has {', '.join(volume.access_modes)}."
            )
        if claim.storage_class != volume.storage_class:
            yield (
                f"{here}.storage_class is {claim.storage_class!r}, but volume {claim.volume!r} has "
                f"{volume.storage_class!r}: write the same in both."
            )


@_check("training", "volcano", "images", "storage")
def jobs_name_what_exists(
    training: TrainingSettings,
    volcano: VolcanoSettings,
    images: ImagesSettings,
    storage: StorageSettings,
) -> Iterator[str]:
    """Queue, priority class, image and claims of a job are declared in the stack."""
    classes = [*volcano.priority_classes, *_BUILT_IN_PRIORITIES]
    for key, job in training.jobs.items():
        named: tuple[_Reference, ...] = (
            ("queue", job.queue, "volcano", "queues", volcano.queues),
            ("priority_class", job.priority_class, "volcano", "priority_classes", classes),
            ("image", job.image, "images", "workloads", images.workloads),
            ("checkpoints", job.checkpoints, "storage", "claims", storage.claims),
            ("datasets", job.datasets, "storage", "claims", storage.claims),
        )
        for field, name, concern, table, known in named:
            yield from _undeclared(_job_key(key, field), name, full_key(concern, table), known)


@_check("inference", "volcano", "images", "storage", "training")
def services_name_what_exists(
    inference: InferenceSettings,
    volcano: VolcanoSettings,
    images: ImagesSettings,
    storage: StorageSettings,
    training: TrainingSettings,
) -> Iterator[str]:
    """Job, image, claim and priority class of a service are declared in the stack."""
    classes = [*volcano.priority_classes, *_BUILT_IN_PRIORITIES]
    for key, service in inference.services.items():
        named: tuple[_Reference, ...] = (
            ("job", service.job, "training", "jobs", training.jobs),
            ("image", service.image, "images", "workloads", images.workloads),
            ("checkpoints", service.checkpoints, "storage", "claims", storage.claims),
            ("priority_class", service.priority_class, "volcano", "priority_classes", classes),
        )
        for field, name, concern, table, known in named:
            yield from _undeclared(_service_key(key, field), name, full_key(concern, table), known)
        job = training.jobs.get(service.job or "")
        if job is not None and job.checkpoints != service.checkpoints:
            yield (
                f"{_service_key(key, 'checkpoints')} is {service.checkpoints!r}, but job "
                f"{service.job!r} exports to {job.checkpoints!r}: write that one."
            )


def _undeclared(here: str, name: str | None, table: str, known: Collection[str]) -> Iterator[str]:
    if name is not None and name not in known:
        yield f"{here} is {name!r}, which is not declared under {table}: {_choice(known)}."


@_check("training", "tenancy", "volcano", "gpu")
def gangs_find_room(
    training: TrainingSettings,
    tenancy: TenancySettings,
    volcano: VolcanoSettings,
    gpu: GpuSettings,
) -> Iterator[str]:
    """A gang is placed as a whole or never: quota and queue must have room for all of it."""
    for key, job in training.jobs.items():
        resource = job.gpu_resource or gpu.resource
        gang = job.nodes * job.gpus_per_node
        asks = f"{job.nodes} nodes x {job.gpus_per_node} GPUs = {gang} {resource}"
        quota = tenancy.quota.gpus
        if quota is not None and resource == gpu.resource and gang > quota:
            yield (
                f"{_job_key(key, 'nodes')} is {job.nodes}: {asks}, more than "
                f"{full_key('tenancy', 'quota', 'gpus')} of {quota}. The gang would never start."
            )
        queue = volcano.queues.get(job.queue)
        if queue is None:
            continue
        for name, amount in queue.capability.items():
            need = _gang_need(job, resource, name)
            if need > parse_quantity(amount):
                yield (
                    f"{_job_key(key, 'queue')} is {job.queue!r}, whose capability of {name} is "
                    f"{amount}, but the gang needs {_plain(need)} ({asks}). It would never start."
                )


def _gang_need(job: TrainingJobSettings, gpu_resource: str, name: str) -> Decimal:
    """What the whole gang needs of a resource."""
    each = {
        gpu_resource: Decimal(job.gpus_per_node),
        "cpu": parse_quantity(job.cpu),
        "memory": parse_quantity(job.memory),
    }
    return each.get(name, Decimal(0)) * job.nodes


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


@_check("inference", "tenancy", "gpu")
def services_find_room(
    inference: InferenceSettings, tenancy: TenancySettings, gpu: GpuSettings
) -> Iterator[str]:
    """The GPUs of all services fit the quota even when every one has all its replicas."""
    quota = tenancy.quota.gpus
    total = sum(
        service.most_replicas * service.gpus
        for service in inference.services.values()
        if (service.gpu_resource or gpu.resource) == gpu.resource
    )
    if quota is not None and total > quota:
        yield (
            f"{full_key('inference', 'services')} may use {total} {gpu.resource} in all, more than "
            f"{full_key('tenancy', 'quota', 'gpus')} of {quota}: write fewer replicas or GPUs."
        )


@_check("training", "inference", "tenancy")
def containers_are_admitted(
    training: TrainingSettings, inference: InferenceSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """No container is larger than the namespace's limit for one."""
    most = tenancy.limits.max_memory
    workloads = {_job_key(key, "memory"): job.memory for key, job in training.jobs.items()} | {
        _service_key(key, "memory"): service.memory for key, service in inference.services.items()
    }
    for here, memory in workloads.items():
        if most is not None and parse_quantity(memory) > parse_quantity(most):
            yield (
                f"{here} is {memory}, more than {full_key('tenancy', 'limits', 'max_memory')} of "
                f"{most}: no such pod is admitted."
            )


@_check("training", "inference", "storage")
def claims_suit_their_users(
    training: TrainingSettings, inference: InferenceSettings, storage: StorageSettings
) -> Iterator[str]:
    """Pods on several nodes need storage that several nodes can mount."""
    for key, job in training.jobs.items():
        claim = storage.claims.get(job.checkpoints)
        if claim is None:
            continue
        if job.nodes > 1 and "ReadWriteMany" not in claim.access_modes:
            yield (
                f"{_job_key(key, 'checkpoints')} is {job.checkpoints!r}, whose access_modes are "
                f"{', '.join(claim.access_modes)}, but {job.nodes} nodes write checkpoints: it "
                "needs ReadWriteMany."
            )
        for field, name in (("checkpoints", job.checkpoints), ("datasets", job.datasets)):
            if _waits_for_consumer(storage, storage.claims.get(name or "")):
                yield (
                    f"{_job_key(key, field)} is {name!r}, whose storage class binds "
                    "WaitForFirstConsumer: Volcano would wait for the claim and the claim for "
                    "Volcano. Write binding Immediate for the class."
                )
    for key, service in inference.services.items():
        claim = storage.claims.get(service.checkpoints)
        if claim is None or {"ReadWriteMany", "ReadOnlyMany"} & set(claim.access_modes):
            continue
        if service.most_replicas > 1:
            yield (
                f"{_service_key(key, 'replicas')} may become {service.most_replicas}, but claim "
                f"{service.checkpoints!r} is {', '.join(claim.access_modes)}: several pods need "
                "ReadWriteMany or ReadOnlyMany."
            )


def _waits_for_consumer(storage: StorageSettings, claim: ClaimSettings | None) -> bool:
    if claim is None or claim.volume is not None or claim.storage_class is None:
        return False
    storage_class = storage.classes.get(claim.storage_class)
    return storage_class is not None and storage_class.binding == "WaitForFirstConsumer"


@_check("training", "gpu")
def gpus_are_offered(training: TrainingSettings, gpu: GpuSettings) -> Iterator[str]:
    """A job asks for GPUs in the way in which the nodes offer them."""
    sliced = gpu.time_slicing
    offered = f"{gpu.resource}.shared" if sliced and sliced.rename else gpu.resource
    for key, job in training.jobs.items():
        resource = job.gpu_resource or gpu.resource
        here = _job_key(key, "gpu_resource")
        if sliced and sliced.rename and resource == gpu.resource:
            yield (
                f"{here} is {resource!r}, but {full_key('gpu', 'time_slicing')} offers shared GPUs "
                f"as {offered}: write that name, or time_slicing.rename: false."
            )
        if sliced and resource == offered and job.gpus_per_node > 1:
            yield (
                f"{_job_key(key, 'gpus_per_node')} is {job.gpus_per_node}, but GPUs are shared by "
                "time slicing, so that several may be one device: write 1, or no time_slicing."
            )
        if resource.startswith("nvidia.com/mig-") and gpu.install and gpu.mig_strategy != "mixed":
            yield (
                f"{here} is {resource!r}, which only {full_key('gpu', 'mig_strategy')} mixed "
                f"offers, but that is {gpu.mig_strategy!r}."
            )


@_check("training", "tenancy")
def direct_networks_are_admitted(
    training: TrainingSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """RDMA pins memory (IPC_LOCK), which Pod Security admits only as privileged."""
    for key, job in training.jobs.items():
        if job.rdma is not None and tenancy.pod_security != "privileged":
            yield (
                f"{full_key('tenancy', 'pod_security')} is {tenancy.pod_security!r}, but "
                f"{_job_key(key, 'rdma')} needs the capability IPC_LOCK, which only 'privileged' "
                "admits."
            )
