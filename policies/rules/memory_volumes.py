"""Rules about the sizes of memory volumes, which count against memory limits."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.quantities import parse_quantity, quantity_or_none, spell_bytes
from kube.shared_memory import MEMORY_VOLUME_SHARE, max_memory_volume_bytes
from policies import cel
from policies.rule import Level, Rule, Severity, Violation, pod_rule, show
from policies.rules.shared_memory import (
    gpu_count,
    shm_mounts,
    volumes_at_shm,
    working_containers,
)
from policies.settings import Quantity, RoleConfig, TaskConfig
from policies.values import Key, Node
from policies.workloads import Container, Pod

_CEL_FILLS = (
    "c.?volumeMounts.orValue([]).exists(m, m.name == v.name && !m.?readOnly.orValue(false))"
)
_CEL_OVERSIZED = (
    "(vs.exists(v, !variables.mountsAtShm.exists(names, v.name in names)"
    " && (!has(v.emptyDir.sizeLimit)"
    " || quantity(v.emptyDir.sizeLimit).asApproximateFloat() <= 0.0))"
    " || vs.map(v, !has(v.emptyDir.sizeLimit) ? 0.0"
    " : quantity(v.emptyDir.sizeLimit).asApproximateFloat()).sum()"
    " > quantity({}).asApproximateFloat() * settings.share + 0.001)"
)


class ShareConfig(RoleConfig):
    """Configuration of `shm-fits-memory`."""

    share: float = Field(
        default=MEMORY_VOLUME_SHARE,
        gt=0,
        le=1,
        description="Share of a container's memory limit that its memory volumes may use.",
    )


class PerGpuConfig(TaskConfig):
    """Configuration of `shm-per-gpu`."""

    per_gpu: Quantity = Field(default="1Gi", description="Minimum shared memory per GPU.")


@pod_rule(
    name="shm-fits-memory",
    description="Memory volumes fit into the memory limits of their containers and of the pod.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Raise limits.memory or lower the sizeLimit: the volume counts as memory.",
    config=ShareConfig,
    admission=cel.Cel(
        "variables.containers.filter(c,"
        f" [variables.memoryVolumes.filter(v, {_CEL_FILLS})].exists(vs, vs != []"
        f" && [{cel.resources_that_set('memory')}].exists(l,"
        " l == [] || !('memory' in l[0].?limits.orValue({}))"
        " ? !variables.spec.?ephemeralContainers.orValue([]).exists(e, e.name == c.name)"
        " && !variables.gpuContainers.exists(g, g.name == c.name)"
        f" : {_CEL_OVERSIZED.format('l[0].limits.memory')}))).map(c, 'container ' + c.name)"
        " + (!('memory' in variables.spec.?resources.?limits.orValue({})) ? [] :"
        f" [variables.memoryVolumes.filter(v, variables.containers.exists(c, {_CEL_FILLS}))]"
        ".filter(vs, vs != []"
        f" && {_CEL_OVERSIZED.format('variables.spec.resources.limits.memory')})"
        ".map(vs, 'resources'))"
    ),
)
def shm_fits_memory(pod: Pod, config: ShareConfig) -> Iterator[Violation]:
    """Memory volumes count against memory limits, so an oversized volume causes an OOM kill."""
    mounted: dict[tuple[Key, ...], Node] = {}
    for container in pod.containers:
        volumes = _memory_volumes(pod, container)
        limit = container.effective_resources("memory")["limits"]["memory"]
        # `gpu-memory-guaranteed` reports GPU containers without a memory limit.
        may_lack_limit = container.kind == "ephemeral" or container.requests_gpu(
            config.accelerators
        )
        if volumes and limit.absent and not may_lack_limit:
            yield Violation(limit, "a memory limit, because memory volumes count against it")
        yield from _oversized(pod, volumes, limit, config)
        mounted |= {volume.steps: volume for volume in volumes}
    shared = pod.spec["resources"]["limits"]["memory"]
    if shared.present:
        yield from _oversized(pod, list(mounted.values()), shared, config)


def _oversized(
    pod: Pod, volumes: list[Node], limit: Node, config: ShareConfig
) -> Iterator[Violation]:
    """Yield violations for volumes without a size, and for a total size above the allowed share."""
    memory = quantity_or_none(limit.value)
    if memory is None or not volumes:
        return
    allowed = max_memory_volume_bytes(memory, config.share)
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in volumes]
    # `shm-bounded-memory` reports volumes at /dev/shm without a size.
    at_shm = [volume.steps for _, volume in volumes_at_shm(pod) if volume is not None]
    for volume, size in zip(volumes, sizes, strict=True):
        number = quantity_or_none(size.value)
        # The kubelet ignores a limit of 0.
        if size.known and (number is None or number <= 0) and volume.steps not in at_shm:
            expected = f"a size of at most {spell_bytes(allowed)}, which fits the memory limit"
            yield Violation(size, expected)
    total = sum((quantity_or_none(size.value) or Decimal(0) for size in sizes), Decimal(0))
    if total > allowed:
        yield Violation(
            sizes[0],
            f"at most {spell_bytes(allowed)} for all of these memory volumes together, or raise "
            f"the memory limit of {show(limit.value)}",
            found=f"{show([size.value for size in sizes])}, together {spell_bytes(total)}",
        )


def _memory_volumes(pod: Pod, container: Container) -> list[Node]:
    """Return the memory volumes that a container can fill."""
    volumes: dict[tuple[Key, ...], Node] = {}
    for mount in container.node["volumeMounts"].items():
        volume = pod.volume(mount["name"])
        if volume is None or mount["readOnly"].value is True:
            continue
        if volume["emptyDir"]["medium"].value == "Memory":
            volumes[volume.steps] = volume
    return list(volumes.values())


@pod_rule(
    name="shm-per-gpu",
    description="Shared memory grows with the number of GPUs.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Raise the sizeLimit of the volume at /dev/shm, and the memory limit with it.",
    config=PerGpuConfig,
)
def shm_per_gpu(pod: Pod, config: PerGpuConfig) -> Iterator[Violation]:
    """Every process keeps its data loaders' batches and NCCL buffers in shared memory."""
    for container in working_containers(pod, config):
        count = gpu_count(container, config)
        minimum = count * parse_quantity(config.per_gpu)
        for mount in shm_mounts(container):
            volume = pod.volume(mount["name"])
            if volume is None:
                continue
            size = volume["emptyDir"]["sizeLimit"]
            amount = quantity_or_none(size.value)
            if amount is not None and amount < minimum:
                yield Violation(size, f"at least {spell_bytes(minimum)}, {config.per_gpu} per GPU")


RULES: list[Rule[Any]] = [shm_fits_memory, shm_per_gpu]
