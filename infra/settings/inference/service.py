"""One inference service."""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from infra.serving.runtimes import RUNTIMES, RuntimeName
from infra.serving.runtimes.runtime import Runtime
from infra.settings.cluster import TolerationSettings
from infra.settings.inference.access import ApiKeysSettings, RouteSettings, TlsSettings
from infra.settings.inference.consistency import problems
from infra.settings.inference.models import (
    ExportUrl,
    FetchSettings,
    RunName,
    SourceSettings,
)
from infra.settings.inference.scaling import AutoscalingSettings, CanarySettings, RolloutSettings
from infra.settings.types import (
    CpuQuantity,
    DeviceName,
    DiskQuantity,
    DnsLabel,
    DnsName,
    EnvironmentName,
    Labels,
    MemoryQuantity,
    Port,
    PositiveInt,
    RunKey,
    Settings,
    Sha256,
)
from infra.settings.volumes import ReferenceSettings, VolumeSettings

_PROGRESS_SECONDS: Final = 600
"""Minimum (s) of the default progress deadline. It is also Kubernetes' default."""

_SCHEDULING_SECONDS: Final = 450
"""Time (s) that the default progress deadline allows for scheduling a pod and pulling its image.
`startup_seconds` does not include this time."""


class InferenceServiceSettings(Settings):
    """A service that serves one model."""

    runtime: RuntimeName = Field(
        default="torch", description="Server program: `torch` is the model server of this project."
    )
    job: RunKey | None = Field(
        default=None, description="Job in this stack whose current run is served."
    )
    sweep: RunKey | None = Field(
        default=None,
        description="Sweep in this stack with `winner: serve`, whose winner is served when the "
        "sweep is over.",
    )
    run: RunName | None = Field(
        default=None, description="Run to serve, independent of later runs of its job."
    )
    url: ExportUrl | None = Field(
        default=None,
        description="URL of an export in an object store or on a web server, such as "
        "s3://bucket/digits-1a2b3c4d/export.",
    )
    source: SourceSettings | None = Field(
        default=None,
        description="Model from a claim, the Hugging Face Hub, an OCI artifact or the image.",
    )
    fetch: FetchSettings = Field(
        default=FetchSettings(),
        description="Download of the model that `url` or `source` specifies.",
    )
    digest: Sha256 | None = Field(
        default=None,
        description="Expected SHA-256 of the weights. The server rejects weights with a different "
        "digest. null disables the check.",
    )
    image: DnsLabel = Field(default="inference", description="Key of the image.")
    model: str | None = Field(
        default=None, description="Name of the model in requests. Defaults to the service's key."
    )
    checkpoints: DnsLabel = Field(
        default="checkpoints", description="Claim with the export of the run."
    )
    replicas: PositiveInt | None = Field(
        default=None,
        le=1000,
        description="Number of replicas. A replica is a pod or, with the vllm runtime and "
        "server.nnodes, a group of pods. The default is 1, unless autoscaling is set.",
    )
    autoscaling: AutoscalingSettings | None = Field(
        default=None, description="Scale the number of replicas with the load."
    )
    canary: CanarySettings | None = Field(
        default=None,
        description="A second version that receives a share of the requests. It requires a route.",
    )
    route: RouteSettings | None = Field(
        default=None,
        description="Gateway or Ingress. If null, the service has no route from outside.",
    )
    rollout: RolloutSettings = Field(
        default=RolloutSettings(),
        description="Update strategy: a rolling update, with or without surge replicas, or "
        "re-creation of all pods.",
    )
    max_unavailable: PositiveInt = Field(
        default=1,
        description="Maximum number of pods that may be unavailable while nodes are drained. "
        "Unless it is 1, it must be less than the minimum number of replicas. A canary with "
        "several replicas always keeps one of them available.",
    )
    gpus: int = Field(default=0, ge=0, le=64, description="Number of GPUs per pod.")
    gpu_resource: DeviceName | None = Field(
        default=None,
        description="Name of the GPU resource. Defaults to the GPU resource of the stack.",
    )
    cpu: CpuQuantity = Field(description="CPU request of each pod. There is no CPU limit.")
    memory: MemoryQuantity = Field(description="Memory request and limit of each pod.")
    shm: MemoryQuantity = Field(
        default="64Mi", description="Size of /dev/shm, which counts against the memory limit."
    )
    ephemeral_storage: DiskQuantity | None = Field(
        default=None,
        description="Ephemeral storage request and limit of each pod: /tmp (1Gi), `scratch` "
        "volumes, logs and files that containers write, and `fetch.size` if the model is "
        "downloaded to the node. If null, nothing is requested, so the pod is among the first to "
        "be evicted when the disk is full.",
    )
    port: Port = Field(default=8080, description="Port of the server and of its Service.")
    tls: TlsSettings | None = Field(
        default=None, description="TLS termination at the model server."
    )
    api_keys: ApiKeysSettings | None = Field(
        default=None,
        description="API keys. Clients must send one of them with each request. null disables this "
        "check.",
    )
    service_type: Literal["ClusterIP", "NodePort"] = Field(
        default="ClusterIP", description="Type of the Service."
    )
    spread: bool = Field(default=True, description="Prefer to place the pods on different nodes.")
    node_selector: Labels = Field(
        default={}, description="Additional node labels that the pods require."
    )
    labels: Labels = Field(
        default={}, description='Labels of the pods, such as azure.workload.identity/use: "true".'
    )
    tolerations: list[TolerationSettings] = Field(
        default=[], description="Tolerations in addition to those of the stack."
    )
    priority_class: DnsName | None = Field(default=None, description="Priority class of the pods.")
    server: dict[str, Any] = Field(
        default={}, description="Settings of the server program, depending on the runtime."
    )
    env: dict[EnvironmentName, str] = Field(
        default={}, description="Additional environment variables."
    )
    env_from: dict[EnvironmentName, ReferenceSettings] = Field(
        default={},
        description="Environment variables whose values come from Secrets or ConfigMaps.",
    )
    volumes: dict[DnsLabel, VolumeSettings] = Field(
        default={},
        description="Additional volumes of every pod, for example one with a custom handler.",
    )
    startup_seconds: PositiveInt = Field(
        default=120,
        description="Maximum time (s) from the start of the container until the server answers.",
    )
    progress_deadline_seconds: PositiveInt | None = Field(
        default=None,
        description="Time (s) without progress after which the Deployment reports a failed "
        "rollout, and maximum time (s) that an update waits for a canary. It must exceed "
        "min_ready_seconds. The default is max(600, startup_seconds + min_ready_seconds + 450). "
        "For a canary whose replicas are replaced in several steps, the default wait is longer by "
        "startup_seconds + min_ready_seconds for each additional step.",
    )
    min_ready_seconds: int = Field(
        default=5,
        ge=0,
        le=3600,
        description="Time (s) that a new pod must be ready before an old one is removed, so "
        "that load balancers discover it and a faulty version is detected.",
    )
    pre_stop_seconds: int = Field(
        default=2,
        ge=0,
        le=300,
        description="Delay (s) between a pod's removal from the Service and SIGTERM. "
        "Values above 0 require Kubernetes 1.30.",
    )
    grace_seconds: int = Field(
        default=30,
        ge=1,
        le=3600,
        description="Time (s) for a terminating pod to finish requests in flight. It must "
        "exceed the sum of pre_stop_seconds and the time that the server takes to stop.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for problem in problems(self):
            raise ValueError(problem)
        return self

    def runtime_of(self, server: Mapping[str, Any]) -> Runtime:
        """Return the runtime of one version of the service.

        The argument overrides the service's `server` settings: pass `canary.server` for the canary,
        and {} for the service itself.
        """
        kind = RUNTIMES[self.runtime]
        port = {"port": self.port} if "port" in kind.model_fields else {}
        return kind.model_validate({**self.server, **server, **port})

    @property
    def progress_deadline(self) -> int:
        """Progress deadline (s), which by default suffices for the slowest permitted start."""
        if self.progress_deadline_seconds is not None:
            return self.progress_deadline_seconds
        start = self.startup_seconds + self.min_ready_seconds
        return max(_PROGRESS_SECONDS, start + _SCHEDULING_SECONDS)

    @property
    def canary_deadline(self) -> int:
        """Maximum time (s) of a canary update, which may replace one replica at a time."""
        if self.progress_deadline_seconds is not None or self.canary is None:
            return self.progress_deadline
        at_once = self.canary.replicas if self.rollout.recreate else max(self.rollout.surge, 1)
        steps = math.ceil(self.canary.replicas / at_once)
        start = self.startup_seconds + self.min_ready_seconds
        return self.progress_deadline + (steps - 1) * start

    @property
    def versions(self) -> Mapping[str, Mapping[str, Any]]:
        """The `server` settings to pass to `runtime_of` for each version, keyed by their path."""
        canary = {"canary.server": self.canary.server} if self.canary else {}
        return {"server": self.server, **canary}

    def ports_of(self, server: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ports of a version's pods: HTTP, gRPC and metrics."""
        endpoints = self.runtime_of(server).endpoints
        others = (endpoints.grpc_port, endpoints.metrics_port)
        return (self.port, *(port for port in others if port is not None))

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports of the pods of all versions."""
        every = (port for server in self.versions.values() for port in self.ports_of(server))
        return tuple(dict.fromkeys(every))

    @property
    def metrics_ports(self) -> frozenset[int]:
        """Metrics ports of all versions; empty if the server has no metrics."""
        every = [self.runtime_of(server).endpoints for server in self.versions.values()]
        return frozenset(each.metrics_port or self.port for each in every if each.metrics)

    @property
    def claims(self) -> Mapping[str, str]:
        """Claims with models or with cached models, keyed by the settings that name them."""
        canary = self.canary
        versions = {"source": self.source, "canary.source": canary.source if canary else None}
        found = {
            key: source.claim_name
            for key, source in versions.items()
            if source is not None and source.claim_name is not None
        }
        if self.job or self.sweep or self.run or (canary and canary.run):
            found["checkpoints"] = self.checkpoints
        if self.fetch.cache is not None:
            found["fetch.cache.claim"] = self.fetch.cache.claim
        return found

    @property
    def min_replicas(self) -> int:
        """Minimum number of replicas of the service without its canary."""
        return self.autoscaling.min if self.autoscaling else self.replicas or 1

    @property
    def max_replicas(self) -> int:
        """Maximum number of replicas of the service without its canary."""
        return self.autoscaling.max if self.autoscaling else self.replicas or 1

    @property
    def canary_image(self) -> str:
        """Key of the canary's image."""
        return (self.canary.image if self.canary else None) or self.image

    @property
    def max_pods(self) -> int:
        """Maximum number of pods of the service with its canary."""
        return self.max_replicas * self.runtime_of({}).nodes + self.canary_pods

    @property
    def canary_pods(self) -> int:
        """Number of pods of the canary; 0 if there is no canary."""
        if self.canary is None:
            return 0
        return self.canary.replicas * self.runtime_of(self.canary.server).nodes

    @property
    def max_nodes(self) -> int:
        """Maximum number of pods per replica, in the service or its canary."""
        return max(self.runtime_of(server).nodes for server in self.versions.values())

    @property
    def has_groups(self) -> bool:
        """True if a replica has several pods."""
        return self.max_nodes > 1

    @property
    def update_pods(self) -> int:
        """Maximum number of additional pods during an update."""
        return self.rollout.additional_replicas * self.max_nodes
