"""What this stack's workloads may use and reach."""

import ipaddress
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from infra.settings.types import CpuQuantity, DnsLabel, MemoryQuantity, PositiveInt, Settings

_SYSTEM: Final = ("default", "kube-node-lease", "kube-public", "kube-system")


def _cidr(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError("must be a range of addresses such as 10.1.0.0/16") from None
    return text


def _own_namespace(text: str) -> str:
    if text in _SYSTEM:
        raise ValueError("must be a namespace of the stack's own, since its limits apply to all")
    return text


Cidr = Annotated[str, AfterValidator(_cidr)]


class QuotaSettings(Settings):
    """The most that all pods of the namespace may ask for together."""

    gpus: int | None = Field(default=None, ge=0, description="GPUs of the stack's GPU resource")
    cpu: CpuQuantity | None = Field(default=None, description="CPU requests")
    memory: MemoryQuantity | None = Field(default=None, description="memory requests")
    memory_limits: MemoryQuantity | None = Field(default=None, description="memory limits")
    pods: PositiveInt | None = Field(default=None, description="pods")
    claims: PositiveInt | None = Field(default=None, description="storage claims")


class LimitSettings(Settings):
    """What a container gets that asks for nothing, and the most that one may ask for."""

    default_cpu: CpuQuantity = Field(
        default="100m", description="CPU request where none is written"
    )
    default_memory: MemoryQuantity = Field(
        default="256Mi", description="memory request and limit where none is written"
    )
    max_memory: MemoryQuantity | None = Field(
        default=None, description="largest memory limit allowed"
    )


class NetworkSettings(Settings):
    """What may talk to what, where the cluster's network enforces policies."""

    isolate: bool = Field(
        default=True,
        description="deny all traffic of the namespace but the connections that it needs",
    )
    inference_from: list[DnsLabel] = Field(
        default=[], description="namespaces that may call inference; empty allows the whole cluster"
    )
    egress_cidrs: list[Cidr] = Field(
        default=[],
        description="addresses that all pods may reach, such as an object store: 10.1.0.0/16",
    )


class TenancySettings(Settings):
    """The namespace of the workloads and its borders."""

    namespace: Annotated[DnsLabel, AfterValidator(_own_namespace)] = Field(
        description="namespace of all workloads of this stack"
    )
    pod_security: Literal["restricted", "baseline", "privileged"] = Field(
        default="restricted", description="Pod Security Standard that the cluster enforces there"
    )
    quota: QuotaSettings = Field(
        default=QuotaSettings(), description="limits of the namespace as a whole"
    )
    limits: LimitSettings = Field(
        default=LimitSettings(), description="limits of a single container"
    )
    network: NetworkSettings = Field(default=NetworkSettings(), description="network policies")
