"""Rules about GPU requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from kube.quantities import quantity_or_none
from policies.controllers import Workload
from policies.rule import Edit, Level, Rule, Severity, Violation, pod_rule, show, workload_rule
from policies.settings import GpuConfig, RoleConfig
from policies.values import UNKNOWN, Node
from policies.workloads import Pod

_PLAIN_COUNT = re.compile(r"[1-9][0-9]{0,5}")


class LimitConfig(RoleConfig):
    """Configuration of `gpu-limit-present`."""

    components: list[str] = Field(
        default=["training", "inference"],
        description="Roles of workloads that need a GPU: `training`, `inference` or both.",
    )


class NodeConfig(RoleConfig):
    """Configuration of `gpu-whole-nodes`."""

    gpus_per_node: int | None = Field(
        default=None, ge=1, description="GPUs of one node; the rule is inactive without it."
    )


class SharedConfig(RoleConfig):
    """Configuration of `gpu-not-shared`."""

    shared_resources: list[str] = Field(
        default=["*.shared"],
        description="Names of GPU resources of which several may be the same device.",
    )


class TolerationConfig(GpuConfig):
    """Configuration of `gpu-toleration`."""

    taint_key: str = Field(
        default="nvidia.com/gpu", description="The taint that keeps other pods off GPU nodes."
    )


@workload_rule(
    name="gpu-limit-present",
    description="A training or inference workload states how many GPUs it uses.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write resources.limits with the number of GPUs on the container that computes.",
    config=LimitConfig,
)
def gpu_limit_present(workload: Workload, config: LimitConfig) -> Iterator[Violation]:
    """A workload without a GPU limit is placed on a node without GPUs, or sees none."""
    for role in config.components:
        pods = [pod for pod in workload.pods if pod.role(config) == role]
        containers = [container for pod in pods for container in pod.containers]
        undecided = any(
            container.resources["limits"].value is UNKNOWN for container in containers
        ) or not all(pod.spec["containers"].complete for pod in pods)
        limits = [limit for c in containers for _, _, limit in c.gpus(config.accelerators)]
        claims = [claim for c in containers for claim in c.gpu_claims(config.accelerators)]
        if not pods or undecided or claims or any(not limit.absent for limit in limits):
            continue
        place = containers[0].resources["limits"] if containers else pods[0].spec["containers"]
        yield Violation(
            place,
            'a GPU limit on the container that computes, such as {"nvidia.com/gpu": 1}',
            found=f"{show(place.value)} and no GPU limit in any other container of this {role}",
        )


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
    config=GpuConfig,
    references=["NSA Resource policies", "OWASP K01"],
)
def gpu_memory_guaranteed(pod: Pod, config: GpuConfig) -> Iterator[Violation]:
    """A training pod that exceeds its request takes down the expensive runs of its neighbours."""
    for container in pod.gpu_containers(config.accelerators):
        limit = container.resources["limits"]["memory"]
        request = container.resources["requests"]["memory"]
        if not limit.known:
            continue
        amount = quantity_or_none(limit.value)
        if amount is None or amount <= 0:
            yield Violation(limit, "a memory limit such as 16Gi")
        elif request.present and quantity_or_none(request.value) != amount:
            yield Violation(request, f"{show(limit.value)}, the same as the limit, or nothing")


@pod_rule(
    name="gpu-cpu-requested",
    description="A GPU container requests CPU for its data loaders.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Write requests.cpu. A CPU limit is not required: throttling starves loaders.",
    config=GpuConfig,
)
def gpu_cpu_requested(pod: Pod, config: GpuConfig) -> Iterator[Violation]:
    """Without a request, data loaders get the remaining CPU time, and the GPU waits."""
    for container in pod.gpu_containers(config.accelerators):
        request = container.resources["requests"]["cpu"]
        limit = container.resources["limits"]["cpu"]
        effective = limit if request.absent and not limit.absent else request
        if not effective.known:
            continue
        amount = quantity_or_none(effective.value)
        if amount is None or amount <= 0:
            yield Violation(request, "a CPU request such as 4")


def _tolerates(toleration: Node, taint: str) -> bool:
    key, effect = toleration["key"].value, toleration["effect"].value
    if not isinstance(toleration.value, dict) or effect not in (None, "", "NoSchedule", UNKNOWN):
        return False
    accepted = (taint, UNKNOWN) if key else (key,)
    return key in accepted and (bool(key) or toleration["operator"].value == "Exists")


def _lacks_toleration(pod: Pod, config: TolerationConfig) -> bool:
    tolerations = pod.spec["tolerations"]
    if not pod.gpu_containers(config.accelerators) or not tolerations.complete:
        return False
    return not any(_tolerates(item, config.taint_key) for item in tolerations.items())


def _add_toleration(pod: Pod, config: TolerationConfig) -> Iterator[Edit]:
    tolerations = pod.spec["tolerations"]
    if not _lacks_toleration(pod, config):
        return
    toleration = {"key": config.taint_key, "operator": "Exists", "effect": "NoSchedule"}
    if isinstance(tolerations.value, list):
        yield Edit((*tolerations.steps, len(tolerations.value)), toleration)
    else:
        yield Edit(tolerations.steps, [toleration])


@pod_rule(
    name="gpu-toleration",
    description="A GPU pod tolerates the taint of GPU nodes.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Add a toleration for the GPU taint with operator Exists and effect NoSchedule.",
    config=TolerationConfig,
    remedy=_add_toleration,
)
def gpu_toleration(pod: Pod, config: TolerationConfig) -> Iterator[Violation]:
    """A pod that does not tolerate the taint stays pending forever."""
    if _lacks_toleration(pod, config):
        yield Violation(
            pod.spec["tolerations"],
            f'{{"key": "{config.taint_key}", "operator": "Exists", "effect": "NoSchedule"}}'
            " among the tolerations",
        )


@workload_rule(
    name="gpu-whole-nodes",
    description="Training on several nodes takes all GPUs of each.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Request as many GPUs as a node has, or train on one node.",
    config=NodeConfig,
)
def gpu_whole_nodes(workload: Workload, config: NodeConfig) -> Iterator[Violation]:
    """Two half nodes communicate over the network instead of NVLink."""
    if config.gpus_per_node is None or workload.size is None or workload.size <= 1:
        return
    for pod in workload.pods:
        for container in pod.containers if pod.role(config) == "training" else []:
            for name, _, limit in container.gpus(config.accelerators):
                amount = quantity_or_none(limit.value)
                if amount is not None and amount % config.gpus_per_node != 0:
                    yield Violation(limit, f"{config.gpus_per_node} of {name}, a whole node")


def _is_shared(resource: str, config: SharedConfig) -> bool:
    return any(fnmatchcase(resource.lower(), name.lower()) for name in config.shared_resources)


@pod_rule(
    name="gpu-not-shared",
    description="Training on several GPUs does not use shares of one GPU.",
    severity=Severity.HIGH,
    level=Level.ADVISORY,
    remediation="Request whole GPUs, or a single share.",
    config=SharedConfig,
)
def gpu_not_shared(pod: Pod, config: SharedConfig) -> Iterator[Violation]:
    """Two time slices may be the same device, and NCCL refuses duplicate devices."""
    if pod.role(config) != "training":
        return
    for container in pod.containers:
        for name, _, limit in container.gpus(config.accelerators):
            amount = quantity_or_none(limit.value)
            if _is_shared(name, config) and amount is not None and amount > 1:
                yield Violation(limit, "1, or whole GPUs instead of shares")


RULES: list[Rule[Any]] = [
    gpu_limit_present,
    gpu_requests_equal_limits,
    gpu_counts_whole,
    gpu_memory_guaranteed,
    gpu_cpu_requested,
    gpu_toleration,
    gpu_whole_nodes,
    gpu_not_shared,
]
