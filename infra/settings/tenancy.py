"""The workloads' namespace: quota, limits, network policies, identities and groups."""

import ipaddress
from contextlib import suppress
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from infra.settings.types import (
    Annotations,
    CpuQuantity,
    DnsLabel,
    Labels,
    MemoryQuantity,
    Port,
    PositiveInt,
    QualifiedName,
    Settings,
)
from kube.quantities import parse_quantity

SYSTEM_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
"""Namespaces that Kubernetes creates. The API server does not allow most of them to be deleted."""


def _cidr(text: str) -> str:
    length: str | None = None
    with suppress(ValueError):
        length = str(ipaddress.ip_network(text).prefixlen)
    # Python also accepts netmasks, IPv6 zone IDs, and addresses without a prefix length.
    if text.partition("/")[2] != length or "%" in text:
        raise ValueError("must be an address range such as 10.1.0.0/16 or 10.1.0.5/32")
    return text


def _not_system_namespace(text: str) -> str:
    if text in SYSTEM_NAMESPACES:
        raise ValueError(
            "must be a namespace that only the stack uses, because the stack restricts all pods in "
            "it"
        )
    return text


DedicatedNamespace = Annotated[DnsLabel, AfterValidator(_not_system_namespace)]
"""Name of a namespace in which the stack restricts all pods."""

Cidr = Annotated[str, AfterValidator(_cidr)]


class QuotaSettings(Settings):
    """Limits on the total resources of the namespace."""

    gpus: int | None = Field(
        default=None, ge=0, description="Number of GPUs or, with time slicing, of GPU shares."
    )
    devices: dict[QualifiedName, Annotated[int, Field(ge=0)]] = Field(
        default={},
        description="Number of other devices by resource name, such as nvidia.com/mig-1g.10gb.",
    )
    cpu: CpuQuantity | None = Field(default=None, description="Sum of the CPU requests.")
    memory: MemoryQuantity | None = Field(default=None, description="Sum of the memory requests.")
    memory_limits: MemoryQuantity | None = Field(
        default=None, description="Sum of the memory limits."
    )
    pods: PositiveInt | None = Field(default=None, description="Number of pods.")
    claims: PositiveInt | None = Field(default=None, description="Number of claims.")

    @field_validator("devices")
    @classmethod
    def _are_devices(cls, devices: dict[str, int]) -> dict[str, int]:
        for name in devices:
            if name in ("cpu", "memory"):
                raise ValueError(
                    f"contains {name}, which is not a device: set tenancy.quota.{name}"
                )
            if name.startswith("requests."):
                raise ValueError(
                    f"contains {name}: leave out the `requests.` prefix, which the stack adds"
                )
            if "/" not in name and not name.startswith("hugepages-"):
                raise ValueError(
                    f"contains {name}, which is not the name of a device: use a name with a domain,"
                    " such as nvidia.com/mig-1g.10gb"
                )
        return devices


class LimitSettings(Settings):
    """Defaults and limits of a container."""

    default_cpu: CpuQuantity = Field(
        default="100m", description="CPU request of containers that set none."
    )
    default_memory: MemoryQuantity = Field(
        default="256Mi", description="Memory request and limit of containers that set none."
    )
    max_memory: MemoryQuantity | None = Field(
        default=None,
        description="Maximum memory limit of a container, at least default_memory. If null, "
        "there is no maximum.",
    )

    @model_validator(mode="after")
    def _default_is_admitted(self) -> Self:
        maximum = self.max_memory
        if maximum is not None and parse_quantity(self.default_memory) > parse_quantity(maximum):
            raise ValueError(
                f"sets max_memory to {maximum}, less than default_memory ({self.default_memory}): "
                "decrease default_memory or increase max_memory"
            )
        return self


class NetworkSettings(Settings):
    """Network policies, which the cluster's network plugin must enforce."""

    isolate: bool = Field(
        default=True,
        description="Create network policies that deny by default. Workloads: only the connections "
        "that they need. Device plugin: no connections. DCGM exporter: only scraping by "
        "Prometheus. Volcano: ingress only to the webhooks and from Prometheus. "
        "kube-prometheus-stack: no policy.",
    )
    inference_from: list[DnsLabel] = Field(
        default=[],
        description="Namespaces whose pods may call inference services. If empty, all "
        "namespaces are allowed.",
    )
    inference_cidrs: list[Cidr] = Field(
        default=[],
        description="Address ranges outside the pod network that may also call inference services, "
        "such as the range of a cloud load balancer or, with `service_type: NodePort`, the range "
        "of the nodes.",
    )
    inference_ports: list[Port] = Field(
        default=[],
        description="Additional ports on which inference services may receive requests, such as "
        "8080 for services of other stacks. The ports of the stack's own services are always "
        "allowed. In your own Pulumi programs, the Tenancy component also allows 8080 by default.",
    )
    egress_cidrs: list[Cidr] = Field(
        default=[],
        description="Address ranges that all pods may reach, such as 10.1.0.0/16 for an object "
        "store.",
    )

    @model_validator(mode="after")
    def _callers_are_restricted(self) -> Self:
        if self.inference_from and not self.isolate:
            raise ValueError(
                f"sets inference_from to {', '.join(self.inference_from)}, but isolate is false, "
                "so pods of every namespace may call the services: set isolate: true, or remove "
                "inference_from"
            )
        return self


def _false_to_off(value: object) -> object:
    """Return "off" if YAML has parsed `off` as the boolean false."""
    return "off" if value is False else value


AdmissionMode = Annotated[Literal["off", "audit", "warn", "deny"], BeforeValidator(_false_to_off)]


class IdentitySettings(Settings):
    """Cloud identity of a ServiceAccount: IRSA, GKE or Azure workload identity."""

    annotations: Annotations = Field(
        default={},
        description="Annotations of the ServiceAccount, such as eks.amazonaws.com/role-arn or "
        "iam.gke.io/gcp-service-account.",
    )
    labels: Labels = Field(default={}, description="Labels of the ServiceAccount.")


class IdentitiesSettings(Settings):
    """Cloud identities of training and inference."""

    training: IdentitySettings = Field(
        default=IdentitySettings(), description="Identity of training jobs."
    )
    inference: IdentitySettings = Field(
        default=IdentitySettings(), description="Identity of inference services."
    )


def _not_system_group(name: str) -> str:
    if name.startswith("system:"):
        raise ValueError(
            "has the prefix system:, which is reserved for Kubernetes' built-in groups, such as "
            "system:authenticated; use a group of your identity provider"
        )
    return name


GroupName = Annotated[str, Field(min_length=1), AfterValidator(_not_system_group)]


class GroupsSettings(Settings):
    """Groups of users with permissions in the namespace."""

    members: list[GroupName] = Field(
        default=[],
        description="Groups whose users may submit, suspend, change and delete runs, and read "
        "everything that viewers may read. The pods of their runs can mount every Secret of the "
        "namespace.",
    )
    viewers: list[GroupName] = Field(
        default=[],
        description="Groups whose users may read runs and services, including their pods, logs and "
        "events, but not Secrets.",
    )


class TenancySettings(Settings):
    """The workloads' namespace: its quota, limits and network policies."""

    namespace: DedicatedNamespace = Field(description="Namespace of all workloads of this stack.")
    pod_security: Literal["restricted", "baseline", "privileged"] = Field(
        default="restricted", description="Pod Security Standard that is enforced in the namespace."
    )
    quota: QuotaSettings = Field(default=QuotaSettings(), description="Quota of the namespace.")
    limits: LimitSettings = Field(
        default=LimitSettings(), description="Defaults and limits of a container."
    )
    network: NetworkSettings = Field(
        default=NetworkSettings(), description="Network policies of the namespace."
    )
    groups: GroupsSettings = Field(
        default=GroupsSettings(), description="Groups of users with permissions in the namespace."
    )
    identities: IdentitiesSettings = Field(
        default=IdentitiesSettings(),
        description="Cloud identities that workloads use instead of static keys for object stores.",
    )
    admission: AdmissionMode = Field(
        default="off",
        description="Evaluate the rules of the policy pack in the API server, for all namespaces "
        "of the cluster: `audit` counts violations, `warn` also reports them to clients, `deny` "
        "rejects the objects. The default is `off`, because the policies also apply to pods of "
        "other teams, and creating the policies requires additional permissions.",
    )
    admission_config: str | None = Field(
        default=None,
        min_length=1,
        description="Configuration file of the policy pack for `admission`, relative to the "
        "project, such as policies/config/prod.json. If null, the defaults of the rules apply.",
    )
    admission_excluded_namespaces: list[DnsLabel] = Field(
        default=[],
        description="Additional namespaces to which the admission policies do not apply. They "
        "never apply to kube-system, or to the namespaces that the stack creates for Volcano, for "
        "monitoring, and for the device plugin or GPU Operator.",
    )
