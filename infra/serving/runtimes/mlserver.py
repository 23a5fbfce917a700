"""MLServer: scikit-learn, XGBoost, LightGBM, MLflow and custom Python models."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import Field

from infra.serving.runtimes.runtime import LATENCY, REQUESTS, Endpoints, Launch, Runtime, Source
from kube.names import TMP_PATH

_GRPC_PORT: Final = 8081
_METRICS_PORT: Final = 8082


class Mlserver(Runtime):
    """Settings of MLServer 1.7, which reads them from `MLSERVER_*` variables."""

    sources: ClassVar[frozenset[Source]] = frozenset({"run", "claim", "artifact"})
    managed: ClassVar[Mapping[str, str]] = {"model_name": "`model`"}
    recordings: ClassVar[Mapping[str, str]] = {
        REQUESTS: "label_replace(sum by (namespace, service, pod, status_code) "
        '(rest_server_requests_total), "code", "$1", "status_code", "(.*)")',
        LATENCY: "sum by (namespace, service, pod, le) "
        "(rest_server_request_duration_seconds_bucket)",
    }

    model_name: str = Field(default="model", pattern=r"^[^\s/?#%]+$")
    """Name of the model, which is part of the server's paths."""
    implementation: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*$")
    """Class of the model, such as mlserver_sklearn.SKLearnModel. If None, a
    model-settings.json is required next to the model."""
    parallel_workers: int = Field(default=0, ge=0, le=64)
    """Number of worker processes. With 0, the model runs in the server's process."""
    max_batch_size: int | None = Field(default=None, ge=1)
    max_batch_time: float | None = Field(default=None, gt=0)
    grpc_max_message_length: int | None = Field(default=None, ge=1)
    parameters: dict[str, Any] = Field(default={})
    """Values that the implementation reads from `parameters.extra`."""

    def command(self, launch: Launch) -> list[str]:
        """Return the command with its arguments."""
        return ["mlserver", "start", launch.path]

    def environment(self, launch: Launch) -> dict[str, str]:
        """Return the environment variables.

        Two of them redirect files that MLServer would otherwise write to its working directory,
        which is read-only.
        """
        variables: dict[str, Any] = {
            "HOST": "0.0.0.0",  # noqa: S104  the pod's network namespace
            "HTTP_PORT": launch.port,
            "GRPC_PORT": _GRPC_PORT,
            "METRICS_PORT": _METRICS_PORT,
            "METRICS_DIR": f"{TMP_PATH}/mlserver-metrics",
            "ENVIRONMENTS_DIR": f"{TMP_PATH}/mlserver-environments",
            "DEBUG": "false",
            "PARALLEL_WORKERS": self.parallel_workers,
            "GRPC_MAX_MESSAGE_LENGTH": self.grpc_max_message_length,
            "MODEL_NAME": launch.model,
            "MODEL_URI": launch.path,
            "MODEL_IMPLEMENTATION": self.implementation,
            "MODEL_MAX_BATCH_SIZE": self.max_batch_size,
            "MODEL_MAX_BATCH_TIME": self.max_batch_time,
            "MODEL_EXTRA": json.dumps(self.parameters) if self.parameters else None,
        }
        return {
            f"MLSERVER_{key}": str(value) for key, value in variables.items() if value is not None
        }

    def in_flight(self, labels: str) -> str:
        """Return a PromQL expression for the number of HTTP requests in flight."""
        return f"rest_server_requests_in_progress{{{labels}}}"

    @property
    def endpoints(self) -> Endpoints:
        """Paths and ports of the server."""
        return Endpoints(
            live="/v2/health/live",
            # /v2/health/ready succeeds even if the model failed to load. The model's own path
            # needs the model's name, which a model-settings.json may override.
            ready="/v2/models/{model}/ready" if self.implementation else "/v2/health/ready",
            grpc_port=_GRPC_PORT,
            metrics_port=_METRICS_PORT,
        )
