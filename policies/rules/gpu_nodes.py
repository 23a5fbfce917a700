"""Rules about the nodes of GPU pods: their taints, their size and shared GPUs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from kube.accelerators import matches
from kube.quantities import quantity_or_none
from policies import cel
from policies.controllers import Workload
from policies.rule import Edit, Level, Rule, Severity, Violation, pod_rule, workload_rule
from policies.settings import GpuConfig, RoleConfig
from policies.values import UNKNOWN, Node
from policies.workloads import Pod


class NodeConfig(RoleConfig):
    """Configuration of `gpu-whole-nodes`."""

    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        description="Number of GPUs per node. If null, the rule is not evaluated.",
    )
    partial_resources: list[str] = Field(
        default=["*mig-*", "*.shared", "*vgpu*", "*mem*", "*core*", "*percentage*"],
        description="Names of resources that are parts of a GPU. The rule does not count them.",
    )


class SharedConfig(RoleConfig):
    """Configuration of `gpu-not-shared`."""

    shared_resources: list[str] = Field(
        default=["*.shared"],
        description="Names of GPU resources for which a device plugin may assign the same device "
        "several times.",
    )


class TolerationConfig(GpuConfig):
    """Configuration of `gpu-toleration`."""

    taints: dict[Annotated[str, AfterValidator(str.lower)], str] = Field(
        default={
            "*nvidia.com*": "nvidia.com/gpu",
            "volcano.sh/vgpu*": "nvidia.com/gpu",
            "*amd.com*": "amd.com/gpu",
            "aws.amazon.com/neuron*": "aws.amazon.com/neuron",
            "google.com/tpu": "google.com/tpu",
        },
        description="Maps resource names to the key of the taint that keeps other pods off nodes "
        "with the resource; `*` matches anything. Resources without an entry need no toleration.",
    )
    taint_values: list[str] = Field(
        default=["present", "true"],
        description="Values of the taints. A toleration must have one of these values, unless "
        "its operator is Exists.",
    )


def _tolerates(toleration: Node, taint: str, config: TolerationConfig) -> bool:
    key, effect = toleration["key"].value, toleration["effect"].value
    if not isinstance(toleration.value, dict) or effect not in (None, "", "NoSchedule", UNKNOWN):
        return False
    operator, value = toleration["operator"].value, toleration["value"].value
    if operator in ("Exists", UNKNOWN):
        return not key or key in (taint, UNKNOWN)
    matches = value is UNKNOWN or value in config.taint_values
    return operator in (None, "", "Equal") and matches and key in (taint, UNKNOWN)


def _missing_taints(pod: Pod, config: TolerationConfig) -> list[str]:
    """Return the taints that a pod must tolerate but does not.

    A pod that requests GPUs only through claims needs to tolerate only one configured taint.
    """
    tolerations = pod.spec["tolerations"]
    containers = pod.gpu_containers(config.accelerators)
    if not containers or not tolerations.complete:
        return []
    names = {name for c in containers for name, _, _ in c.gpus(config.accelerators)}
    keys = {key for name in names if (key := _taint(name, config))}
    if not names:
        keys = set(config.taints.values())
    tolerated = {
        key for key in keys if any(_tolerates(item, key, config) for item in tolerations.items())
    }
    if not names:
        return [] if tolerated else list(config.taints.values())[:1]
    return sorted(keys - tolerated)


def _taint(resource: str, config: TolerationConfig) -> str | None:
    return next((key for name, key in config.taints.items() if matches(resource, [name])), None)


def _toleration(key: str) -> dict[str, str]:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def _add_toleration(pod: Pod, config: TolerationConfig) -> Iterator[Edit]:
    tolerations = pod.spec["tolerations"]
    added = [_toleration(key) for key in _missing_taints(pod, config)]
    if not added:
        return
    if isinstance(tolerations.value, list):
        for index, toleration in enumerate(added, len(tolerations.value)):
            yield Edit((*tolerations.steps, index), toleration)
    else:
        yield Edit(tolerations.steps, added)


@pod_rule(
    name="gpu-toleration",
    description="A GPU pod tolerates the taint of GPU nodes.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Add a toleration with operator Exists and effect NoSchedule for the GPU taint.",
    config=TolerationConfig,
    remedy=_add_toleration,
    admission=cel.gpu_containers(
        "c.?resources.?limits.orValue({}).exists(n,"
        f" {cel.accelerator('n')})"
        " ? c.resources.limits.exists(n,"
        f" {cel.accelerator('n')}"
        " && [pairs(settings.taints).filter(t, n.lowerAscii().matches(t[0]))]"
        ".exists(t, t != [] && !(t[0][1] in variables.tolerated)))"
        " : variables.tolerated == []",
        tolerated="pairs(settings.taints).map(t, t[1]).filter(k,"
        " variables.spec.?tolerations.orValue([]).exists(t,"
        " t.?effect.orValue('') in ['', 'NoSchedule'] && (t.?operator.orValue('') == 'Exists'"
        " ? t.?key.orValue('') in ['', k]"
        " : t.?key.orValue('') == k && t.?value.orValue('') in settings.taintValues)))",
    ),
)
def gpu_toleration(pod: Pod, config: TolerationConfig) -> Iterator[Violation]:
    """A pod that does not tolerate the taint stays pending forever."""
    for key in _missing_taints(pod, config):
        expected = f"{json.dumps(_toleration(key))} among the tolerations"
        yield Violation(pod.spec["tolerations"], expected)


@workload_rule(
    name="gpu-whole-nodes",
    description="No pod requests more GPUs than a node has, and training on several nodes uses "
    "all GPUs of each node.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Request as many GPUs as a node has, or train on one node.",
    config=NodeConfig,
)
def gpu_whole_nodes(workload: Workload, config: NodeConfig) -> Iterator[Violation]:
    """A pod larger than a node never starts, and NVLink connects only GPUs of the same node."""
    if config.gpus_per_node is None:
        return
    pods = [(pod, gpus) for pod in workload.pods if (gpus := _whole_gpus(pod, config))]
    number = workload.count(pod for pod, _ in pods)
    multiple_pods = number is not None and number > 1
    for pod, gpus in pods:
        for name, limits in gpus.items():
            total = sum(quantity_or_none(limit.value) or Decimal(0) for limit in limits)
            needs_whole_node = multiple_pods and pod.role(config) == "training"
            if total > config.gpus_per_node:
                expected = f"at most {config.gpus_per_node} {name} per pod, all GPUs of a node"
                yield Violation(limits[0], expected)
            elif needs_whole_node and total and total != config.gpus_per_node:
                expected = f"{config.gpus_per_node} {name} per pod, all GPUs of a node"
                yield Violation(limits[0], expected)


def _whole_gpus(pod: Pod, config: NodeConfig) -> dict[str, list[Node]]:
    """Map each whole-GPU resource to its limits in the containers that run at the same time."""
    by_resource: dict[str, list[Node]] = defaultdict(list)
    for container in pod.containers:
        for name, _, limit in container.gpus(config.accelerators):
            if container.is_long_running and not matches(name, config.partial_resources):
                by_resource[name].append(limit)
    return by_resource


@pod_rule(
    name="gpu-not-shared",
    description="Training on several GPUs does not use shares of one GPU.",
    severity=Severity.HIGH,
    level=Level.ADVISORY,
    remediation="Request whole GPUs, or a single share.",
    config=SharedConfig,
)
def gpu_not_shared(pod: Pod, config: SharedConfig) -> Iterator[Violation]:
    """Two time slices may share one GPU, and NCCL rejects duplicate devices."""
    if pod.role(config) != "training":
        return
    for container in pod.containers:
        for name, _, limit in container.gpus(config.accelerators):
            amount = quantity_or_none(limit.value)
            if matches(name, config.shared_resources) and amount is not None and amount > 1:
                yield Violation(limit, "1, or whole GPUs instead of shares")


RULES: list[Rule[Any]] = [gpu_toleration, gpu_whole_nodes, gpu_not_shared]
