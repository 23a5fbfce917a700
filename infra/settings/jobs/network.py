"""The network between the nodes of a job: its device, and how NCCL uses it."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from infra.settings.types import PositiveInt, QualifiedName, Settings

NetworkName = Literal["infiniband", "roce", "tcp"]
Byte = Annotated[int, Field(ge=0, le=255)]
_RDMA_NETWORKS: Final = ("infiniband", "roce")


class RdmaSettings(Settings):
    """A direct network between GPUs of several nodes (InfiniBand or RoCE)."""

    resource: QualifiedName = Field(description="name of the RDMA device, such as rdma/hca")
    count: PositiveInt = Field(default=1, description="devices for each pod")
    interface: str = Field(
        min_length=1, description="network interface of NCCL's first contact (NCCL_SOCKET_IFNAME)"
    )
    hca: str | None = Field(default=None, description="RDMA adapters that NCCL uses (NCCL_IB_HCA)")


NETWORK_DEFAULTS: Final[Mapping[NetworkName, Mapping[str, str]]] = {
    # With a network named, NCCL fails where it cannot use it, instead of taking TCP in silence.
    "infiniband": {"NCCL_NET": "IB"},
    "roce": {"NCCL_NET": "IB", "NCCL_IB_ROCE_VERSION_NUM": "2"},
    "tcp": {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
}
"""What a network alone decides. Names and values: NVIDIA's NCCL documentation, "Environment
Variables"."""


class NcclSettings(Settings):
    """How NCCL uses the network; what is not written is left to NCCL's own defaults."""

    network: NetworkName = Field(
        description="infiniband and roce need rdma; NCCL then fails rather than falling back to "
        "TCP in silence. tcp uses no RDMA device even where there is one"
    )
    interface: str | None = Field(
        default=None,
        min_length=1,
        description="network interface of tcp (NCCL_SOCKET_IFNAME); with rdma it is rdma.interface",
    )
    gid_index: Byte | None = Field(
        default=None,
        description="roce: index of the adapter's address (NCCL_IB_GID_INDEX); NCCL from 2.21 on "
        "finds it by itself, older ones usually need 3",
    )
    traffic_class: Byte | None = Field(
        default=None,
        description="roce: class of the packets (NCCL_IB_TC), as the switches are configured for "
        "lossless traffic; 106 where that is DSCP 26",
    )
    service_level: int | None = Field(
        default=None, ge=0, le=15, description="infiniband: service level (NCCL_IB_SL)"
    )
    timeout: int | None = Field(
        default=None,
        ge=1,
        le=31,
        description="exponent of the adapter's timeout, 4.096 µs x 2^timeout (NCCL_IB_TIMEOUT)",
    )
    retry_count: int | None = Field(
        default=None, ge=0, le=7, description="retries of the adapter (NCCL_IB_RETRY_CNT)"
    )
    queue_pairs: int | None = Field(
        default=None,
        ge=1,
        le=128,
        description="queue pairs of a connection (NCCL_IB_QPS_PER_CONNECTION); more than one "
        "spreads a connection over several paths of the fabric",
    )
    gpu_direct: Literal["LOC", "PIX", "PXB", "PHB", "SYS"] | None = Field(
        default=None,
        description="how far apart GPU and adapter may be for GPUDirect (NCCL_NET_GDR_LEVEL); "
        "LOC never uses it, SYS always does",
    )
    socket_threads: int | None = Field(
        default=None, ge=1, le=16, description="tcp: threads of a connection (NCCL_SOCKET_NTHREADS)"
    )
    sockets_per_thread: int | None = Field(
        default=None, ge=1, le=16, description="tcp: sockets of a thread (NCCL_NSOCKS_PERTHREAD)"
    )
    debug: Literal["VERSION", "WARN", "INFO", "TRACE"] = Field(
        default="WARN", description="what NCCL writes into the log (NCCL_DEBUG)"
    )

    @model_validator(mode="after")
    def _fields_fit_the_network(self) -> Self:
        for name, networks in _NETWORKS_OF_FIELDS.items():
            if getattr(self, name) is not None and self.network not in networks:
                raise ValueError(
                    f"sets {name}, which belongs to {' or '.join(networks)}, but network is "
                    f"{self.network!r}: leave it out"
                )
        if (self.socket_threads or 1) * (self.sockets_per_thread or 1) > 64:
            raise ValueError(
                "has more than 64 sockets a connection: write less socket_threads or "
                "sockets_per_thread"
            )
        return self

    @property
    def uses_rdma(self) -> bool:
        """Whether an RDMA device is needed."""
        return self.network in _RDMA_NETWORKS

    def to_environment(self, interface: str | None) -> dict[str, str]:
        """NCCL's variables; `interface` is that of the RDMA network, where there is one."""
        first_contact = self.interface or interface
        variables = {**NETWORK_DEFAULTS[self.network], "NCCL_DEBUG": self.debug}
        if first_contact is not None:
            # gloo, which meets before NCCL does, would take the address of the host's name.
            variables |= {
                "NCCL_SOCKET_IFNAME": first_contact,
                "GLOO_SOCKET_IFNAME": first_contact,
            }
        for name, variable in _VARIABLES.items():
            value = getattr(self, name)
            if value is not None:
                variables[variable] = str(value)
        return variables


_VARIABLES: Final[Mapping[str, str]] = {
    "gid_index": "NCCL_IB_GID_INDEX",
    "traffic_class": "NCCL_IB_TC",
    "service_level": "NCCL_IB_SL",
    "timeout": "NCCL_IB_TIMEOUT",
    "retry_count": "NCCL_IB_RETRY_CNT",
    "queue_pairs": "NCCL_IB_QPS_PER_CONNECTION",
    "gpu_direct": "NCCL_NET_GDR_LEVEL",
    "socket_threads": "NCCL_SOCKET_NTHREADS",
    "sockets_per_thread": "NCCL_NSOCKS_PERTHREAD",
}

_NETWORKS_OF_FIELDS: Final[Mapping[str, tuple[NetworkName, ...]]] = {
    "interface": ("tcp",),
    "gid_index": ("roce",),
    "traffic_class": ("roce",),
    "service_level": ("infiniband",),
    "timeout": ("infiniband", "roce"),
    "retry_count": ("infiniband", "roce"),
    "queue_pairs": ("infiniband", "roce"),
    "gpu_direct": ("infiniband", "roce"),
    "socket_threads": ("tcp",),
    "sockets_per_thread": ("tcp",),
}
