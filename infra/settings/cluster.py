"""Which cluster the stack is for."""

from typing import Self

from pydantic import Field, model_validator

from infra.settings.types import DnsName, Settings


class ClusterSettings(Settings):
    """The one cluster that this stack may touch, or a folder to render manifests into."""

    context: str | None = Field(
        default=None,
        min_length=1,
        description="context of the kubeconfig; named here so that this stack can never reach "
        "another cluster, whatever the current context is",
    )
    kubeconfig: str | None = Field(
        default=None,
        min_length=1,
        description="path of the kubeconfig file; without it $KUBECONFIG or ~/.kube/config is read",
    )
    render_to: str | None = Field(
        default=None,
        min_length=1,
        description="folder that receives plain manifests instead of a cluster; "
        "nothing is sent to a cluster, and chart releases are left out",
    )
    domain: DnsName = Field(
        default="cluster.local", description="DNS domain of the cluster's services"
    )

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.render_to is None and self.context is None:
            raise ValueError(
                "names no cluster: write `context`, the kubeconfig context to deploy to, or "
                "`render_to`, a folder to write manifests into"
            )
        return self
