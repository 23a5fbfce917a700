"""Inference services."""

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from inference.config import InferenceConfig
from infra.settings.cluster import TolerationSettings
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
)
from infra.settings.volumes import ReferenceSettings, VolumeSettings
from kube.names import (
    API_KEYS_VOLUME,
    EXPORT_VOLUME,
    MODELS_PATH,
    MODELS_VOLUME,
    PROGRAM_PATH,
    SECRETS_PATH,
    SHM_VOLUME,
    TLS_VOLUME,
    TMP_VOLUME,
)
from kube.shared_memory import shm_problem
from workload.configuration import problem_sentences

_RUN: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?-[0-9a-f]{8}")
_URL: Final = re.compile(r"(s3|gs|az|https?)://[^\s?#@]+")


def _run_name(text: str) -> str:
    if not _RUN.fullmatch(text):
        raise ValueError(
            "must be the full name of a run, <job>-<8 digits>, as in the output `runs`"
        )
    return text


def _export_url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(
            "must be the URL of an export without credentials, such as "
            "s3://bucket/digits-1a2b3c4d/export (or gs://, az://, http:// and https://)"
        )
    return text.rstrip("/")


RunName = Annotated[str, AfterValidator(_run_name)]
"""Name of a run with its eight digits."""

ExportUrl = Annotated[str, AfterValidator(_export_url)]
"""URL of an export in an object store or behind a web server."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of an export's weights, as in its manifest and in the server's metadata."""


class FetchSettings(Settings):
    """How pods download the export that `url` names."""

    size: MemoryQuantity = Field(
        default="2Gi",
        description="Size limit of the export on the node's disk. A pod that needs more is "
        "evicted.",
    )
    env: dict[EnvironmentName, str] = Field(
        default={},
        description="Environment variables for the object store, such as AWS_REGION and "
        "AWS_ENDPOINT_URL.",
    )
    env_from: dict[EnvironmentName, ReferenceSettings] = Field(
        default={},
        description="Environment variables from Secrets and ConfigMaps, such as "
        "AWS_SECRET_ACCESS_KEY.",
    )


class TlsSettings(Settings):
    """TLS termination at the model server."""

    secret: DnsName = Field(description="Secret of type kubernetes.io/tls in the namespace.")


class ApiKeysSettings(Settings):
    """API keys that predictions require."""

    secret: DnsName = Field(description="Secret in the namespace.")
    key: str = Field(
        default="keys",
        pattern=r"^[-._A-Za-z0-9]{1,253}$",
        description="Key in the Secret. Its value holds one API key a line, plain or as "
        "sha256:<hex>.",
    )


DEFAULT_CPU_PERCENT: Final = 70


class KedaSettings(Settings):
    """Autoscaling with KEDA, which queries Prometheus and can scale to zero."""

    prometheus: str = Field(
        pattern=r"^https?://[^\s]+$",
        description="URL of Prometheus, such as http://prometheus.monitoring:9090.",
    )
    cooldown_seconds: PositiveInt = Field(
        default=300, description="Time (s) without requests after which the last pod is removed."
    )
    activation_query: str | None = Field(
        default=None,
        min_length=1,
        description="PromQL query that is above 0 while requests arrive, such as the gateway's "
        "request rate. Without pods the service itself reports nothing.",
    )


class AutoscalingSettings(Settings):
    """Number of replicas by load."""

    min: int = Field(default=1, ge=0, description="Minimum number of replicas. 0 requires keda.")
    max: PositiveInt = Field(description="Maximum number of replicas.")
    cpu_percent: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Target utilization of the CPU request, in percent. null is "
        f"{DEFAULT_CPU_PERCENT} without queue_depth, and ignores the CPU with it.",
    )
    queue_depth: PositiveInt | None = Field(
        default=None,
        description="Target number of samples in each pod's queue. Without keda it requires an "
        "adapter that serves the metric inference_queue_depth.",
    )
    keda: KedaSettings | None = Field(
        default=None, description="Use KEDA instead of a HorizontalPodAutoscaler."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"contradicts itself: min is {self.min}, max is {self.max}")
        if self.keda is not None and self.queue_depth is None:
            raise ValueError("has keda without queue_depth, by which KEDA scales: write it")
        if self.min == 0 and (self.keda is None or self.keda.activation_query is None):
            raise ValueError(
                "has min 0, which needs keda.activation_query: without a pod nothing else shows "
                "that requests arrive"
            )
        return self

    @property
    def cpu_target(self) -> int | None:
        """Target in percent of the CPU request, None to ignore the CPU."""
        if self.cpu_percent is None and self.queue_depth is None:
            return DEFAULT_CPU_PERCENT
        return self.cpu_percent


class CanarySettings(Settings):
    """A second version of the service that receives a share of the requests."""

    weight: int = Field(
        ge=0,
        le=100,
        description="Percentage of the requests. 0 sends all of them to the first version.",
    )
    run: RunName | None = Field(
        default=None, description="Run to serve. null serves the service's run."
    )
    url: ExportUrl | None = Field(default=None, description="URL of the export to serve.")
    digest: Digest | None = Field(default=None, description="Required SHA-256 of the weights.")
    image: DnsLabel | None = Field(
        default=None, description="Key of the image. null uses the service's image."
    )
    server: dict[str, Any] = Field(
        default={}, description="Model server configuration that differs from the service's."
    )
    replicas: PositiveInt = Field(default=1, le=1000, description="Number of pods.")

    @model_validator(mode="after")
    def _one_difference(self) -> Self:
        if self.run is not None and self.url is not None:
            raise ValueError("has both run and url: write one of them")
        if not any((self.run, self.url, self.image, self.server)):
            raise ValueError("is the same as the service: write run, url, image or server")
        return self


class GatewaySettings(Settings):
    """A Gateway of the cluster (Gateway API v1) that an HTTPRoute is attached to."""

    name: DnsName = Field(description="Name of the Gateway.")
    namespace: DnsLabel | None = Field(
        default=None, description="Namespace of the Gateway. null uses the service's namespace."
    )
    section: DnsName | None = Field(
        default=None, description="One of its listeners. null attaches to all of them."
    )


class IngressSettings(Settings):
    """An Ingress, for clusters without the Gateway API."""

    class_name: DnsName = Field(description="Name of the IngressClass.")


class RouteSettings(Settings):
    """How requests from outside the cluster reach the service and its canary."""

    gateway: GatewaySettings | None = Field(default=None, description="Gateway to attach to.")
    ingress: IngressSettings | None = Field(
        default=None, description="Ingress to create. A canary requires ingress-nginx."
    )
    hostnames: list[DnsName] = Field(
        default=[], description="Host names. Empty accepts every host name."
    )
    path: str = Field(
        default="/",
        pattern=r"^/[^\s?#]*$",
        description="Path prefix of the service, which is removed before the server sees the "
        "request.",
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.gateway is None) == (self.ingress is None):
            raise ValueError("needs either gateway or ingress")
        if self.ingress is not None and self.path != "/":
            raise ValueError(
                f"has path {self.path} with an ingress, which does not remove the prefix, and the "
                "server does not know it: write hostnames instead"
            )
        return self


_DECIDED: Final = {
    "model_name": "model",
    "model_path": "job, run or url",
    "model_sha256": "digest",
    "host": "",
    "port": "port",
    "tls_certificate": "tls",
    "tls_key": "tls",
    "api_keys_file": "api_keys",
}
"""Server configuration that the stack sets, with the setting that determines it."""

_TAKEN_VOLUMES: Final = frozenset(
    {SHM_VOLUME, TMP_VOLUME, MODELS_VOLUME, EXPORT_VOLUME, TLS_VOLUME, API_KEYS_VOLUME}
)
_TAKEN_PATHS: Final = (MODELS_PATH, SECRETS_PATH, PROGRAM_PATH)


class InferenceServiceSettings(Settings):
    """A service that serves one model."""

    job: RunKey | None = Field(
        default=None, description="Job of this stack whose current run is served."
    )
    run: RunName | None = Field(default=None, description="Run to serve, whatever its job becomes.")
    url: ExportUrl | None = Field(
        default=None,
        description="URL of an export in an object store, such as "
        "s3://bucket/digits-1a2b3c4d/export.",
    )
    fetch: FetchSettings = Field(
        default=FetchSettings(), description="How pods download the export that `url` names."
    )
    digest: Digest | None = Field(
        default=None, description="Required SHA-256 of the weights. The server refuses any others."
    )
    image: DnsLabel = Field(default="inference", description="Key of the image.")
    model: str | None = Field(
        default=None, description="Name of the model in the protocol. null uses the service's key."
    )
    checkpoints: DnsLabel = Field(
        default="checkpoints", description="Claim with the export of the run."
    )
    replicas: PositiveInt | None = Field(
        default=None, le=1000, description="Number of pods. null is 1, or decided by autoscaling."
    )
    autoscaling: AutoscalingSettings | None = Field(
        default=None, description="Number of replicas by load."
    )
    canary: CanarySettings | None = Field(
        default=None,
        description="A second version that receives a share of the requests. It requires a route.",
    )
    route: RouteSettings | None = Field(
        default=None,
        description="Gateway or Ingress. null makes the service reachable only inside the cluster.",
    )
    max_unavailable: PositiveInt = Field(
        default=1,
        description="Maximum number of pods that may be unavailable while nodes are drained.",
    )
    gpus: int = Field(default=0, ge=0, le=64, description="Number of GPUs of each pod.")
    gpu_resource: QualifiedName | None = Field(
        default=None, description="Name of the GPU resource. null uses the stack's."
    )
    cpu: CpuQuantity = Field(description="CPU request of each pod. There is no CPU limit.")
    memory: MemoryQuantity = Field(description="Memory request and limit of each pod.")
    shm: MemoryQuantity = Field(
        default="64Mi", description="Size of /dev/shm, which counts towards the memory limit."
    )
    port: Port = Field(default=8080, description="Port of the server and of its Service.")
    tls: TlsSettings | None = Field(
        default=None, description="TLS termination at the model server."
    )
    api_keys: ApiKeysSettings | None = Field(
        default=None, description="API keys that predictions require. null requires none."
    )
    service_type: Literal["ClusterIP", "NodePort"] = Field(
        default="ClusterIP", description="Type of the Service."
    )
    spread: bool = Field(default=True, description="Prefer different nodes for the pods.")
    node_selector: Labels = Field(
        default={}, description="Additional node labels that the pods require."
    )
    labels: Labels = Field(
        default={},
        description='Labels of the pods, such as azure.workload.identity/use: "true".',
    )
    tolerations: list[TolerationSettings] = Field(
        default=[], description="Tolerations in addition to the stack's."
    )
    priority_class: DnsName | None = Field(default=None, description="Priority class of the pods.")
    server: dict[str, Any] = Field(
        default={},
        description="Additional configuration of the model server (inference/config.py).",
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
        description="Additional volumes of every pod, for example with a custom handler.",
    )
    startup_seconds: PositiveInt = Field(
        default=120,
        description="Maximum time (s) from the start of the container until the server answers.",
    )
    progress_deadline_seconds: PositiveInt = Field(
        default=600,
        description="Time (s) after which the Deployment reports a rollout without progress.",
    )
    min_ready_seconds: int = Field(
        default=5,
        ge=0,
        le=3600,
        description="Time (s) that a new pod must be ready before an old one is removed, so "
        "that load balancers find it and a bad version fails.",
    )
    pre_stop_seconds: int = Field(
        default=2,
        ge=0,
        le=300,
        description="Delay (s) between the removal of a pod from the Service and SIGTERM. "
        "Values above 0 require Kubernetes 1.30.",
    )
    grace_seconds: int = Field(
        default=30,
        ge=1,
        le=3600,
        description="Time (s) for a terminating pod to finish requests in flight. It must "
        "exceed the sum of pre_stop_seconds and the server's notice_seconds and drain_seconds.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [name for name in ("job", "run", "url") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"needs one of `job`, `run` and `url` to serve, but has {found}")
        if self.autoscaling is not None and self.replicas is not None:
            raise ValueError("has replicas and autoscaling: leave one of them out")
        if problem := shm_problem(self.shm, self.memory):
            raise ValueError(problem)
        if self.fetch != FetchSettings() and not (self.url or (self.canary and self.canary.url)):
            raise ValueError("has fetch, but no url to fetch from: leave it out")
        self._check_access()
        self._check_volumes()
        self._check_server(self.server, "server")
        if self.canary is not None:
            self._check_server(self.canary.server, "canary.server")
        return self

    def _check_access(self) -> None:
        if self.canary is not None and self.route is None:
            raise ValueError(
                "has a canary, but no route that could split the requests: write route"
            )
        if self.route is not None and self.tls is not None:
            raise ValueError(
                "has tls and a route: TLS is terminated at the gateway, which sends plain HTTP to "
                "the pods, so leave tls out"
            )

    def _check_volumes(self) -> None:
        for name, volume in self.volumes.items():
            if name in _TAKEN_VOLUMES:
                raise ValueError(
                    f"has volumes.{name}, a name that every pod has already: choose another"
                )
            if f"{volume.path.rstrip('/')}/".startswith(tuple(f"{path}/" for path in _TAKEN_PATHS)):
                raise ValueError(
                    f"has volumes.{name}.path {volume.path}, which every pod uses already: "
                    "choose another"
                )

    def _check_server(self, server: dict[str, Any], here: str) -> None:
        for name in sorted(_DECIDED.keys() & server.keys()):
            remedy = f"write `{_DECIDED[name]}`" if _DECIDED[name] else "leave it out"
            raise ValueError(f"sets {here}.{name}, which the stack determines: {remedy}")
        try:
            config = InferenceConfig.model_validate(
                {"model_name": "model", "model_path": MODELS_PATH, **self.server, **server}
            )
        except ValidationError as error:
            written_as = {name: f"{here}.{name}" for name in InferenceConfig.model_fields}
            problems = "; ".join(problem_sentences(error, written_as))
            raise ValueError(f"has an invalid `{here}`: {problems}") from None
        needed = self.pre_stop_seconds + config.notice_seconds + config.drain_seconds
        if needed >= self.grace_seconds:
            raise ValueError(
                f"takes up to {needed:g} seconds to terminate (pre_stop_seconds "
                f"{self.pre_stop_seconds}, {here}.notice_seconds {config.notice_seconds:g}, "
                f"{here}.drain_seconds {config.drain_seconds:g}), but its pods are killed after "
                f"grace_seconds {self.grace_seconds}: decrease these or increase grace_seconds"
            )

    @property
    def most_replicas(self) -> int:
        """Maximum number of pods of the service without its canary."""
        return self.autoscaling.max if self.autoscaling else self.replicas or 1

    @property
    def canary_image(self) -> str:
        """Key of the canary's image."""
        return (self.canary.image if self.canary else None) or self.image

    @property
    def most_pods(self) -> int:
        """Maximum number of pods of the service with its canary."""
        return self.most_replicas + (self.canary.replicas if self.canary else 0)


class InferenceSettings(Settings):
    """Inference services."""

    services: dict[RunKey, InferenceServiceSettings] = Field(
        default={}, description="Services by key."
    )

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports of all services."""
        return tuple(service.port for service in self.services.values())
