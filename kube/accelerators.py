"""Rules for recognizing accelerators among extended resources and DRA device classes.

Device plugins choose the names of their resources, so a list of GPU names is never complete. Every
extended resource and device class is an accelerator unless `OTHER_DEVICES` or a setting lists it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import lru_cache
from re import sub
from typing import Final

_NETWORKS: Final = (
    "rdma/*",
    "vpc.amazonaws.com/*",
    "networking.gke.io/*",
    "networking.gke.io.networks/*",
    "*.network.kubevirt.io/*",
    "k8s.cni.cncf.io/*",
    "openshift.io/*",
    "mellanox.com/*",
    "nvidia.com/hostdev*",
    "nvidia.com/mlnx*",
    "nvidia.com/rdma*",
    "nvidia.com/sriov*",
    "intel.com/*sriov*",
    "intel.com/mlnx*",
    "aliyun/*eni*",
    "aliyun/erdma",
    "tke.cloud.tencent.com/*eni*",
    "vke.volcengine.com/*eni*",
    "vke.volcengine.com/rdma",
    "koordinator.sh/rdma",
)
_STORAGE_AND_VIRTUALIZATION: Final = (
    "devices.kubevirt.io/*",
    "smarter-devices/fuse",
    "smarter-devices/kvm",
    "smarter-devices/net_tun",
    "smarter-devices/vhost-net",
    "squat.ai/fuse",
    "squat.ai/kvm",
    "squat.ai/tun",
    "github.com/fuse",
    "nextflow.io/fuse",
    "sgx.intel.com/*",
    "tdx.intel.com/*",
    "sev-snp.amd.com/*",
    "qat.intel.com/*",
    "dsa.intel.com/*",
    "dlb.intel.com/*",
    "iaa.intel.com/*",
)
_DEVICE_CLASSES: Final = (
    "compute-domain.nvidia.com",
    "compute-domain-*.nvidia.com",
    "mrdma.google.com",
    "netdev.google.com",
    "dra.net",
    "dra.cpu",
)

OTHER_DEVICES: Final = (*_NETWORKS, *_STORAGE_AND_VIRTUALIZATION, *_DEVICE_CLASSES)
"""Name patterns of the extended resources and DRA device classes that are not accelerators."""

NVIDIA_GPU: Final = "nvidia.com/gpu"
SHARED_SUFFIX: Final = ".shared"
MIG_PREFIX: Final = "nvidia.com/mig-"
"""Resource names of NVIDIA's device plugin: the name of whole GPUs, the suffix for time-sliced GPUs
and the prefix for MIG devices."""

KNOWN_ACCELERATORS: Final = (
    NVIDIA_GPU,
    f"{NVIDIA_GPU}{SHARED_SUFFIX}",
    *(f"{MIG_PREFIX}{size}gb" for size in ("1g.10", "2g.20", "3g.40", "4g.40", "7g.80")),
    "gpu.nvidia.com",
    "mig.nvidia.com",
    "amd.com/gpu",
    "google.com/tpu",
    *("aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "habana.ai/gaudi"),
    *("gpu.intel.com/i915", "gpu.intel.com/xe", "gpu.intel.com", "huawei.com/ascend910"),
)
"""Known accelerators. The patterns in the `otherDevices` setting must not match them."""

_AMOUNTS: Final = (
    *("*/vgpu-memory*", "*/vgpu-cores", "*/gpumem*", "*/gpucores", "*/gpu-mem*"),
    # Totals over all requested GPUs, for Kueue.
    *("*/total-gpumem*", "*/total-gpucores"),
)
"""Name patterns of resources that represent amounts of GPU memory or GPU cores."""

DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the implicit extended resource name of each DRA device class."""


BUILT_IN_RESOURCES: Final = (
    "cpu",
    "memory",
    "pods",
    "storage",
    "ephemeral-storage",
    "hugepages-*",
    "attachable-volumes-*",
)
"""Name patterns of built-in resources, whose names have no domain."""

NOT_ACCELERATORS: Final = "|".join(
    sub("[^A-Za-z0-9*]", "_", name).replace("*", ".*")
    for name in (*BUILT_IN_RESOURCES, *OTHER_DEVICES)
)
"""Regular expression for the names of resources that are not accelerators.

It matches names as kube-state-metrics exports them, with special characters replaced by `_`.
"""


def is_amount(resource: str) -> bool:
    """Return whether a resource, such as `nvidia.com/gpumem`, represents memory or cores."""
    return matches(resource, _AMOUNTS)


def without_amounts(resources: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """Return the resources, omitting amounts of GPU memory and GPU cores."""
    return {name: count for name, count in resources.items() if not is_amount(name)}


def device_counts(requested: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """Return the number of requested devices by resource.

    With HAMi or Volcano's vGPU plugin, a pod can also request amounts of GPU memory or GPU cores.
    These amounts apply to the requested devices. If no device is requested, the amounts count as
    one device.
    """
    devices = without_amounts(requested)
    amounts = [name for name in requested if name not in devices]
    if not any(devices.values()):
        devices |= {name: min(requested[name], Decimal(1)) for name in amounts[:1]}
    return devices


@dataclass(frozen=True)
class Accelerators:
    """Settings that determine which extended resources and device classes are accelerators.

    `other_devices` extends `OTHER_DEVICES`. `claims` maps patterns for `namespace/name`
    to the number of accelerators in each matching ResourceClaim or ResourceClaimTemplate.
    """

    other_devices: tuple[str, ...] = ()
    claims: tuple[tuple[str, int], ...] = ()

    def includes(self, resource: str) -> bool:
        """Return whether a resource, such as `nvidia.com/gpu`, is an accelerator."""
        return _is_accelerator(resource, self.other_devices)

    def includes_class(self, device_class: str) -> bool:
        """Return whether the devices of a DRA device class are accelerators."""
        return _is_accelerator(DEVICE_CLASS_PREFIX + device_class, self.other_devices)

    def in_claim(self, address: str) -> int | None:
        """Return the configured number of accelerators in the claim `namespace/name`, or None."""
        return next((count for name, count in self.claims if matches(address, [name])), None)


@lru_cache(maxsize=4096)
def _is_accelerator(resource: str, other_devices: tuple[str, ...]) -> bool:
    lowered = resource.lower()
    name = lowered.removeprefix(DEVICE_CLASS_PREFIX)
    if name == lowered:
        domain, slash, _ = lowered.partition("/")
        if not slash or domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
            return False
    return not matches(name, (*OTHER_DEVICES, *other_devices))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of the patterns. Case is ignored."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)
