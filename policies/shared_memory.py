"""Rules about /dev/shm, which loaders and NCCL need; its default size is 64 MiB."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.quantities import parse_quantity, quantity_or_none, spell_bytes
from kube.shared_memory import SHARE, largest_shm
from policies.rule import Edit, Level, Rule, Severity, Violation, pod_rule, show
from policies.settings import NoConfig, Quantity, RoleConfig
from policies.values import UNKNOWN, Node
from policies.workloads import Container, Pod

_SHM = "/dev/shm"  # noqa: S108 - a mount point in a pod, not a temporary file
_VOLUME = "shared-memory"


class MountConfig(RoleConfig):
    """Configuration of `shm-mounted`."""

    size: Quantity = Field(
        default="1Gi", description="The size limit that the remediation writes, such as 8Gi."
    )


class ShareConfig(RoleConfig):
    """Configuration of `shm-fits-memory`."""

    share: float = Field(
        default=SHARE,
        gt=0,
        le=1,
        description="Share of a container's memory limit that its memory volumes may use.",
    )


class PerGpuConfig(RoleConfig):
    """Configuration of `shm-per-gpu`."""

    per_gpu: Quantity = Field(default="1Gi", description="Minimum shared memory per GPU.")


def normal_path(value: str) -> str:
    """Return a mount path without trailing or double slashes and without dots."""
    path = posixpath.normpath(value)
    return "/" + path.lstrip("/") if path.startswith("/") else path


def _shm_mounts(container: Container) -> list[Node]:
    return [
        mount
        for mount in container.node["volumeMounts"].items()
        if normal_path(mount["mountPath"].text or "") == _SHM
    ]


def _working_containers(pod: Pod, config: RoleConfig) -> list[Container]:
    """Return the containers of a training pod that load data: with GPUs, or else the main ones."""
    if pod.role(config) != "training":
        return []
    computing = [c for c in pod.gpu_containers(config.accelerators) if c.is_long_running]
    return computing or [c for c in pod.containers if c.kind in ("main", "trainer")]


def _lacking_shm(pod: Pod, config: RoleConfig) -> Iterator[Container]:
    for container in _working_containers(pod, config):
        mounts = container.node["volumeMounts"]
        paths = [mount["mountPath"] for mount in mounts.items()]
        if not mounts.complete or any(path.value is UNKNOWN for path in paths):
            continue
        if not any(_is_whole_volume(mount) for mount in _shm_mounts(container)):
            yield container


def _is_whole_volume(mount: Node) -> bool:
    return not mount["subPath"].present and not mount["subPathExpr"].present


def _mount_shm(pod: Pod, config: MountConfig) -> Iterator[Edit]:
    lacking = [container for container in _lacking_shm(pod, config) if not _shm_mounts(container)]
    if not lacking or pod.volumes.value is UNKNOWN:
        return
    if not any(volume["name"].text == _VOLUME for volume in pod.volumes.items()):
        volume = {"name": _VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": config.size}}
        yield _append(pod.volumes, volume)
    for container in lacking:
        yield _append(container.node["volumeMounts"], {"name": _VOLUME, "mountPath": _SHM})


def _append(place: Node, item: object) -> Edit:
    if isinstance(place.value, list):
        return Edit((*place.steps, len(place.value)), item)
    return Edit(place.steps, [item])


@pod_rule(
    name="shm-mounted",
    description="Training containers mount a volume at /dev/shm.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Mount an emptyDir with medium Memory and a sizeLimit at /dev/shm.",
    config=MountConfig,
    remedy=_mount_shm,
)
def shm_mounted(pod: Pod, config: MountConfig) -> Iterator[Violation]:
    """By default /dev/shm has 64 MiB, and loaders and NCCL die with a bus error."""
    for container in _lacking_shm(pod, config):
        mounts = container.node["volumeMounts"]
        paths = [mount["mountPath"].value for mount in mounts.items()]
        yield Violation(
            mounts,
            '{"name": "shared-memory", "mountPath": "/dev/shm"} without a subPath, and the volume '
            f'{{"name": "shared-memory", "emptyDir": {{"medium": "Memory", "sizeLimit": '
            f'"{config.size}"}}}}',
            found=f"mounts at {show(paths)}" if paths else show(mounts.value),
        )


def _volumes_at_shm(pod: Pod) -> Iterator[tuple[Node, Node | None]]:
    seen = set()
    for container in pod.containers:
        for mount in _shm_mounts(container):
            volume = pod.volume(mount["name"])
            if volume is None and not pod.volume_names_known:
                continue
            place = volume.steps if volume is not None else mount.steps
            if mount["name"].known and place not in seen:
                seen.add(place)
                yield mount, volume


def _bound_shm(pod: Pod, config: MountConfig) -> Iterator[Edit]:
    for _, volume in _volumes_at_shm(pod):
        if volume is None or not isinstance(volume["emptyDir"].value, dict):
            continue
        empty_dir = volume["emptyDir"]
        if empty_dir["medium"].known and empty_dir["medium"].value != "Memory":
            yield Edit(empty_dir["medium"].steps, "Memory")
        if empty_dir["sizeLimit"].known and not _is_size(empty_dir["sizeLimit"]):
            yield Edit(empty_dir["sizeLimit"].steps, config.size)


@pod_rule(
    name="shm-bounded-memory",
    description="The volume at /dev/shm is a memory volume with a size limit.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Make the volume at /dev/shm an emptyDir with medium Memory and a sizeLimit.",
    config=MountConfig,
    remedy=_bound_shm,
)
def shm_bounded_memory(pod: Pod, config: MountConfig) -> Iterator[Violation]:
    """A disk is slow there, and memory without a limit is the node's memory."""
    for mount, volume in _volumes_at_shm(pod):
        if volume is None:
            yield Violation(mount["name"], "the name of a volume of this pod")
            continue
        empty_dir = volume["emptyDir"]
        if not empty_dir.known:
            continue
        if not isinstance(empty_dir.value, dict):
            yield Violation(
                volume, f'emptyDir: {{"medium": "Memory", "sizeLimit": "{config.size}"}}'
            )
            continue
        if empty_dir["medium"].known and empty_dir["medium"].value != "Memory":
            yield Violation(empty_dir["medium"], '"Memory"')
        if empty_dir["sizeLimit"].known and not _is_size(empty_dir["sizeLimit"]):
            yield Violation(empty_dir["sizeLimit"], f"a size such as {config.size}")


def _is_size(node: Node) -> bool:
    amount = quantity_or_none(node.value)
    return amount is not None and amount > 0


@pod_rule(
    name="shm-fits-memory",
    description="A container's memory volumes fit into its memory limit.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Raise limits.memory or lower the sizeLimit: the volume counts as memory.",
    config=ShareConfig,
)
def shm_fits_memory(pod: Pod, config: ShareConfig) -> Iterator[Violation]:
    """Memory volumes count against the limit: one that is too large ends in an OOM kill."""
    for container in pod.containers:
        limit = container.resources["limits"]["memory"]
        allowed = quantity_or_none(limit.value)
        volumes = list(_memory_volumes(pod, container))
        if allowed is None or not volumes:
            continue
        allowed = largest_shm(allowed, config.share)
        for volume in volumes:
            size = volume["emptyDir"]["sizeLimit"]
            if size.absent:
                yield Violation(size, f"a size; at most {spell_bytes(allowed)} fits the container")
        sizes = [volume["emptyDir"]["sizeLimit"] for volume in volumes]
        total = sum((quantity_or_none(size.value) or Decimal(0) for size in sizes), Decimal(0))
        if total > allowed:
            yield Violation(
                sizes[0],
                f"at most {spell_bytes(allowed)} for all memory volumes of the container together, "
                f"or raise its memory limit of {show(limit.value)}",
                found=f"{show([size.value for size in sizes])}, together {spell_bytes(total)}",
            )


def _memory_volumes(pod: Pod, container: Container) -> Iterator[Node]:
    seen = set()
    for mount in container.node["volumeMounts"].items():
        volume = pod.volume(mount["name"])
        if volume is None or volume.steps in seen:
            continue
        seen.add(volume.steps)
        if volume["emptyDir"]["medium"].value == "Memory":
            yield volume


@pod_rule(
    name="shm-per-gpu",
    description="Shared memory grows with the number of GPUs.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Raise the sizeLimit of the volume at /dev/shm, and the memory limit with it.",
    config=PerGpuConfig,
)
def shm_per_gpu(pod: Pod, config: PerGpuConfig) -> Iterator[Violation]:
    """Every process has its own loaders and NCCL buffers there."""
    for container in _working_containers(pod, config):
        limits = [limit for _, _, limit in container.gpus(config.accelerators)]
        count = sum((quantity_or_none(limit.value) or Decimal(0) for limit in limits), Decimal(0))
        least = count * parse_quantity(config.per_gpu)
        for mount in _shm_mounts(container):
            volume = pod.volume(mount["name"])
            if volume is None:
                continue
            size = volume["emptyDir"]["sizeLimit"]
            amount = quantity_or_none(size.value)
            if amount is not None and amount < least:
                yield Violation(size, f"at least {spell_bytes(least)} for {int(count)} GPUs")


@pod_rule(
    name="shm-not-from-host",
    description="Shared memory does not come from the node.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Replace the hostPath by an emptyDir with medium Memory and a sizeLimit.",
    config=NoConfig,
)
def shm_not_from_host(pod: Pod, config: NoConfig) -> Iterator[Violation]:
    """All processes of the node share its /dev/shm, and nobody cleans it up."""
    at_shm = {volume.steps for _, volume in _volumes_at_shm(pod) if volume is not None}
    for volume in pod.volumes.items():
        host_path = volume["hostPath"]
        path = normal_path(host_path["path"].text or "")
        from_shm = path == _SHM or path.startswith(_SHM + "/") or path == "/run/shm"
        if host_path.present and (from_shm or volume.steps in at_shm):
            yield Violation(host_path, 'an emptyDir with medium "Memory" and a sizeLimit instead')


RULES: list[Rule[Any]] = [
    shm_mounted,
    shm_bounded_memory,
    shm_fits_memory,
    shm_per_gpu,
    shm_not_from_host,
]
