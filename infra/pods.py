"""The pod template for the stack's workloads, built from a typed specification.

The template determines each pod's GPU limits, /dev/shm, NCCL and RDMA variables, security context,
volumes and placement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from infra.manifests import Manifest, compact
from infra.settings.types import TMP_SIZE
from infra.settings.volumes import ReferenceSettings, VolumeSettings
from kube.names import SHM_PATH, SHM_VOLUME, TMP_PATH, TMP_VOLUME, USER_ID

NODE_NAME: Final = {"NODE_NAME": {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}}
"""Environment variable with the name of the pod's node."""

_TMP_MOUNT: Final = {"name": TMP_VOLUME, "mountPath": TMP_PATH}


@dataclass(frozen=True, kw_only=True)
class GpuNodes:
    """GPU resource, node selector, tolerations and RuntimeClass for pods with GPUs."""

    resource: str
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    runtime_class: str | None = None


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A claim and its mount path."""

    name: str
    claim: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume whose `source` has the format of the API, such as {"secret": {…}}."""

    name: str
    source: Manifest
    path: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class InitContainer:
    """A container that uses the pod's image and runs before the main container.

    It requests as much CPU and memory as the main container, but no other resources. `mounts` maps
    volume names to mount paths. Only this container mounts `claims`.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, Any] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    claims: Sequence[Mount] = ()


@dataclass(frozen=True, kw_only=True)
class Rdma:
    """An RDMA device: its resource name, and the interface and adapters that NCCL uses."""

    resource: str
    count: int
    interface: str
    hca: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod with one container and, optionally, init containers.

    `image` is a string or a Pulumi output. Sizes are Kubernetes quantities. If `command` is empty,
    the image's command runs. Values of `env` are strings, or objects in the API's format, such as
    {"valueFrom": …}.
    """

    container: str
    image: Any
    command: Sequence[str]
    cpu: str
    memory: str
    shm: str
    gpus: int
    gpu_nodes: GpuNodes
    service_account: str
    grace_seconds: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    volumes: Sequence[Volume] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    probes: Mapping[str, Manifest] = field(default_factory=dict)
    init: Sequence[InitContainer] = ()
    pre_stop_seconds: int = 0
    rdma: Rdma | None = None
    disk: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    spread: Sequence[Manifest] = ()
    affinity: Manifest = field(default_factory=dict)
    host_network: bool = False
    scheduler: str | None = None
    priority_class: str | None = None
    restart_policy: str = "Always"
    deadline_seconds: int | None = None
    subdomain: str | None = None


def pod_template(pod: Pod) -> Manifest:
    """Return the pod's metadata and spec, as the template of a Job or Deployment."""
    on_gpu_node = pod.gpus > 0
    selector = {**(pod.gpu_nodes.node_selector if on_gpu_node else {}), **pod.node_selector}
    tolerations = [*(pod.gpu_nodes.tolerations if on_gpu_node else ()), *pod.tolerations]
    spec = compact(
        {
            "schedulerName": pod.scheduler,
            "priorityClassName": pod.priority_class,
            "runtimeClassName": pod.gpu_nodes.runtime_class if on_gpu_node else None,
            "restartPolicy": pod.restart_policy,
            "activeDeadlineSeconds": pod.deadline_seconds,
            "terminationGracePeriodSeconds": pod.grace_seconds,
            "serviceAccountName": pod.service_account,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "subdomain": pod.subdomain,
            "hostNetwork": pod.host_network or None,
            # The node's resolver cannot resolve Service names, which pods use to find each other.
            "dnsPolicy": "ClusterFirstWithHostNet" if pod.host_network else None,
            "affinity": pod.affinity,
            "nodeSelector": selector,
            "tolerations": [dict(toleration) for toleration in tolerations] or None,
            "topologySpreadConstraints": list(pod.spread) or None,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [_init_container(pod, init) for init in pod.init] or None,
            "containers": [_container(pod)],
            "volumes": _volumes(pod),
        }
    )
    return {
        "metadata": compact({"labels": dict(pod.labels), "annotations": dict(pod.annotations)}),
        "spec": spec,
    }


def _container(pod: Pod) -> Manifest:
    volume_names = _claim_volumes(pod)
    return compact(
        {
            "name": pod.container,
            "image": pod.image,
            "imagePullPolicy": "IfNotPresent",
            "command": list(pod.command) or None,
            "env": _environment(pod.env, pod.rdma, gpus=pod.gpus),
            "ports": [
                {"name": name, "containerPort": port, "protocol": "TCP"}
                for name, port in pod.ports.items()
            ]
            or None,
            "resources": _resources(pod),
            "securityContext": _security_context(),
            "volumeMounts": [
                {"name": SHM_VOLUME, "mountPath": SHM_PATH},
                _TMP_MOUNT,
                *(_volume_mount(mount, volume_names) for mount in pod.mounts),
                *(_volume_mount(volume, volume_names) for volume in pod.volumes),
            ],
            # The kubelet implements this sleep, so the image needs no shell.
            "lifecycle": {"preStop": {"sleep": {"seconds": pod.pre_stop_seconds}}}
            if pod.pre_stop_seconds
            else None,
            **pod.probes,
        }
    )


def rdma_variables(rdma: Rdma | None) -> dict[str, str]:
    """Return the NCCL variables of a container that uses the RDMA device."""
    if rdma is None:
        return {}
    adapters = {} if rdma.hca is None else {"NCCL_IB_HCA": rdma.hca}
    return {"NCCL_SOCKET_IFNAME": rdma.interface, **adapters}


def _init_container(pod: Pod, init: InitContainer) -> Manifest:
    sizes = {"requests": {"cpu": pod.cpu, "memory": pod.memory}, "limits": {"memory": pod.memory}}
    volume_names = _claim_volumes(pod)
    return {
        "name": init.name,
        "image": pod.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(init.command),
        "env": _environment(init.env),
        "resources": sizes,
        "securityContext": _security_context(),
        "volumeMounts": [
            _TMP_MOUNT,
            *(
                {"name": volume_names.get(name, name), "mountPath": path}
                for name, path in init.mounts.items()
            ),
            *(_volume_mount(mount, volume_names) for mount in init.claims),
        ],
    }


def _security_context() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _volume_mount(mount: Mount | Volume, volume_names: Mapping[str, str]) -> Manifest:
    return compact(
        {
            "name": volume_names.get(mount.name, mount.name),
            "mountPath": mount.path,
            "readOnly": mount.read_only or None,
        }
    )


def _environment(
    env: Mapping[str, Any], rdma: Rdma | None = None, *, gpus: int = 0
) -> list[Manifest]:
    variables: dict[str, Any] = {"HOME": TMP_PATH, "PYTHONUNBUFFERED": "1"}
    if gpus == 0:
        # CUDA images set this variable to `all`. NVIDIA's runtime then exposes GPUs that were not
        # requested.
        variables["NVIDIA_VISIBLE_DEVICES"] = "void"
    variables |= {**rdma_variables(rdma), **env}
    return [
        {"name": name, **(value if isinstance(value, dict) else {"value": value})}
        for name, value in variables.items()
    ]


def _resources(pod: Pod) -> Manifest:
    amounts: dict[str, str] = compact({"ephemeral-storage": pod.disk})
    if pod.gpus > 0:
        amounts[pod.gpu_nodes.resource] = str(pod.gpus)
    if pod.rdma is not None:
        amounts[pod.rdma.resource] = str(pod.rdma.count)
    return {
        "requests": {"cpu": pod.cpu, "memory": pod.memory, **amounts},
        "limits": {"memory": pod.memory, **amounts},
    }


def _volumes(pod: Pod) -> list[Manifest]:
    volume_names, mounts = _claim_volumes(pod), _claim_mounts(pod)
    writable = {volume_names[mount.name] for mount in mounts if not mount.read_only}
    writable |= {
        volume_names[volume.name]
        for volume in pod.volumes
        if volume.name in volume_names and not volume.read_only
    }
    return [
        {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": pod.shm}},
        {"name": TMP_VOLUME, "emptyDir": {"sizeLimit": TMP_SIZE}},
        *(
            {
                "name": mount.name,
                "persistentVolumeClaim": compact(
                    {"claimName": mount.claim, "readOnly": mount.name not in writable or None}
                ),
            }
            for mount in mounts
            if volume_names[mount.name] == mount.name
        ),
        *(
            {"name": volume.name, **volume.source}
            for volume in pod.volumes
            if volume_names.get(volume.name, volume.name) == volume.name
        ),
    ]


def _claim_mounts(pod: Pod) -> list[Mount]:
    return [*pod.mounts, *(mount for init in pod.init for mount in init.claims)]


def _claim_volumes(pod: Pod) -> dict[str, str]:
    """Return the volume names of all claim mounts, keyed by the names of the mounts.

    Mounts of one claim share a volume, because the kubelet never starts a pod in which two volumes
    refer to the same claim.
    """
    claims: dict[str, Any] = {mount.name: mount.claim for mount in _claim_mounts(pod)}
    for volume in pod.volumes:
        if "persistentVolumeClaim" in volume.source:
            claims[volume.name] = volume.source["persistentVolumeClaim"]["claimName"]
    volume_names: dict[Any, str] = {}
    return {name: volume_names.setdefault(claim, name) for name, claim in claims.items()}


def even_spread(labels: Mapping[str, str], *, strict: bool = False) -> list[Manifest]:
    """Return constraints that spread the pods with these labels evenly over eligible nodes.

    Without `strict`, the constraints are preferences. With `strict`, a gang may stay pending even
    if nodes are free.
    """
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule" if strict else "ScheduleAnyway",
            "nodeAffinityPolicy": "Honor",
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def shared_label_affinity(
    labels: Mapping[str, str], node_label: str, *, required: bool
) -> Manifest:
    """Return an affinity that places pods with `labels` on nodes with the same `node_label` value.

    Unless `required`, the affinity is only a preference.
    """
    term = {"topologyKey": node_label, "labelSelector": {"matchLabels": dict(labels)}}
    if required:
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    preference = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}


def exclusive_node_affinity(label: str, exempt: Mapping[str, str]) -> Manifest:
    """Return an affinity that keeps other pods with `label` off the pod's node.

    The affinity applies to pods of all namespaces. Pods with the labels in `exempt` may share
    the node.
    """
    not_exempt = [
        {"key": key, "operator": "NotIn", "values": [value]} for key, value in exempt.items()
    ]
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}, *not_exempt]},
        "namespaceSelector": {},
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def variables_from(references: Mapping[str, ReferenceSettings]) -> dict[str, Any]:
    """Return environment variables whose values come from Secrets or ConfigMaps."""

    def value(reference: ReferenceSettings) -> Manifest:
        source = "configMapKeyRef" if reference.secret is None else "secretKeyRef"
        name = reference.secret or reference.config_map
        return {"valueFrom": {source: {"name": name, "key": reference.key}}}

    return {name: value(reference) for name, reference in references.items()}


def additional_volumes(volumes: Mapping[str, VolumeSettings]) -> list[Volume]:
    """Return the volumes other than claims: Secrets, ConfigMaps and scratch directories."""
    return [
        Volume(
            name=name, source=_source(volume), path=volume.path, read_only=volume.scratch is None
        )
        for name, volume in volumes.items()
        if volume.claim is None
    ]


def secret_source(name: str) -> Manifest:
    """Return the source of a Secret volume that only the pod's group can read."""
    return {"secret": {"secretName": name, "defaultMode": 0o440}}


def _source(volume: VolumeSettings) -> Manifest:
    if volume.secret is not None:
        return secret_source(volume.secret)
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    return {"emptyDir": {"sizeLimit": volume.scratch}}
