"""Where the model of a service comes from: a run of this stack, or an object store."""

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from inference.config import InferenceConfig
from infra.settings.jobs.mounts import ReferenceSettings, VolumeSettings
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
            "must be the full name of a run, <job>-<8 digits>, as the output `runs` shows it"
        )
    return text


def _export_url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(
            "must be the address of an export's folder without passwords, such as "
            "s3://bucket/digits-1a2b3c4d/export; gs://, az:// and https:// are known, too"
        )
    return text.rstrip("/")


RunName = Annotated[str, AfterValidator(_run_name)]
"""A run's name with its eight digits."""

ExportUrl = Annotated[str, AfterValidator(_export_url)]
"""Where the files of an export lie in an object store or behind a web server."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of an export's weights, as its manifest and the server's metadata have it."""


class FetchSettings(Settings):
    """How pods fetch an export by its `url`."""

    size: MemoryQuantity = Field(
        default="2Gi",
        description="room for the export on the node's disk; a pod that needs more ends",
    )
    env: dict[EnvironmentName, str] = Field(
        default={},
        description="variables for the object store, such as AWS_REGION and AWS_ENDPOINT_URL",
    )
    env_from: dict[EnvironmentName, ReferenceSettings] = Field(
        default={}, description="those that stand in Secrets, such as AWS_SECRET_ACCESS_KEY"
    )


class TlsSettings(Settings):
    """TLS that ends at the server itself."""

    secret: DnsName = Field(description="Secret of the type kubernetes.io/tls in the namespace")


class ApiKeysSettings(Settings):
    """Keys without which no prediction is given."""

    secret: DnsName = Field(description="Secret of the namespace")
    key: str = Field(
        default="keys",
        pattern=r"^[-._A-Za-z0-9]{1,253}$",
        description="key in it: one API key a line, plain or sha256:<hex>",
    )


DEFAULT_CPU_PERCENT: Final = 70


class KedaSettings(Settings):
    """Let KEDA scale, which asks Prometheus and can end the last pod."""

    prometheus: str = Field(
        pattern=r"^https?://[^\s]+$",
        description="address of Prometheus, such as http://prometheus.monitoring:9090",
    )
    cooldown_seconds: PositiveInt = Field(
        default=300, description="time without requests after which the last pod ends"
    )
    activation_query: str | None = Field(
        default=None,
        min_length=1,
        description="PromQL that is above 0 while requests come, such as the gateway's rate of "
        "requests: pods that are not there report nothing",
    )


class AutoscalingSettings(Settings):
    """Let the load decide how many replicas run."""

    min: int = Field(default=1, ge=0, description="fewest replicas; 0 needs keda")
    max: PositiveInt = Field(description="most replicas")
    cpu_percent: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="use of the CPU request, in percent, that is aimed at; "
        f"{DEFAULT_CPU_PERCENT} without queue_depth",
    )
    queue_depth: PositiveInt | None = Field(
        default=None,
        description="samples waiting in each pod's queue that are aimed at; without keda it needs "
        "an adapter that gives the metric inference_queue_depth to the cluster",
    )
    keda: KedaSettings | None = Field(
        default=None, description="KEDA in place of a HorizontalPodAutoscaler"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"contradicts itself: min is {self.min}, max is {self.max}")
        if self.keda is not None and self.queue_depth is None:
            raise ValueError("has keda without queue_depth, which is what KEDA scales by: write it")
        if self.min == 0 and (self.keda is None or self.keda.activation_query is None):
            raise ValueError(
                "has min 0, which needs keda.activation_query: with no pod there is no other sign "
                "that requests come"
            )
        return self

    @property
    def cpu_target(self) -> int | None:
        """Percent of the CPU request, or None where the CPU does not count."""
        if self.cpu_percent is None and self.queue_depth is None:
            return DEFAULT_CPU_PERCENT
        return self.cpu_percent


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
"""What the stack tells the server itself, and the setting that decides it."""

_TAKEN_VOLUMES: Final = frozenset(
    {SHM_VOLUME, TMP_VOLUME, MODELS_VOLUME, EXPORT_VOLUME, TLS_VOLUME, API_KEYS_VOLUME}
)
_TAKEN_PATHS: Final = (MODELS_PATH, SECRETS_PATH, PROGRAM_PATH)


class InferenceServiceSettings(Settings):
    """One model that is served."""

    job: RunKey | None = Field(
        default=None, description="job of this stack whose present run is served"
    )
    run: RunName | None = Field(
        default=None, description="a certain run, kept whatever the jobs become"
    )
    url: ExportUrl | None = Field(
        default=None, description="an export in an object store: s3://bucket/digits-1a2b3c4d/export"
    )
    fetch: FetchSettings = Field(
        default=FetchSettings(), description="how pods get what `url` names"
    )
    digest: Digest | None = Field(
        default=None, description="sha256 of the weights: any others are not served"
    )
    image: DnsLabel = Field(default="inference", description="name of the image")
    model: str | None = Field(default=None, description="name in the protocol; the key by default")
    checkpoints: DnsLabel = Field(default="checkpoints", description="claim with the run's export")
    replicas: PositiveInt | None = Field(
        default=None, le=1000, description="pods; 1 by default, and left out with autoscaling"
    )
    autoscaling: AutoscalingSettings | None = Field(default=None, description="replicas by load")
    canary: CanarySettings | None = Field(
        default=None, description="a new version that gets a share of the requests; needs a route"
    )
    route: RouteSettings | None = Field(
        default=None, description="Gateway or Ingress; without one only pods reach the service"
    )
    max_unavailable: PositiveInt = Field(
        default=1, description="pods that may be missing while nodes are drained"
    )
    gpus: int = Field(default=0, ge=0, le=64, description="GPUs of each pod")
    gpu_resource: QualifiedName | None = Field(
        default=None, description="name of the GPU resource where it is not that of the stack"
    )
    cpu: CpuQuantity = Field(description="CPU request of each pod; there is no CPU limit")
    memory: MemoryQuantity = Field(description="memory request and limit of each pod")
    shm: MemoryQuantity = Field(
        default="64Mi", description="size of /dev/shm, part of the memory limit"
    )
    port: Port = Field(default=8080, description="port of the server and of its Service")
    tls: TlsSettings | None = Field(default=None, description="TLS that ends at the server itself")
    api_keys: ApiKeysSettings | None = Field(
        default=None, description="keys without which no prediction is given"
    )
    service_type: Literal["ClusterIP", "NodePort"] = Field(
        default="ClusterIP", description="how the Service is reached"
    )
    spread: bool = Field(default=True, description="prefer different nodes for the pods")
    node_selector: Labels = Field(
        default={}, description="further labels of nodes that it may run on"
    )
    priority_class: DnsName | None = Field(default=None, description="priority class of its pods")
    server: dict[str, Any] = Field(
        default={}, description="further configuration of the model server (inference/config.py)"
    )
    env: dict[EnvironmentName, str] = Field(default={}, description="further environment variables")
    env_from: dict[EnvironmentName, ReferenceSettings] = Field(
        default={}, description="environment variables whose values stand in Secrets or ConfigMaps"
    )
    volumes: dict[DnsLabel, VolumeSettings] = Field(
        default={}, description="further volumes of every pod, such as a handler of one's own"
    )
    startup_seconds: PositiveInt = Field(
        default=120, description="longest time from the container's start until the server answers"
    )
    progress_deadline_seconds: PositiveInt = Field(
        default=600, description="when the Deployment reports that a rollout does not advance"
    )
    min_ready_seconds: int = Field(
        default=5,
        ge=0,
        le=3600,
        description="a new pod has to be ready for so long before an old one leaves: time for "
        "load balancers to find it, and for a bad version to fail",
    )
    pre_stop_seconds: int = Field(
        default=2,
        ge=0,
        le=300,
        description="pause between a pod's removal from the Service and SIGTERM; needs Kubernetes "
        "1.30 or later, unless it is 0",
    )
    grace_seconds: int = Field(
        default=30,
        ge=1,
        le=3600,
        description="time to finish what is in flight when a pod has to leave; more than "
        "pre_stop_seconds and the server's notice_seconds and drain_seconds together",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [name for name in ("job", "run", "url") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"needs one of `job`, `run` and `url` to serve, but has {found}")
        if self.autoscaling is not None and self.replicas is not None:
            raise ValueError(
                "contradicts itself: replicas are fixed and autoscaling is on; leave one out"
            )
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
            raise ValueError("has a canary, but no route that could share out the requests")
        if self.route is not None and self.tls is not None:
            raise ValueError(
                "has tls beside a route: TLS ends at the gateway, which speaks plainly to the "
                "pods, so leave tls out"
            )

    def _check_volumes(self) -> None:
        for name, volume in self.volumes.items():
            if name in _TAKEN_VOLUMES:
                raise ValueError(
                    f"has volumes.{name}, a name that every pod has already: choose another"
                )
            if f"{volume.path.rstrip('/')}/".startswith(tuple(f"{path}/" for path in _TAKEN_PATHS)):
                raise ValueError(
                    f"has volumes.{name}.path {volume.path}, where every pod has something: "
                    "choose another"
                )

    def _check_server(self, server: dict[str, Any], here: str) -> None:
        for name in sorted(_DECIDED.keys() & server.keys()):
            remedy = f"write `{_DECIDED[name]}`" if _DECIDED[name] else "leave it out"
            raise ValueError(f"sets {here}.{name}, which the stack decides: {remedy}")
        try:
            config = InferenceConfig.model_validate(
                {"model_name": "model", "model_path": MODELS_PATH, **self.server, **server}
            )
        except ValidationError as error:
            written_as = {name: f"{here}.{name}" for name in InferenceConfig.model_fields}
            problems = "; ".join(problem_sentences(error, written_as))
            raise ValueError(f"has a `{here}` that cannot be used: {problems}") from None
        needed = self.pre_stop_seconds + config.notice_seconds + config.drain_seconds
        if needed >= self.grace_seconds:
            raise ValueError(
                f"takes up to {needed:g} seconds to leave (pre_stop_seconds "
                f"{self.pre_stop_seconds}, {here}.notice_seconds {config.notice_seconds:g}, "
                f"{here}.drain_seconds {config.drain_seconds:g}), but its pods are killed after "
                f"grace_seconds {self.grace_seconds}: write less of them or more grace_seconds"
            )

    @property
    def most_replicas(self) -> int:
        """The largest number of pods that the service may have."""
        return self.autoscaling.max if self.autoscaling else self.replicas or 1

    @property
    def canary_image(self) -> str:
        """Name of the image of the canary, if there is one."""
        return (self.canary.image if self.canary else None) or self.image

    @property
    def most_pods(self) -> int:
        """Like `most_replicas`, with the canary's."""
        return self.most_replicas + (self.canary.replicas if self.canary else 0)


class InferenceSettings(Settings):
    """Inference services by key."""

    services: dict[RunKey, InferenceServiceSettings] = Field(default={}, description="services")

    @property
    def ports(self) -> tuple[int, ...]:
        """Where pods of any service are called."""
        return tuple(service.port for service in self.services.values())
