"""One model that is served over HTTP."""

import pulumi

from infra.component import Component
from infra.output_types import CanaryOutput, InferenceOutput, VersionOutput
from infra.serving import Serving, Version, build, build_canary, routes


class InferenceService(Component):
    """Deployment, Service, disruption budget, autoscaler, canary and route of one model.

    Pulumi does not wait for the stable pods: they become ready when the training's export is
    there. It waits for a canary's, and changes the route after that, so that a new version gets
    requests only when it can answer them.
    """

    summary: InferenceOutput

    def __init__(
        self, name: str, args: Serving, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("InferenceService", name, opts)
        for manifest in build(args):
            self.create(f"{name}-{manifest['kind'].lower()}", manifest)
        ready: list[pulumi.Resource] = []
        for manifest in build_canary(args):
            resource_name = f"{name}-canary-{manifest['kind'].lower()}"
            ready.append(self.create(resource_name, manifest, self.options(after=list(ready))))
        for manifest in routes(args):
            suffix = manifest["metadata"]["name"].removeprefix(args.key)
            resource_name = f"{name}{suffix}-{manifest['kind'].lower()}"
            self.create(resource_name, manifest, self.options(after=ready))
        self.summary = summary(args)
        self.register_outputs({"inference": self.summary})


def summary(serving: Serving) -> InferenceOutput:
    """What the output `inference` says of a service: only what is known before pods are asked."""
    told: InferenceOutput = {
        "url": serving.url,
        "service": serving.key,
        "namespace": serving.namespace,
        "model": serving.model,
    }
    _tell(told, serving.stable)
    canary, settings = serving.canary, serving.service.canary
    if canary is not None and settings is not None:
        new: CanaryOutput = {"service": canary.name, "weight": settings.weight}
        _tell(new, canary)
        told["canary"] = new
    return told


def _tell(told: VersionOutput, version: Version) -> None:
    if version.run is not None:
        told["run"] = version.run
    if version.url is not None:
        told["export"] = version.url
    if version.digest is not None:
        told["digest"] = version.digest
