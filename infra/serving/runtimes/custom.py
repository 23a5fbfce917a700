"""Runtime for any other HTTP server, such as LitServe, BentoML, SGLang or `transformers serve`."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import Field

from infra.serving.runtimes.runtime import Endpoints, Launch, Runtime, Source

Path = Annotated[str, Field(pattern=r"^/\S*$")]
_Port = Annotated[int, Field(ge=1024, le=65535)]
_SERIES: Final = r"^[a-zA-Z_:][a-zA-Z0-9_:]*$"


class Custom(Runtime):
    """A command in the image, and the endpoints of the server that it starts.

    The command may contain `$(PORT)`, `$(MODEL_PATH)`, `$(MODEL_NAME)` and, for a model from the
    hub, `$(MODEL_REVISION)`. The program also gets these values as environment variables.
    """

    sources: ClassVar[frozenset[Source]] = frozenset({"run", "claim", "hub", "artifact", "image"})

    arguments: tuple[str, ...] = Field(alias="command", min_length=1)
    live: Path = "/health"
    ready: Path | None = None
    """If None, the `live` path is used."""
    metrics: Path | None = "/metrics"
    """Metrics path. None if the server does not export metrics."""
    metrics_port: _Port | None = None
    grpc_port: _Port | None = None
    requests_in_flight: str | None = Field(default=None, pattern=_SERIES)
    """Name of the gauge that counts requests in flight (queued or being processed)."""
    drain_seconds: float = Field(default=20, ge=0, le=3600)

    def command(self, launch: Launch) -> list[str]:
        """Return the command with its arguments."""
        return list(self.arguments)

    def environment(self, launch: Launch) -> dict[str, str]:
        """Return the environment variables."""
        variables = {
            "PORT": str(launch.port),
            "MODEL_NAME": launch.model,
            "MODEL_PATH": launch.path,
        }
        return variables | ({"MODEL_REVISION": launch.revision} if launch.revision else {})

    @property
    def endpoints(self) -> Endpoints:
        """Paths and ports of the server."""
        return Endpoints(
            live=self.live,
            ready=self.ready or self.live,
            metrics=self.metrics,
            metrics_port=self.metrics_port,
            grpc_port=self.grpc_port,
        )

    def in_flight(self, labels: str) -> str | None:
        """Return a PromQL expression for the number of requests in flight."""
        return None if self.requests_in_flight is None else f"{self.requests_in_flight}{{{labels}}}"

    @property
    def stop_seconds(self) -> Mapping[str, float]:
        """Maximum time (s) of each phase of the shutdown, keyed by the setting that limits it."""
        return {"drain_seconds": self.drain_seconds}
