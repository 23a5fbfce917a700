"""Inference services."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from inference.config import InferenceConfig
from infra.settings.types import (
    CpuQuantity,
    DnsLabel,
    DnsName,
    EnvironmentName,
    Labels,
    MemoryQuantity,
    Port,
    PositiveInt,
    QualifiedName,
    RunKey,
    Settings,
    parse_quantity,
)
from training.config import plain_errors

_RUN = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?-[0-9a-f]{8}")


def _run_name(text: str) -> str:
    if not _RUN.fullmatch(text):
        raise ValueError(
            "must be the full name of a run, <job>-<8 digits>, as the output `runs` shows it"
        )
    return text


RunName = Annotated[str, AfterValidator(_run_name)]


class AutoscalingSettings(Settings):
    """Let the load decide how many replicas run."""

    min: PositiveInt = Field(1, description="fewest replicas")
    max: PositiveInt = Field(description="most replicas")
    cpu_percent: int = Field(
        70, ge=1, le=1000, description="use of the CPU request, in percent, that is aimed at"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"contradicts itself: min is {self.min}, max is {self.max}")
        return self


class InferenceServiceSettings(Settings):
    """One model that is served."""

    job: RunKey | None = Field(None, description="job of this stack whose present run is served")
    run: RunName | None = Field(None, description="a certain run, kept whatever the jobs become")
    image: DnsLabel = Field("inference", description="name of the image")
    model: str | None = Field(None, description="name in the protocol; the key by default")
    checkpoints: DnsLabel = Field("checkpoints", description="claim with the run's export")
    replicas: PositiveInt | None = Field(
        None, le=1000, description="pods; 1 by default, and left out with autoscaling"
    )
    autoscaling: AutoscalingSettings | None = Field(None, description="replicas by load")
    max_unavailable: PositiveInt = Field(
        1, description="pods that may be missing while nodes are drained"
    )
    gpus: int = Field(0, ge=0, le=64, description="GPUs of each pod")
    gpu_resource: QualifiedName | None = Field(
        None, description="name of the GPU resource where it is not that of the stack"
    )
    cpu: CpuQuantity = Field(description="CPU request of each pod; there is no CPU limit")
    memory: MemoryQuantity = Field(description="memory request and limit of each pod")
    shm: MemoryQuantity = Field("64Mi", description="size of /dev/shm, part of the memory limit")
    port: Port = Field(8080, description="port of the server and of its Service")
    service_type: Literal["ClusterIP", "NodePort"] = Field(
        "ClusterIP", description="how the Service is reached"
    )
    spread: bool = Field(True, description="prefer different nodes for the pods")
    node_selector: Labels = Field({}, description="further labels of nodes that it may run on")
    priority_class: DnsName | None = Field(None, description="priority class of its pods")
    server: dict[str, Any] = Field(
        {}, description="further configuration of the model server (inference/config.py)"
    )
    env: dict[EnvironmentName, str] = Field({}, description="further environment variables")
    startup_seconds: PositiveInt = Field(
        120, description="longest time from the container's start until the server answers"
    )
    progress_deadline_seconds: PositiveInt = Field(
        600, description="when the Deployment reports that a rollout does not advance"
    )
    grace_seconds: int = Field(
        30, ge=1, le=3600, description="time to finish what is in flight when a pod has to leave"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.job is None) == (self.run is None):
            found = "both" if self.job else "neither"
            raise ValueError(f"needs either `job` or `run` to serve, but has {found}")
        if self.autoscaling is not None and self.replicas is not None:
            raise ValueError(
                "contradicts itself: replicas are fixed and autoscaling is on; leave one out"
            )
        if parse_quantity(self.shm) >= parse_quantity(self.memory):
            raise ValueError(
                f"has shm {self.shm}, but memory {self.memory}: /dev/shm counts against the memory "
                "limit, so write less shm or more memory"
            )
        self._check_server()
        return self

    def _check_server(self) -> None:
        decided = {"model_name", "model_path", "host", "port"} & self.server.keys()
        if decided:
            raise ValueError(
                f"sets server.{', server.'.join(sorted(decided))}, which the stack decides: "
                "leave it out"
            )
        try:
            config = InferenceConfig.model_validate(
                {"model_name": "model", "model_path": "/models", **self.server}
            )
        except ValidationError as error:
            written_as = {name: f"server.{name}" for name in InferenceConfig.model_fields}
            problems = "; ".join(plain_errors(error, written_as))
            raise ValueError(f"has a `server` that cannot be used: {problems}") from None
        if config.drain_seconds >= self.grace_seconds:
            raise ValueError(
                f"drains for up to {config.drain_seconds:g} seconds, but its pods are killed after "
                f"grace_seconds {self.grace_seconds}: write less server.drain_seconds or more "
                "grace_seconds"
            )

    @property
    def most_replicas(self) -> int:
        """The largest number of pods that the service may have."""
        return self.autoscaling.max if self.autoscaling else self.replicas or 1


class InferenceSettings(Settings):
    """Inference services by key."""

    services: dict[RunKey, InferenceServiceSettings] = Field({}, description="services")
