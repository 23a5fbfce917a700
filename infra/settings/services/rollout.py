"""How a new version of a service gets its traffic."""

from typing import Any, Self

from pydantic import Field, model_validator

from infra.settings.services.source import Digest, ExportUrl, RunName
from infra.settings.types import DnsLabel, DnsName, PositiveInt, Settings


class CanarySettings(Settings):
    """A second version beside the first, with a share of the requests."""

    weight: int = Field(
        ge=0, le=100, description="percent of the requests; 0 takes them all back at once"
    )
    run: RunName | None = Field(default=None, description="run that it serves; that of the service")
    url: ExportUrl | None = Field(
        default=None, description="export that it serves, in an object store"
    )
    digest: Digest | None = Field(
        default=None, description="sha256 of the weights, which it then insists on"
    )
    image: DnsLabel | None = Field(
        default=None, description="name of its image; that of the service"
    )
    server: dict[str, Any] = Field(
        default={}, description="what is different in its configuration of the model server"
    )
    replicas: PositiveInt = Field(default=1, le=1000, description="its pods")

    @model_validator(mode="after")
    def _one_difference(self) -> Self:
        if self.run is not None and self.url is not None:
            raise ValueError("has both run and url: write one of them")
        if not any((self.run, self.url, self.image, self.server)):
            raise ValueError("is the same as the service: write run, url, image or server")
        return self


class GatewaySettings(Settings):
    """A Gateway of the cluster (Gateway API v1), to which an HTTPRoute is attached."""

    name: DnsName = Field(description="name of the Gateway")
    namespace: DnsLabel | None = Field(
        default=None, description="its namespace; that of the service"
    )
    section: DnsName | None = Field(
        default=None, description="one of its listeners; all by default"
    )


class IngressSettings(Settings):
    """An ingress class, for clusters without the Gateway API."""

    class_name: DnsName = Field(description="name of the IngressClass")


class RouteSettings(Settings):
    """How requests from outside of the cluster arrive, and are shared out with a canary."""

    gateway: GatewaySettings | None = Field(default=None, description="Gateway to attach to")
    ingress: IngressSettings | None = Field(
        default=None, description="Ingress; a canary needs the annotations of ingress-nginx"
    )
    hostnames: list[DnsName] = Field(default=[], description="host names; all by default")
    path: str = Field(
        default="/",
        pattern=r"^/[^\s?#]*$",
        description="prefix of the paths that belong to the service; taken off before the server",
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.gateway is None) == (self.ingress is None):
            raise ValueError("needs one of gateway and ingress, and not both")
        if self.ingress is not None and self.path != "/":
            raise ValueError(
                f"has path {self.path} with an ingress, which hands paths on as they are, and the "
                "server knows /v2 and the like: write hostnames instead"
            )
        return self
