"""Rules about /dev/shm, which data loaders and NCCL need; its default size is 64 MiB."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.quantities import parse_quantity, quantity_or_none, spell_bytes
from kube.shared_memory import max_memory_volume_bytes
from policies import cel
from policies.pod_parts import normalize_path
from policies.rule import Edit, Level, Rule, Severity, Violation, pod_rule, show
from policies.rules.gpu_devices import is_cpu_task
from policies.settings import Quantity, SystemConfig, TaskConfig
from policies.values import UNKNOWN, Node
from policies.workloads import Container, Pod

_SHM = "/dev/shm"  # noqa: S108 - a mount point in a pod, not a temporary file
_VOLUME = "shared-memory"
_CEL_SOURCE_PATH = "(v.hostPath.path + '/' + m.?subPath.orValue(''))"


class MountConfig(TaskConfig):
    """Configuration of `shm-mounted` and `shm-bounded-memory`."""

    size: Quantity = Field(
        default="1Gi",
        description="Size limit per GPU that the remediation sets, such as 8Gi. The limit is lower "
        "if the memory limit requires it. A container without GPUs gets the limit for one GPU.",
    )
    min_size: Quantity = Field(
        default="64Mi",
        description="Minimum size limit in pods with GPUs. The default size of /dev/shm is 64Mi.",
    )


def shm_mounts(container: Container) -> list[Node]:
    """Return the mounts of a container at /dev/shm."""
    return [
        mount
        for mount in container.node["volumeMounts"].items()
        if normalize_path(mount["mountPath"].text or "") == _SHM
    ]


def working_containers(pod: Pod, config: TaskConfig) -> list[Container]:
    """Return the containers with processes that exchange tensors through shared memory.

    In training pods, these are the containers with GPUs. In other pods, they are the containers
    with several GPUs. For system pods, the list is empty.

    A Kubeflow TrainingRuntime may leave the GPU requests to the TrainJob. In this case, all main
    containers are returned, except the containers of CPU tasks.
    """
    computing = [c for c in pod.gpu_containers(config.accelerators) if c.kind != "ephemeral"]
    if pod.role(config) == "system":
        return []
    if pod.role(config) != "training":
        return [c for c in computing if not pod.partial and gpu_count(c, config) > 1]
    record = pod.resource.record
    if computing or record is None or not record.completed:
        return computing
    return [c for c in pod.containers if c.kind == "main" and not is_cpu_task(pod, config)]


def gpu_count(container: Container, config: TaskConfig) -> Decimal:
    """Return the number of GPUs that a container requests."""
    return sum(container.gpu_counts(config.accelerators).values(), Decimal(0))


def _without_shm(pod: Pod, config: TaskConfig) -> Iterator[Container]:
    for container in working_containers(pod, config):
        mounts = container.node["volumeMounts"]
        paths = [mount["mountPath"] for mount in mounts.items()]
        if not mounts.complete or any(path.value is UNKNOWN for path in paths):
            continue
        if not any(_is_writable_volume(mount) for mount in shm_mounts(container)):
            yield container


def _is_writable_volume(mount: Node) -> bool:
    """Return whether a mount contains the whole volume and is writable."""
    entire_volume = not mount["subPath"].present and not mount["subPathExpr"].present
    return entire_volume and mount["readOnly"].value in (None, False, UNKNOWN)


def _new_size(containers: Iterable[Container], config: MountConfig) -> str:
    """Return the size limit to set: the size for all GPUs, or less to fit the memory limits."""
    containers = list(containers)
    gpus = max((gpu_count(item, config) for item in containers), default=Decimal(1))
    wanted = max(gpus, Decimal(1)) * parse_quantity(config.size)
    limits = (item.effective_resources("memory")["limits"]["memory"] for item in containers)
    amounts = (quantity_or_none(limit.value) for limit in limits)
    sizes = [max_memory_volume_bytes(amount) for amount in amounts if amount]
    fitting = max(min(sizes, default=wanted), parse_quantity(config.min_size))
    return spell_bytes(min(wanted, fitting))


def _mount_shm(pod: Pod, config: MountConfig) -> Iterator[Edit]:
    containers = [container for container in _without_shm(pod, config) if not shm_mounts(container)]
    if not containers or pod.volumes.value is UNKNOWN:
        return
    if not any(volume["name"].text == _VOLUME for volume in pod.volumes.items()):
        size = _new_size(containers, config)
        volume = {"name": _VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}}
        yield _append(pod.volumes, volume)
    for container in containers:
        yield _append(container.node["volumeMounts"], {"name": _VOLUME, "mountPath": _SHM})


def _append(location: Node, item: object) -> Edit:
    if isinstance(location.value, list):
        return Edit((*location.steps, len(location.value)), item)
    return Edit(location.steps, [item])


@pod_rule(
    name="shm-mounted",
    description="Training containers and containers with several GPUs mount a volume at /dev/shm.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Mount an emptyDir with medium Memory and a sizeLimit at /dev/shm.",
    config=MountConfig,
    remedy=_mount_shm,
)
def shm_mounted(pod: Pod, config: MountConfig) -> Iterator[Violation]:
    """The default /dev/shm of 64 MiB makes data loaders and NCCL die with a bus error."""
    for container in _without_shm(pod, config):
        mounts = container.node["volumeMounts"]
        paths = [mount["mountPath"].value for mount in mounts.items()]
        yield Violation(
            mounts,
            '{"name": "shared-memory", "mountPath": "/dev/shm"} without subPath or readOnly, and '
            "the volume "
            f'{{"name": "shared-memory", "emptyDir": {{"medium": "Memory", "sizeLimit": '
            f'"{_new_size([container], config)}"}}}}',
            found=f"mounts at {show(paths)}" if paths else show(mounts.value),
        )


def volumes_at_shm(pod: Pod) -> Iterator[tuple[Node, Node | None]]:
    """Yield one mount at /dev/shm for each volume, and the volume if the pod defines it."""
    seen = set()
    for container in pod.containers:
        for mount in shm_mounts(container):
            volume = pod.volume(mount["name"])
            if volume is None and not pod.volume_names_known:
                continue
            location = volume.steps if volume is not None else mount.steps
            if mount["name"].known and location not in seen:
                seen.add(location)
                yield mount, volume


def _bound_shm(pod: Pod, config: MountConfig) -> Iterator[Edit]:
    minimum, size = _min_size(pod, config), _new_size(filter(shm_mounts, pod.containers), config)
    for _, volume in volumes_at_shm(pod):
        if volume is None or not isinstance(volume["emptyDir"].value, dict):
            continue
        empty_dir = volume["emptyDir"]
        if empty_dir["medium"].known and empty_dir["medium"].value != "Memory":
            yield Edit(empty_dir["medium"].steps, "Memory")
        if empty_dir["sizeLimit"].known and not _is_at_least(empty_dir["sizeLimit"], minimum):
            yield Edit(empty_dir["sizeLimit"].steps, size)


@pod_rule(
    name="shm-bounded-memory",
    description="The volume at /dev/shm is a memory volume with a size limit.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Make the volume at /dev/shm an emptyDir with medium Memory and a sizeLimit.",
    config=MountConfig,
    remedy=_bound_shm,
    admission=cel.volumes(
        "variables.mountsAtShm.exists(names, v.name in names) && !has(v.hostPath)"
        " && (v.?emptyDir.?medium.orValue('') != 'Memory' || !has(v.emptyDir.sizeLimit)"
        " || quantity(v.emptyDir.sizeLimit).isLessThan("
        "quantity(variables.gpuContainers.size() > 0 ? settings.minSize : '1')))"
    ),
)
def shm_bounded_memory(pod: Pod, config: MountConfig) -> Iterator[Violation]:
    """A volume on disk is slow, and an unlimited memory volume can fill the node's memory."""
    minimum, size = _min_size(pod, config), _new_size(filter(shm_mounts, pod.containers), config)
    for mount, volume in volumes_at_shm(pod):
        if volume is None:
            yield Violation(mount["name"], "the name of a volume of this pod")
            continue
        empty_dir = volume["emptyDir"]
        # `shm-not-from-host` reports host paths, except those of system workloads.
        if not empty_dir.known or volume["hostPath"].present:
            continue
        if not isinstance(empty_dir.value, dict):
            yield Violation(volume, f'emptyDir: {{"medium": "Memory", "sizeLimit": "{size}"}}')
            continue
        if empty_dir["medium"].known and empty_dir["medium"].value != "Memory":
            yield Violation(empty_dir["medium"], '"Memory"')
        if empty_dir["sizeLimit"].known and not _is_at_least(empty_dir["sizeLimit"], minimum):
            bound = f" of at least {spell_bytes(minimum)}" if minimum > 1 else ""
            expected = f"a size{bound}, such as {size}"
            yield Violation(empty_dir["sizeLimit"], expected)


def _is_at_least(node: Node, minimum: Decimal) -> bool:
    amount = quantity_or_none(node.value)
    return amount is not None and amount >= minimum


def _min_size(pod: Pod, config: MountConfig) -> Decimal:
    """Return the minimum size in bytes. Pods without GPUs may have a /dev/shm of any size."""
    computes = pod.gpu_containers(config.accelerators) or working_containers(pod, config)
    return parse_quantity(config.min_size) if computes else Decimal(1)


@pod_rule(
    name="shm-not-from-host",
    description="Pods do not use the node's /dev/shm.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Use an emptyDir with medium Memory and a sizeLimit instead of the hostPath.",
    config=SystemConfig,
    admission=cel.volumes(
        f"has(v.hostPath) && ([{cel.path('v.hostPath.path')}].exists(s, s == ['run', 'shm']"
        " || s.size() > 1 && s[0] == 'dev' && s[1] == 'shm')"
        " || variables.mountsAtShm.exists(names, v.name in names)"
        " || variables.containers.exists(c, c.?volumeMounts.orValue([]).exists(m,"
        f" m.name == v.name && [{cel.path('m.mountPath')}].exists(t, (t == [] || t == ['dev'])"
        f" && t == {cel.path(_CEL_SOURCE_PATH)}))))"
    ),
)
def shm_not_from_host(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """All processes on the node share its /dev/shm, and nothing cleans it up."""
    at_shm = {volume.steps for _, volume in volumes_at_shm(pod) if volume is not None}
    at_shm |= {volume.steps for volume in _volumes_with_shm(pod)}
    for volume in pod.volumes.items():
        host_path = volume["hostPath"]
        path = normalize_path(host_path["path"].text or "")
        from_shm = path == _SHM or path.startswith(_SHM + "/") or path == "/run/shm"
        if host_path.present and (from_shm or volume.steps in at_shm):
            yield Violation(host_path, 'an emptyDir with medium "Memory" and a sizeLimit instead')


def _volumes_with_shm(pod: Pod) -> Iterator[Node]:
    """Yield the hostPath volumes that expose the node's / or /dev at the same path in a container.

    The node's /dev/shm then appears at /dev/shm in the container.
    """
    for container in pod.containers:
        for mount in container.node["volumeMounts"].items():
            target = normalize_path(mount["mountPath"].text or "")
            if target not in ("/", "/dev"):
                continue
            volume = pod.volume(mount["name"])
            path = volume["hostPath"]["path"].text if volume is not None else None
            source = posixpath.join(path or "", mount["subPath"].text or "")
            if volume is not None and normalize_path(source) == target:
                yield volume


RULES: list[Rule[Any]] = [
    shm_mounted,
    shm_bounded_memory,
    shm_not_from_host,
]
