"""Inference services: models served over HTTP."""

import pulumi

from infra.component import Component
from infra.manifests import NOT_AWAITED, Manifest
from infra.outputs import CanaryOutput, InferenceOutput, VersionOutput
from infra.serving.autoscaling import autoscaler
from infra.serving.deployment import workload
from infra.serving.description import InferenceServiceArgs, Version
from infra.serving.rollback import rollback_objects
from infra.serving.traffic import (
    disruption_budget,
    grpc_route,
    http_route,
    ingresses,
    service,
    stable_backends,
)


class InferenceService(Component):
    """Workload, Service, disruption budget, autoscaler, canary and route of one model.

    Pulumi does not wait for the pods of the stable version, because the model may still be in
    training. It waits for the canary's pods and only then changes the route, so that a new version
    receives requests only when it can answer them.
    """

    url: str
    """URL for clients in the cluster."""
    summary: InferenceOutput
    """The service's entry in the `inference` stack output."""

    def __init__(
        self, name: str, args: InferenceServiceArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("InferenceService", name, opts)
        for manifest in build(args):
            self.create(f"{name}-{manifest['kind'].lower()}", manifest)
        dependencies: list[pulumi.Resource] = []
        for manifest in build_canary(args):
            resource_name = f"{name}-canary-{manifest['kind'].lower()}"
            dependencies.append(
                self.create(resource_name, manifest, self.options(after=list(dependencies)))
            )
        for manifest in rollback_objects(args, stable_backends(args)):
            resource_name = f"{name}-rollback-{manifest['kind'].lower()}"
            dependencies.append(
                self.create(resource_name, manifest, self.options(after=list(dependencies)))
            )
        for manifest in routes(args):
            suffix = manifest["metadata"]["name"].removeprefix(args.key)
            resource_name = f"{name}{suffix}-{manifest['kind'].lower()}"
            self.create(resource_name, manifest, self.options(after=dependencies))
        self.url, self.summary = args.url, summary(args)
        self.register_outputs({"inference": self.summary})


def build(args: InferenceServiceArgs) -> list[Manifest]:
    """Return the Service, workload, PodDisruptionBudget and, if configured, autoscaler.

    Pulumi does not wait until these objects are ready, because the model may still be in training.
    """
    stable = args.stable
    built = [
        service(args, stable, NOT_AWAITED),
        workload(args, stable, NOT_AWAITED),
        disruption_budget(args, stable),
    ]
    if args.service.autoscaling is not None:
        built.append(autoscaler(args))
    return built


def build_canary(args: InferenceServiceArgs) -> list[Manifest]:
    """Return the canary's objects, which Pulumi waits for, or [] if there is no canary.

    The update fails if the canary's pods are not ready within the progress deadline.
    """
    canary = args.canary
    if canary is None:
        return []
    deadline = {"pulumi.com/timeoutSeconds": str(args.service.canary_deadline)}
    # Pulumi detects when a Deployment is ready, but not when a LeaderWorkerSet is ready.
    has_groups = canary.runtime.nodes > 1
    awaited = {"pulumi.com/waitFor": "condition=Available"} if has_groups else {}
    built = [workload(args, canary, deadline | awaited), service(args, canary, deadline)]
    if canary.replicas != 1 or has_groups:
        built.append(disruption_budget(args, canary))
    return built


def routes(args: InferenceServiceArgs) -> list[Manifest]:
    """Return the routes: an HTTPRoute and optionally a GRPCRoute, or Ingresses.

    Routes refer to the canary, if there is one, so they are created after it.
    """
    route = args.service.route
    if route is None:
        return []
    if route.gateway is not None:
        built = [http_route(args, route, route.gateway)]
        if route.grpc_hostnames:
            built.append(grpc_route(args, route, route.gateway))
        return built
    return ingresses(args, route, route.ingress) if route.ingress is not None else []


def summary(args: InferenceServiceArgs) -> InferenceOutput:
    """Return the service's entry in the `inference` stack output, without querying the pods."""
    entry: InferenceOutput = {
        "url": args.url,
        "service": args.key,
        "namespace": args.namespace,
        "model": args.model,
        "runtime": args.service.runtime,
    }
    _set_model(entry, args.stable)
    if args.service.sweep is not None:
        entry["sweep"] = args.service.sweep
    canary, settings = args.canary, args.service.canary
    if canary is not None and settings is not None:
        canary_entry: CanaryOutput = {"service": canary.name, "weight": settings.weight}
        _set_model(canary_entry, canary)
        entry["canary"] = canary_entry
    return entry


def _set_model(entry: VersionOutput, version: Version) -> None:
    if version.run is not None:
        entry["run"] = version.run
    if version.url is not None:
        entry["export"] = version.url
    if version.digest is not None:
        entry["digest"] = version.digest
