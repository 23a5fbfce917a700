"""The model server of this project (`inference/`) for exports of its training program."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar

from inference.config import PROGRAMS, InferenceConfig, ModelName
from infra.serving.runtimes.runtime import IN_FLIGHT, Endpoints, Launch, Runtime, Source
from kube.names import MODELS_PATH


class Torch(InferenceConfig, Runtime):
    """Model server of this project, configured by `INFERENCE_*` variables."""

    sources: ClassVar[frozenset[Source]] = frozenset({"run", "url", "claim", "artifact"})
    max_latency: ClassVar[float] = 30
    managed: ClassVar[Mapping[str, str]] = {
        "model_name": "`model`",
        "model_path": "`job`, `sweep`, `run`, `url` or `source`",
        "model_sha256": "`digest`",
        "host": "",
        "port": "`port`",
        "tls_certificate": "`tls`",
        "tls_key": "`tls`",
        "api_keys_file": "`api_keys`",
    }

    model_name: ModelName = "model"
    model_path: PurePosixPath = PurePosixPath(MODELS_PATH)

    def command(self, launch: Launch) -> list[str]:
        """Return the command with its arguments."""
        return ["python3", "-m", "inference"]

    def environment(self, launch: Launch) -> dict[str, str]:
        """Return the environment variables."""
        return self._config(launch).to_environment()

    def _config(self, launch: Launch) -> InferenceConfig:
        values: dict[str, Any] = {
            **self.model_dump(exclude_unset=True),
            "model_name": launch.model,
            "model_path": launch.path,
            "port": launch.port,
        }
        # By default, the server would use all cores of the node, because its container sees them.
        values.setdefault("threads", max(1, launch.cpus // self.workers))
        if launch.digest is not None:
            values["model_sha256"] = launch.digest
        if launch.tls is not None:
            values |= {
                "tls_certificate": f"{launch.tls}/tls.crt",
                "tls_key": f"{launch.tls}/tls.key",
            }
        if launch.api_keys is not None:
            values["api_keys_file"] = launch.api_keys
        return InferenceConfig.model_validate(values)

    @property
    def endpoints(self) -> Endpoints:
        """Paths and ports of the server."""
        return Endpoints(
            live="/v2/health/live",
            ready="/v2/health/ready",
            metrics_port=self.admin_port,
            probe_port="metrics",
        )

    def in_flight(self, labels: str) -> str:
        """Return a PromQL expression for the number of requests in flight."""
        return f"{IN_FLIGHT}{{{labels}}}"

    @property
    def stop_seconds(self) -> Mapping[str, float]:
        """Maximum time (s) of each phase of the shutdown, keyed by the setting that limits it."""
        return {"notice_seconds": self.notice_seconds, "drain_seconds": self.drain_seconds}

    def problem(self, gpus: int) -> str | None:
        """Return an error message if the device does not match the number of GPUs."""
        if gpus and self.backend in PROGRAMS and self.device != "cpu":
            return (
                f"sets backend to {self.backend}, which runs only on the CPU, but gpus is "
                f"{gpus}: set gpus to 0, or device to cpu"
            )
        if not gpus and self.device == "cuda":
            return "sets device to cuda, but gpus is 0: set gpus"
        return None
