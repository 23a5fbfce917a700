"""One model that is served over HTTP."""

from typing import Any

import pulumi

from infra.component import Component
from infra.serving import Serving, build


class InferenceService(Component):
    """Deployment, Service, disruption budget and autoscaler of one model.

    Pulumi does not wait for it: it becomes ready when the training's export is there.
    """

    summary: dict[str, Any]

    def __init__(
        self, name: str, args: Serving, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("InferenceService", name, opts)
        for manifest in build(args):
            self.create(f"{name}-{manifest['kind'].lower()}", manifest)
        self.summary = {
            "url": args.url,
            "service": args.key,
            "namespace": args.namespace,
            "model": args.model,
            "run": args.run,
        }
        self.register_outputs({"inference": self.summary})
