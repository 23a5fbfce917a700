"""Access to a service: TLS, API keys and routes."""

from typing import Final, Self

from pydantic import Field, model_validator

from infra.settings.types import DataKey, DnsLabel, DnsName, HostNames, PathPrefix, Settings

_MAX_HOST_NAMES: Final = 16
"""Maximum number of host names per route in the Gateway API."""


class TlsSettings(Settings):
    """TLS termination at the model server."""

    secret: DnsName = Field(
        description="Name of a Secret of type kubernetes.io/tls in the service's namespace."
    )


class ApiKeysSettings(Settings):
    """API keys. Clients must send one of them with each request."""

    secret: DnsName = Field(description="Name of a Secret in the service's namespace.")
    key: DataKey = Field(
        default="keys",
        description="Key in the Secret. Its value has one API key per line, as plain text or "
        "as `sha256:<hex>`.",
    )


class GatewaySettings(Settings):
    """A Gateway in the cluster (Gateway API v1) to which routes are attached."""

    name: DnsName = Field(description="Name of the Gateway.")
    namespace: DnsLabel | None = Field(
        default=None, description="Namespace of the Gateway. Defaults to the workloads' namespace."
    )
    section: DnsName | None = Field(
        default=None,
        description="Name of a listener of the Gateway. If null, routes attach to all listeners.",
    )

    @property
    def parent_reference(self) -> dict[str, str]:
        """A route's reference to this Gateway."""
        reference = {"name": self.name, "namespace": self.namespace, "sectionName": self.section}
        return {key: value for key, value in reference.items() if value is not None}


class IngressSettings(Settings):
    """An Ingress, for clusters without the Gateway API."""

    class_name: DnsName = Field(description="Name of the IngressClass.")


class RouteSettings(Settings):
    """Route from outside the cluster to the service and its canary."""

    gateway: GatewaySettings | None = Field(default=None, description="Gateway to attach to.")
    ingress: IngressSettings | None = Field(
        default=None, description="Ingress to create. A canary requires ingress-nginx."
    )
    hostnames: HostNames = Field(
        default=[], description="Host names. If empty, every host name is accepted."
    )
    path: PathPrefix = Field(
        default="/",
        description="Path prefix of the service. The gateway removes it from the path before the "
        "server receives the request.",
    )

    grpc_hostnames: HostNames = Field(
        default=[],
        description="Host names of the gRPC API, which must differ from `hostnames`. They require "
        "a gateway and a runtime with gRPC.",
    )

    @model_validator(mode="after")
    def _has_one_route_type(self) -> Self:
        if (self.gateway is None) == (self.ingress is None):
            raise ValueError("must set exactly one of gateway and ingress")
        if self.ingress is not None and self.path != "/":
            raise ValueError(
                f"sets path to {self.path}, but an ingress cannot remove the prefix before the "
                "server receives the request: set hostnames instead"
            )
        if self.grpc_hostnames and self.gateway is None:
            raise ValueError("sets grpc_hostnames, but an Ingress has no gRPC route: set gateway")
        for key in ("hostnames", "grpc_hostnames") if self.gateway is not None else ():
            if len(names := getattr(self, key)) > _MAX_HOST_NAMES:
                raise ValueError(
                    f"lists {len(names)} {key}, but a Gateway route may have at most "
                    f"{_MAX_HOST_NAMES}: set fewer"
                )
        if both := sorted({*self.grpc_hostnames} & {*self.hostnames}):
            raise ValueError(
                f"lists {both[0]} in both hostnames and grpc_hostnames, but a listener accepts "
                "either an HTTPRoute or a GRPCRoute for a host name: use different ones"
            )
        if self.grpc_hostnames and not self.hostnames:
            raise ValueError(
                "sets grpc_hostnames, but its HTTP route accepts every host name: set hostnames"
            )
        return self
