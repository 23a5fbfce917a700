"""Rules about GPU requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from kube.quantities import parse_quantity, quantity_or_none
from policies import cel
from policies.controllers import Workload
from policies.rule import Level, Rule, Severity, Violation, pod_rule, show, workload_rule
from policies.settings import GpuConfig, Quantity, SystemConfig, TaskConfig
from policies.values import UNKNOWN, Node
from policies.workloads import Pod

RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
"""Kinds of Kubeflow Trainer whose GPUs a TrainJob states."""

_VISIBLE_DEVICES = frozenset(
    f"{vendor}_VISIBLE_DEVICES" for vendor in ("NVIDIA", "AMD", "HABANA", "ASCEND", "MTHREADS")
)
_NO_DEVICES = ("", "none", "void")
_MOUNTED_DEVICES = "/var/run/nvidia-container-devices"
_PLAIN_COUNT = re.compile(r"[1-9][0-9]{0,5}")


class LimitConfig(TaskConfig, SystemConfig):
    """Configuration of `gpu-limit-present`."""

    components: list[str] = Field(
        default=["training", "serving"],
        description="Roles of workloads that need a GPU: `training`, `inference` or both.",
    )
    device_annotations: list[str] = Field(
        default=["*cdi.k8s.io/*", "gpu-fraction*", "gpu-memory", "run.ai/*gpu*", "sharedgpu/*"],
        description="Annotations and labels of pods that assign devices or parts of a GPU; `*` "
        "matches anything.",
    )
    gpu_runtime_classes: list[str] = Field(
        default=["nvidia*"],
        description="Runtime classes that give devices to containers whose image asks for them; "
        "`*` matches anything.",
    )


class MemoryConfig(GpuConfig):
    """Configuration of `gpu-memory-guaranteed`."""

    min_memory: Quantity = Field(
        default="256Mi", description="Minimum memory limit of a GPU container."
    )


class CpuConfig(GpuConfig):
    """Configuration of `gpu-cpu-requested`."""

    min_cpu: Quantity = Field(default="100m", description="Minimum CPU request of a GPU container.")


@workload_rule(
    name="gpu-limit-present",
    description="Training and inference get their GPUs by a limit or a claim, and in no other way.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write resources.limits with the number of GPUs on the container that computes.",
    config=LimitConfig,
    admission=cel.Cel(
        "variables.containers.filter(c, c.?env.orValue([]).exists(e,"
        f" e.name in {cel.literal(sorted(_VISIBLE_DEVICES))} && (has(e.valueFrom)"
        f" || !(e.?value.orValue('') in {cel.literal(_NO_DEVICES)})))"
        " || c.?volumeMounts.orValue([])"
        f".exists(m, m.mountPath.startsWith('{_MOUNTED_DEVICES}'))).map(c, 'container ' + c.name)"
        " + ([variables.template.?metadata.?annotations, variables.template.?metadata.?labels,"
        " object.metadata.?annotations].exists(h, h.orValue({}).exists(n,"
        " n.lowerAscii().matches(pattern(settings.deviceAnnotations)))) ? ['metadata'] : [])"
        " + (variables.spec.?runtimeClassName.orValue('').matches("
        "pattern(settings.gpuRuntimeClasses)) && variables.gpuContainers == []"
        " ? ['runtimeClassName'] : [])",
        cel.ANNOTATED_PODS,
        partial=True,
    ),
)
def gpu_limit_present(workload: Workload, config: LimitConfig) -> Iterator[Violation]:
    """A workload without a GPU limit is placed on a node without GPUs, or sees none."""
    for pod in workload.pods:
        yield from _uncounted_devices(pod, config)
    if workload.resource.is_kind("trainer.kubeflow.org", *RUNTIMES):
        return
    for role in config.components:
        pods = [pod for pod in workload.pods if pod.role(config) == role]
        lacking = [pod for pod in pods if _lacks_limit(pod, config)]
        if len(lacking) < len(pods) and role == "training":
            lacking = _workers_without_gpus(pods, lacking, config)
        elif len(lacking) < len(pods):
            continue
        for pod in lacking[:1]:
            limits = [container.resources["limits"] for container in pod.containers]
            place = limits[0] if limits else pod.spec["containers"]
            yield Violation(
                place,
                'a GPU limit on the container that computes, such as {"nvidia.com/gpu": 1}',
                found=f"{show(place.value)} and no GPU limit in any container of this {role} pod",
            )


def _lacks_limit(pod: Pod, config: LimitConfig) -> bool:
    for container in pod.containers:
        stated = not container.resources["limits"].known or any(
            not limit.absent for _, _, limit in container.gpus(config.accelerators)
        )
        if stated or container.gpu_claims(config.accelerators):
            return False
    return pod.spec["containers"].complete


def _workers_without_gpus(pods: list[Pod], lacking: list[Pod], config: LimitConfig) -> list[Pod]:
    """Return the pods that lack a GPU and are no launchers: neither by name nor the minority."""
    workers = [pod for pod in lacking if not is_cpu_task(pod, config)]
    computing = [pod.replicas for pod in pods if pod not in lacking]
    starting = [pod.replicas for pod in workers]
    if None in computing or None in starting:
        return []
    total = sum((count for count in computing if count is not None), Decimal(0))
    return workers if sum((count or Decimal(0) for count in starting), Decimal(0)) >= total else []


def is_cpu_task(pod: Pod, config: TaskConfig) -> bool:
    """Return whether the pod belongs to a task of a job that needs no GPUs, such as a launcher."""
    node: Node | None = pod.spec
    while node is not None:
        last = str(node.steps[-1]) if node.steps else ""
        names = (last, node["name"].text or "", node["groupName"].text or "")
        for name in names if node.parent is not None else ():
            if any(fnmatchcase(name.lower(), pattern) for pattern in config.cpu_tasks):
                return True
        node = node.parent
    return False


def _uncounted_devices(pod: Pod, config: LimitConfig) -> Iterator[Violation]:
    """Return the ways past the scheduler: the runtime's variables, mounts and annotations."""
    wanted = "nothing, and a GPU limit on the container: the device plugin assigns the devices"
    for container in pod.containers:
        for variable in container.node["env"].items():
            if variable["name"].text in _VISIBLE_DEVICES:
                for key in ("value", "valueFrom"):
                    if variable[key].present and variable[key].value not in _NO_DEVICES:
                        yield Violation(variable[key], wanted)
        for mount in container.node["volumeMounts"].items():
            if (mount["mountPath"].text or "").startswith(_MOUNTED_DEVICES):
                yield Violation(mount["mountPath"], wanted)
    runtime = pod.spec["runtimeClassName"]
    gives_devices = any(fnmatchcase(runtime.text or "", n) for n in config.gpu_runtime_classes)
    counted = pod.resource.kind in RUNTIMES or pod.gpu_containers(config.accelerators)
    if gives_devices and not counted:
        yield Violation(runtime, wanted)
    holders = (pod.metadata["annotations"], pod.metadata["labels"], pod.resource.annotations)
    for name, value in (field for holder in holders for field in holder.fields()):
        if any(fnmatchcase(name.lower(), pattern) for pattern in config.device_annotations):
            yield Violation(value, wanted)


@pod_rule(
    name="gpu-requests-equal-limits",
    description="GPUs are limits; a GPU request, if there is one, equals the limit.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write the GPU under limits, and under requests either nothing or the same number.",
    config=GpuConfig,
)
def gpu_requests_equal_limits(pod: Pod, config: GpuConfig) -> Iterator[Violation]:
    """The API refuses GPUs that are only requested or overcommitted, in the middle of an update."""
    for container in pod.containers:
        for name, request, limit in container.gpus(config.accelerators):
            if request.absent or UNKNOWN in (request.value, limit.value):
                continue
            if limit.absent:
                yield Violation(
                    limit, f"{show(request.value)}, because {name} stands in requests only"
                )
            elif quantity_or_none(request.value) != quantity_or_none(limit.value):
                yield Violation(request, f"{show(limit.value)}, the same as the limit, or nothing")


@pod_rule(
    name="gpu-counts-whole",
    description="Numbers of GPUs are integers from 1, in plain notation.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation='Write a plain number such as 1, not "0.5", "1000m" or "1e0"; for no GPU, nothing.',
    config=GpuConfig,
    admission=cel.containers(
        "[c.?resources.?limits, c.?resources.?requests].exists(r, r.orValue({}).exists(n,"
        f" {cel.accelerator('n')}"
        " && !r.orValue({})[n].matches('^[1-9][0-9]{0,5}$')))"
    ),
)
def gpu_counts_whole(pod: Pod, config: GpuConfig) -> Iterator[Violation]:
    """A limit cannot split a device; sharing is configured in the device plugin."""
    for container in pod.containers:
        for name, request, limit in container.gpus(config.accelerators):
            for amount in (request, limit):
                if amount.present and not _is_plain_count(amount):
                    yield Violation(amount, f"an integer number of {name} such as 1, or omit it")


def _is_plain_count(amount: Node) -> bool:
    value = amount.value
    return not isinstance(value, bool | float) and bool(_PLAIN_COUNT.fullmatch(str(value)))


@pod_rule(
    name="gpu-memory-guaranteed",
    description="A GPU container has a memory limit, and its memory request is equal to it.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write limits.memory, and requests.memory the same or not at all.",
    config=MemoryConfig,
    references=["NSA Resource policies", "OWASP K01"],
    admission=cel.gpu_containers(
        f"[{cel.level('memory')}].exists(l, l == [] || !has(l[0].limits) ||"
        " !('memory' in l[0].limits) ||"
        " quantity(l[0].limits.memory).isLessThan(quantity(settings.minMemory)) ||"
        " l[0].?requests.?memory.orValue(l[0].limits.memory) != l[0].limits.memory)"
    ),
)
def gpu_memory_guaranteed(pod: Pod, config: MemoryConfig) -> Iterator[Violation]:
    """A training pod that exceeds its request takes down the expensive runs of its neighbours."""
    for container in pod.gpu_containers(config.accelerators):
        level = container.level("memory")
        limit, request = level["limits"]["memory"], level["requests"]["memory"]
        if not limit.known:
            continue
        amount = quantity_or_none(limit.value)
        if amount is None or amount < parse_quantity(config.min_memory):
            yield Violation(limit, f"a memory limit from {config.min_memory}, such as 16Gi")
        elif request.present and quantity_or_none(request.value) != amount:
            yield Violation(request, f"{show(limit.value)}, the same as the limit, or nothing")


@pod_rule(
    name="gpu-cpu-requested",
    description="A GPU container requests CPU for its data loaders.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Write requests.cpu. A CPU limit is not required: throttling starves loaders.",
    config=CpuConfig,
    admission=cel.gpu_containers(
        f"[{cel.level('cpu')}].exists(l, l == [] ||"
        " quantity(l[0].?requests.?cpu.or(l[0].?limits.?cpu).orValue('0'))"
        ".isLessThan(quantity(settings.minCpu)))"
    ),
)
def gpu_cpu_requested(pod: Pod, config: CpuConfig) -> Iterator[Violation]:
    """Without a request, data loaders get the remaining CPU time, and the GPU waits."""
    for container in pod.gpu_containers(config.accelerators):
        level = container.level("cpu")
        request, limit = level["requests"]["cpu"], level["limits"]["cpu"]
        effective = limit if request.absent and not limit.absent else request
        if not effective.known:
            continue
        amount = quantity_or_none(effective.value)
        if amount is None or amount < parse_quantity(config.min_cpu):
            yield Violation(effective, f"a CPU request from {config.min_cpu}, such as 4")


RULES: list[Rule[Any]] = [
    gpu_limit_present,
    gpu_requests_equal_limits,
    gpu_counts_whole,
    gpu_memory_guaranteed,
    gpu_cpu_requested,
]
