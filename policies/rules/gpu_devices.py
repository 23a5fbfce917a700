"""Rule that allows pods to get GPUs only through limits and claims."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from kube.workloads.record import Role
from policies import cel
from policies.controllers import Workload
from policies.pod_parts import normalize_path
from policies.rule import Level, Rule, Severity, Violation, show, workload_rule
from policies.settings import NamePatterns, SystemConfig, TaskConfig
from policies.values import Node
from policies.workloads import Pod

VISIBLE_DEVICES = frozenset(
    {
        *(
            f"{vendor}_VISIBLE_DEVICES"
            for vendor in ("NVIDIA", "AMD", "HABANA", "ASCEND", "MTHREADS")
        ),
        *("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"),
    }
)
NO_DEVICES = ("", "none", "void")
_MOUNTED_DEVICES = "/var/run/nvidia-container-devices"
_GKE_DEVICES = "devices.gke.io/"
"""Prefix of the annotations that expose a pod's GPUs to its sidecars, such as GPUDirect-TCPXO."""


class LimitConfig(TaskConfig, SystemConfig):
    """Configuration of `gpu-limit-present` and `device-names-kept`."""

    components: list[Role] = Field(
        default=["training", "serving"],
        description="Roles whose workloads need a GPU, such as `training` and `serving`.",
    )
    device_annotations: NamePatterns = Field(
        default=[
            *("*cdi.k8s.io/*", "gpu-fraction*", "gpu-memory", "run.ai/*gpu*", "sharedgpu/*"),
            *("io.kubernetes.cri-o.devices", "*devices.noderesource.dev/*", "*devices.nri.io/*"),
            "devices.gke.io/*",
        ],
        description="Pod annotations and labels that assign devices or parts of a GPU; `*` matches "
        "anything.",
    )
    gpu_runtime_classes: list[str] = Field(
        default=["*nvidia*"],
        description="Runtime classes that pass devices to containers whose image requests them; "
        "`*` matches anything.",
    )


@workload_rule(
    name="gpu-limit-present",
    description="Training and inference request their GPUs only through a limit or a claim.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set the number of GPUs in resources.limits of the container that uses them.",
    config=LimitConfig,
    admission=cel.Cel(
        "variables.containers.filter(c, c.?env.orValue([]).exists(e,"
        f" e.name in {cel.literal(sorted(VISIBLE_DEVICES))} && (has(e.valueFrom)"
        f" || !(e.?value.orValue('') in {cel.literal(NO_DEVICES)})))"
        " || c.?envFrom.orValue([]).exists(f, f.?prefix.orValue('') != ''"
        f" && {cel.literal(sorted(VISIBLE_DEVICES))}.exists(n, n.startsWith(f.prefix)))"
        " || c.?volumeMounts.orValue([])"
        f".exists(m, ('/' + {cel.path('m.mountPath')}.join('/')).startsWith('{_MOUNTED_DEVICES}')))"
        ".map(c, 'container ' + c.name)"
        " + ([variables.template.?metadata.?annotations, variables.template.?metadata.?labels,"
        " object.metadata.?annotations].exists(h, h.orValue({}).exists(n,"
        f" !(n.startsWith('{_GKE_DEVICES}') && variables.gpuContainers != [])"
        " && n.lowerAscii().matches(pattern(settings.deviceAnnotations)))) ? ['metadata'] : [])"
        " + (variables.spec.?runtimeClassName.orValue('').matches("
        "pattern(settings.gpuRuntimeClasses)) && variables.gpuContainers == []"
        " ? ['runtimeClassName'] : [])",
        cel.ANNOTATED_PODS,
        partial=True,
    ),
)
def gpu_limit_present(workload: Workload, config: LimitConfig) -> Iterator[Violation]:
    """Without a GPU limit, a workload may get a node without GPUs, or see no GPU on a GPU node."""
    for pod in workload.pods:
        yield from _uncounted_devices(pod, config, is_template=workload.is_template)
    if workload.is_template:
        return
    for role in config.components:
        pods = [pod for pod in workload.pods if pod.role(config) == role]
        without_limit = [pod for pod in pods if _lacks_limit(pod, config)]
        if len(without_limit) < len(pods) and role == "training":
            without_limit = _workers_without_gpus(pods, without_limit, config)
        elif len(without_limit) < len(pods):
            continue
        for pod in without_limit[:1]:
            limits = [container.resources["limits"] for container in pod.containers]
            field = limits[0] if limits else pod.spec["containers"]
            yield Violation(
                field,
                'a GPU limit on the container that uses the GPUs, such as {"nvidia.com/gpu": 1}',
                found=f"{show(field.value)} and no GPU limit in any container of this {role} pod",
            )


def _lacks_limit(pod: Pod, config: LimitConfig) -> bool:
    for container in pod.containers:
        # `gpu-requests-equal-limits` reports GPUs that are only in requests.
        requested = container.gpus(config.accelerators)
        limits, claims = container.resources["limits"], container.resources["claims"]
        known = limits.known and claims.complete and not limits.partial
        if requested or not known or container.gpu_claims(config.accelerators):
            return False
    return pod.spec["containers"].complete


def _workers_without_gpus(
    pods: list[Pod], without_limit: list[Pod], config: LimitConfig
) -> list[Pod]:
    """Return the pods that lack GPUs and are not launchers.

    Pods count as launchers if a pattern in `cpu_tasks` matches their names, or if there are fewer
    of them than pods with GPUs.
    """
    workers = [pod for pod in without_limit if not is_cpu_task(pod, config)]
    with_gpus = [pod.replicas for pod in pods if pod not in without_limit]
    without_gpus = [pod.replicas for pod in workers]
    if None in with_gpus or None in without_gpus:
        return []
    total = sum((count for count in with_gpus if count is not None), Decimal(0))
    return (
        workers if sum((count or Decimal(0) for count in without_gpus), Decimal(0)) >= total else []
    )


def is_cpu_task(pod: Pod, config: TaskConfig) -> bool:
    """Return whether the pod belongs to a task that needs no GPUs, such as a job's launcher."""
    node: Node | None = pod.spec
    while node is not None:
        last = str(node.steps[-1]) if node.steps else ""
        names = (last, node["name"].text or "", node["groupName"].text or "")
        for name in names if node.parent is not None else ():
            if any(fnmatchcase(name.lower(), pattern) for pattern in config.cpu_tasks):
                return True
        node = node.parent
    return False


def _uncounted_devices(pod: Pod, config: LimitConfig, *, is_template: bool) -> Iterator[Violation]:
    """Yield a violation for each field that assigns devices which the pod does not request."""
    expected = "nothing, and write a GPU limit: the device plugin assigns the devices"
    for container in pod.containers:
        for variable in container.node["env"].items():
            if variable["name"].text in VISIBLE_DEVICES:
                for key in ("value", "valueFrom"):
                    if variable[key].present and variable[key].value not in NO_DEVICES:
                        yield Violation(variable[key], expected)
        for source in container.node["envFrom"].items():
            prefix = source["prefix"].text
            if prefix and any(name.startswith(prefix) for name in VISIBLE_DEVICES):
                yield Violation(source["prefix"], expected)
        for mount in container.node["volumeMounts"].items():
            if normalize_path(mount["mountPath"].text or "").startswith(_MOUNTED_DEVICES):
                yield Violation(mount["mountPath"], expected)
    runtime = pod.spec["runtimeClassName"]
    passes_devices = any(fnmatchcase(runtime.text or "", n) for n in config.gpu_runtime_classes)
    counted = is_template or pod.gpu_containers(config.accelerators)
    if passes_devices and not counted:
        yield Violation(runtime, expected)
    for name, value in (*pod.annotations(), *pod.labels(), *pod.resource.annotations.fields()):
        if name.startswith(_GKE_DEVICES) and counted:
            continue
        if any(fnmatchcase(name.lower(), pattern) for pattern in config.device_annotations):
            yield Violation(value, expected)


RULES: list[Rule[Any]] = [gpu_limit_present]
