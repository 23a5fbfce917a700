"""Network between the nodes of a job: RDMA devices and NCCL settings."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from infra.settings.types import DeviceName, PositiveInt, Settings

NetworkName = Literal["infiniband", "roce", "tcp"]
Byte = Annotated[int, Field(ge=0, le=255)]
_RDMA_NETWORKS: Final = ("infiniband", "roce")


class RdmaSettings(Settings):
    """An RDMA network between nodes (InfiniBand or RoCE)."""

    resource: DeviceName = Field(description="Resource name of the RDMA device, such as rdma/hca.")
    count: PositiveInt = Field(default=1, description="Number of RDMA devices per pod.")
    interface: str = Field(
        min_length=1, description="Network interface for NCCL's bootstrap (NCCL_SOCKET_IFNAME)."
    )
    hca: str | None = Field(default=None, description="RDMA adapters that NCCL uses (NCCL_IB_HCA).")


NETWORK_DEFAULTS: Final[Mapping[NetworkName, Mapping[str, str]]] = {
    # With NCCL_NET, NCCL fails if it cannot use that network, instead of silently using TCP.
    "infiniband": {"NCCL_NET": "IB"},
    "roce": {"NCCL_NET": "IB", "NCCL_IB_ROCE_VERSION_NUM": "2"},
    "tcp": {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
}
"""Environment variables for each network.

Source of names and values: "Environment Variables" in NVIDIA's NCCL documentation.
"""


class NcclSettings(Settings):
    """Network settings of NCCL. Unset fields keep NCCL's defaults."""

    network: NetworkName = Field(
        description="Network that NCCL uses. infiniband and roce require `rdma`; with them, NCCL "
        "fails instead of falling back to TCP. tcp never uses an RDMA device."
    )
    interface: str | None = Field(
        default=None,
        min_length=1,
        description="tcp: network interface (NCCL_SOCKET_IFNAME). The other networks use "
        "rdma.interface.",
    )
    gid_index: Byte | None = Field(
        default=None,
        description="roce: index of the adapter's GID (NCCL_IB_GID_INDEX). NCCL 2.21 and later "
        "detect it; earlier releases usually need 3.",
    )
    traffic_class: Byte | None = Field(
        default=None,
        description="roce: traffic class (NCCL_IB_TC) for which the switches are lossless; 106 for "
        "DSCP 26.",
    )
    service_level: int | None = Field(
        default=None, ge=0, le=15, description="infiniband: service level (NCCL_IB_SL)."
    )
    timeout: int | None = Field(
        default=None,
        ge=1,
        le=31,
        description="Exponent of the adapter's timeout, 4.096 µs x 2^timeout (NCCL_IB_TIMEOUT).",
    )
    retry_count: int | None = Field(
        default=None, ge=0, le=7, description="Retries of the adapter (NCCL_IB_RETRY_CNT)."
    )
    queue_pairs: int | None = Field(
        default=None,
        ge=1,
        le=128,
        description="Queue pairs per connection (NCCL_IB_QPS_PER_CONNECTION). Several pairs spread "
        "the traffic of a connection over several paths of the fabric.",
    )
    gpu_direct: Literal["LOC", "PIX", "PXB", "PHB", "SYS"] | None = Field(
        default=None,
        description="Maximum distance between GPU and adapter for GPUDirect (NCCL_NET_GDR_LEVEL). "
        "LOC disables GPUDirect; SYS always uses it.",
    )
    socket_threads: int | None = Field(
        default=None, ge=1, le=16, description="tcp: threads per connection (NCCL_SOCKET_NTHREADS)."
    )
    sockets_per_thread: int | None = Field(
        default=None, ge=1, le=16, description="tcp: sockets per thread (NCCL_NSOCKS_PERTHREAD)."
    )
    debug: Literal["VERSION", "WARN", "INFO", "TRACE"] = Field(
        default="WARN", description="Log level of NCCL (NCCL_DEBUG)."
    )

    @model_validator(mode="after")
    def _fields_fit_the_network(self) -> Self:
        for name, networks in _NETWORKS_BY_FIELD.items():
            if getattr(self, name) is not None and self.network not in networks:
                raise ValueError(
                    f"sets {name}, which applies to {' or '.join(networks)}, but network is "
                    f"{self.network!r}: leave it out"
                )
        if (self.socket_threads or 1) * (self.sockets_per_thread or 1) > 64:
            raise ValueError(
                "has more than 64 sockets per connection: set fewer socket_threads or "
                "sockets_per_thread"
            )
        return self

    @property
    def uses_rdma(self) -> bool:
        """True if an RDMA device is needed."""
        return self.network in _RDMA_NETWORKS

    def to_environment(self, interface: str | None) -> dict[str, str]:
        """Return the environment variables of NCCL and gloo.

        `interface` is the network interface in the RDMA settings, or None without RDMA.
        """
        bootstrap = self.interface or interface
        variables = {**NETWORK_DEFAULTS[self.network], "NCCL_DEBUG": self.debug}
        if bootstrap is not None:
            # gloo, which connects before NCCL, would otherwise use the address of the host name.
            variables |= {"NCCL_SOCKET_IFNAME": bootstrap, "GLOO_SOCKET_IFNAME": bootstrap}
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

_NETWORKS_BY_FIELD: Final[Mapping[str, tuple[NetworkName, ...]]] = {
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
