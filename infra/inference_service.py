"""One model that is served over HTTP."""

from typing import Any

import pulumi

from infra.manifests import KubernetesObject
from infra.serving import Serving, build


class InferenceService(pulumi.ComponentResource):
    """Deployment, Service, disruption budget and autoscaler of one model.

    Pulumi does not wait for it: it becomes ready when the training's export is there.
    """

    summary: dict[str, Any]

    def __init__(
        self, name: str, args: Serving, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("gpu-platform:index:InferenceService", name, None, opts)
        for manifest in build(args):
            KubernetesObject(
                f"{name}-{manifest['kind'].lower()}",
                manifest,
                pulumi.ResourceOptions(parent=self),
            )
        self.summary = {
            "url": args.url,
            "service": args.key,
            "namespace": args.namespace,
            "model": args.model,
            "run": args.run,
        }
        self.register_outputs({"inference": self.summary})
