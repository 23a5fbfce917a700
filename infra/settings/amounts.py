"""Resources that jobs and services need simultaneously, and the limits of the namespace quota."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from infra.settings.cluster import GpuSettings
from infra.settings.inference import InferenceSettings
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.monitoring import LogsSettings
from infra.settings.problems import full_key, job_key
from infra.settings.tenancy import TenancySettings
from infra.settings.training import TrainingSettings
from infra.settings.training.job import LauncherSettings, TrainingJobSettings
from kube.kinds import KINDS
from kube.quantities import parse_quantity

PODS: Final = "pods"
"""Name of the quota resource for the number of pods."""


@dataclass(frozen=True)
class Requirement:
    """Resources that a gang or a step's pod needs at the same time.

    `value` is the value of the setting at `key`, which determines the amounts. Error messages use
    `subject`, which names the gang or the step, and `request`, which describes its resources.
    """

    key: str
    value: int
    subject: str
    request: str
    amounts: Mapping[str, Decimal]


def requirements(key: str, job: TrainingJobSettings, gpu_resource: str) -> Iterator[Requirement]:
    """Yield the requirements of the gang as a whole, and of each step's pod."""
    total_gpus = job.min_pods * job.gpus_per_node
    launcher = None
    if KINDS[job.kind].has_launcher:
        launcher = job.launcher or LauncherSettings()
    rdma = {} if job.rdma is None else {job.rdma.resource: Decimal(job.rdma.count * job.min_pods)}
    yield Requirement(
        job_key(key, "nodes"),
        job.min_pods,
        "gang",
        f"{plural(job.min_pods, 'node')} x {plural(job.gpus_per_node, 'GPU')} = "
        f"{total_gpus} {gpu_resource}"
        + (f", and a pod with cpu {launcher.cpu} and memory {launcher.memory}" if launcher else ""),
        {
            **rdma,
            gpu_resource: Decimal(total_gpus),
            PODS: Decimal(job.min_pods + (launcher is not None)),
            "cpu": _total(job.cpu, job.min_pods, launcher.cpu if launcher else "0"),
            "memory": _total(job.memory, job.min_pods, launcher.memory if launcher else "0"),
        },
    )
    for name, step in job.steps.items():
        yield Requirement(
            job_key(key, "steps", name, "gpus"),
            step.gpus,
            f"step {name!r}",
            f"one pod with {step.gpus} {gpu_resource}, cpu {step.cpu} and memory {step.memory}",
            {
                gpu_resource: Decimal(step.gpus),
                PODS: Decimal(1),
                "cpu": parse_quantity(step.cpu),
                "memory": parse_quantity(step.memory),
            },
        )


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, such as `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _total(per_pod: str, pods: int, launcher: str) -> Decimal:
    return parse_quantity(per_pod) * pods + parse_quantity(launcher)


def quota_limits(tenancy: TenancySettings, gpu: GpuSettings) -> list[tuple[str, str, Decimal]]:
    """Return the key, the resource and the maximum amount of each limit in the quota."""
    devices = [
        (full_key("tenancy", "quota", "devices", name), name, Decimal(limit))
        for name, limit in tenancy.quota.devices.items()
    ]
    resources = {
        "gpus": gpu.offered,
        "cpu": "cpu",
        "memory": "memory",
        "memory_limits": "memory",
        "pods": PODS,
    }
    return devices + [
        (
            full_key("tenancy", "quota", key),
            resource,
            Decimal(limit) if isinstance(limit, int) else parse_quantity(limit),
        )
        for key, resource in resources.items()
        if (limit := getattr(tenancy.quota, key)) is not None
    ]


def services_total(
    inference: InferenceSettings, training: TrainingSettings, gpu: GpuSettings, logs: LogsSettings
) -> Mapping[str, Decimal]:
    """Return the total resources of all service replicas and of the stack's own programs."""
    parts = [_service_amounts(each, gpu, each.max_pods) for each in inference.services.values()]
    return combine(sum, [*parts, programs_total(inference, training, logs)])


def programs_total(
    inference: InferenceSettings,
    training: TrainingSettings,
    logs: LogsSettings,
    job: TrainingJobSettings | None = None,
) -> Mapping[str, Decimal]:
    """Return the total resources of the stack's own programs: its controllers and the recorder.

    If `job` has a schedule, also include the program that starts its runs.
    """
    parts = [_amounts(each.cpu, each.memory, 1) for each in inference.rollbacks.values()]
    if logs.recorder is not None:
        parts.append(_amounts(logs.recorder.cpu, logs.recorder.memory, 1))
    if training.sweeps:
        controller = training.sweep_controller
        parts.append(_amounts(controller.cpu, controller.memory, 1))
    if job is not None and job.schedule is not None:
        parts.append(_amounts(job.schedule.cpu, job.schedule.memory, 1))
    return combine(sum, parts)


def update_surge(inference: InferenceSettings, gpu: GpuSettings) -> Mapping[str, Decimal]:
    """Return, for each resource, the maximum additional amount while one service is updated."""
    services = inference.services.values()
    return combine(max, [_service_amounts(each, gpu, each.update_pods) for each in services])


def largest_gang(training: TrainingSettings, gpu: GpuSettings) -> Mapping[str, Decimal]:
    """Return, for each resource, the maximum amount that a gang or a step's pod needs."""
    return combine(
        max,
        [
            requirement.amounts
            for key, job in training.all_jobs.items()
            for requirement in requirements(key, job, job.gpu_resource or gpu.offered)
        ],
    )


def combine(
    function: Callable[[Iterable[Decimal]], Decimal | int], parts: Iterable[Mapping[str, Decimal]]
) -> Mapping[str, Decimal]:
    """Combine the amounts of each resource with `function`, such as sum or max."""
    values: dict[str, list[Decimal]] = defaultdict(list)
    for part in parts:
        for name, amount in part.items():
            values[name].append(amount)
    return {name: Decimal(function(amounts)) for name, amounts in values.items()}


def _service_amounts(
    service: InferenceServiceSettings, gpu: GpuSettings, pods: int
) -> Mapping[str, Decimal]:
    gpus = {service.gpu_resource or gpu.offered: Decimal(service.gpus * pods)}
    return {**_amounts(service.cpu, service.memory, pods), **gpus}


def _amounts(cpu: str, memory: str, pods: int) -> Mapping[str, Decimal]:
    per_pod = {"cpu": parse_quantity(cpu), "memory": parse_quantity(memory), PODS: Decimal(1)}
    return {name: amount * pods for name, amount in per_pod.items()}


def format_amount(amount: Decimal, name: str) -> str:
    """Format an amount without an exponent, and memory with the largest unit that divides it."""
    for suffix, power in (("Gi", 3), ("Mi", 2), ("Ki", 1)) if name == "memory" else ():
        if amount and amount % 1024**power == 0:
            return f"{amount / 1024**power:f}{suffix}"
    return f"{amount.normalize():f}"
