"""Arguments for an inference service, and the versions of the model that it serves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from infra.manifests import Manifest, compact, standard_labels
from infra.outputs import SharedResources
from infra.pods import GpuNodes
from infra.serving.runtimes.runtime import Runtime
from infra.settings import StackSettings
from infra.settings.inference.models import SourceSettings
from infra.settings.inference.service import InferenceServiceSettings
from infra.sweep import Sweep, winner_path
from kube.names import LEADER_WORKER_SET_GROUP, ROLE_LABEL, SERVICE_LABEL, WORKLOAD_LABEL

LEADER_LABEL: Final = {ROLE_LABEL: "serving-leader"}
"""Label of the pod that receives the requests if a replica consists of several pods.

The leaders of training jobs have the `leader` role. They use no GPU, so `whole_node` jobs accept
pods with that role on their nodes. The pod that receives requests may use GPUs, so it must have a
different role.
"""


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a service: the stable version or the canary.

    `image` is a string or a Pulumi output. Exactly one of `run`, `winner`, `url` and `source`
    is set.
    """

    name: str
    run: str | None
    winner: str | None
    """Path of the symbolic link to a sweep's winning run, relative to the claim."""
    url: str | None
    source: SourceSettings | None
    digest: str | None
    image: Any
    runtime: Runtime
    replicas: int | None
    """Number of replicas, or None if an autoscaler sets it."""

    @property
    def selector(self) -> dict[str, str]:
        """Labels that select this version's pods."""
        return {WORKLOAD_LABEL: "inference", SERVICE_LABEL: self.name}

    @property
    def workload(self) -> dict[str, str]:
        """API version and kind of the object that runs the pods."""
        if self.runtime.nodes > 1:
            return {"apiVersion": f"{LEADER_WORKER_SET_GROUP}/v1", "kind": "LeaderWorkerSet"}
        return {"apiVersion": "apps/v1", "kind": "Deployment"}


@dataclass(frozen=True, kw_only=True)
class InferenceServiceArgs:
    """A service and its resources. Images and names of claims are strings or Pulumi outputs.

    `run` is None unless the service has a `job` or a `run`. `winner` is the path of the symbolic
    link to the winning run of the service's `sweep`, relative to the claim. `canary_image` is used
    only if the canary overrides the image; `rollback_image`, `isolated` and `pull_secret` are used
    only if automatic rollback is configured.
    """

    key: str
    service: InferenceServiceSettings
    run: str | None
    namespace: str
    image: Any
    gpu_nodes: GpuNodes
    claims: Mapping[str, Any]
    winner: str | None = None
    canary_image: Any = None
    rollback_image: Any = None
    isolated: bool = False
    pull_secret: str | None = None
    domain: str = "cluster.local"
    service_account: str = field(default="inference")

    @classmethod
    def of(
        cls,
        settings: StackSettings,
        key: str,
        runs: Mapping[str, str],
        sweeps: Mapping[str, Sweep],
        shared: SharedResources,
    ) -> Self:
        """Build the arguments for one of the configured services.

        `runs` maps job keys to the names of their current runs; `sweeps` maps sweep keys to sweeps.
        """
        service = settings.inference.services[key]
        limits = settings.inference.rollbacks.get(key)
        return cls(
            key=key,
            service=service,
            run=runs[service.job] if service.job else service.run,
            winner=winner_path(sweeps[service.sweep]) if service.sweep else None,
            namespace=shared.namespace,
            domain=settings.cluster.domain,
            image=shared.images[service.image],
            canary_image=shared.images[service.canary_image],
            rollback_image=shared.images[limits.image] if limits is not None else None,
            isolated=settings.tenancy.network.isolate,
            pull_secret=shared.pull_secret,
            gpu_nodes=shared.gpu_nodes,
            claims=shared.claims,
        )

    @property
    def model(self) -> str:
        """Name of the model in requests."""
        return self.service.model or self.key

    @property
    def url(self) -> str:
        """URL of the service inside the cluster."""
        host = f"{self.key}.{self.namespace}.svc.{self.domain}"
        scheme = "https" if self.service.tls else "http"
        return f"{scheme}://{host}:{self.service.port}"

    @property
    def stable(self) -> Version:
        """The stable version, which the service's top-level settings describe."""
        settings = self.service
        return Version(
            name=self.key,
            run=self.run,
            winner=self.winner,
            url=settings.url,
            source=settings.source,
            digest=settings.digest,
            image=self.image,
            runtime=settings.runtime_of({}),
            replicas=None if settings.autoscaling else settings.replicas or 1,
        )

    @property
    def canary(self) -> Version | None:
        """The canary: the stable version with the canary's overrides applied."""
        settings, stable = self.service.canary, self.stable
        if settings is None:
            return None
        models = (settings.run, settings.url, settings.source)
        other_model = any(each is not None for each in models)
        return Version(
            name=f"{self.key}-canary",
            run=settings.run if other_model else stable.run,
            winner=None if other_model else stable.winner,
            url=settings.url if other_model else stable.url,
            source=settings.source if other_model else stable.source,
            # The digest of the stable version's weights does not apply to a different model.
            digest=settings.digest if other_model else settings.digest or stable.digest,
            image=stable.image if settings.image is None else self.canary_image,
            runtime=self.service.runtime_of(settings.server),
            replicas=settings.replicas,
        )


def metadata(
    args: InferenceServiceArgs, version: Version, annotations: Mapping[str, str] | None = None
) -> Manifest:
    """Return the metadata for a version's objects."""
    return compact(
        {
            "name": version.name,
            "namespace": args.namespace,
            "labels": labels(version),
            "annotations": dict(annotations or {}),
        }
    )


def labels(version: Version) -> dict[str, str]:
    """Return the labels for a version's objects and pods."""
    return {**standard_labels("inference", version.name), **version.selector}
