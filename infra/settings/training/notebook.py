"""Additional settings for jobs of kind `notebook`."""

from typing import Self

from pydantic import Field, model_validator

from infra.settings.inference.access import GatewaySettings
from infra.settings.types import DnsLabel, DnsName, HostName, PathPrefix, Settings


class NotebookRouteSettings(Settings):
    """Route from a browser outside the cluster to a notebook."""

    gateway: GatewaySettings = Field(description="Gateway to attach to.")
    hostnames: list[HostName] = Field(
        default=[], description="Host names. Empty accepts every host name."
    )
    path: PathPrefix = Field(
        default="/",
        pattern=r"^/([A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*)?$",
        description="Path prefix of the notebook, such as /notebooks/anna.",
    )

    @model_validator(mode="after")
    def _matches_one_notebook(self) -> Self:
        if self.path == "/" and not self.hostnames:
            raise ValueError(
                "has neither hostnames nor path, so it would receive every request to the Gateway: "
                "set one of them"
            )
        return self


class NotebookSettings(Settings):
    """JupyterLab in a job of kind `notebook`."""

    home: DnsLabel = Field(
        description="Claim that contains the home directory. The directory is named after the "
        "job's key and is kept when the notebook is deleted."
    )
    token_secret: DnsName = Field(
        description="Secret in the notebook's namespace. Its key `token` contains the access token."
    )
    route: NotebookRouteSettings | None = Field(
        default=None,
        description="Route from outside the cluster. null allows only `kubectl port-forward`.",
    )
    idle_minutes: int = Field(
        default=60,
        ge=1,
        le=7 * 24 * 60,
        description="Time (min) without activity of kernels, terminals and GPUs after which the "
        "notebook is suspended. JupyterLab shows a warning 10 minutes before the suspension, or "
        "halfway through if the time is less than 20 minutes.",
    )
