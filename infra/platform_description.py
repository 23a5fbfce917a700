"""The ConfigMap that describes the platform to members, who cannot read the stack's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pulumi

from infra.component import Component
from infra.manifests import standard_labels

NAME: Final = "gpu-platform"
KEY: Final = "platform.json"


@dataclass(frozen=True, kw_only=True)
class PlatformDescriptionArgs:
    """Data that `python -m gpu_platform run` needs to create the same runs as the stack.

    `outputs` are those of the stack, `identities` of the images by key, `labels` and `annotations`
    those of the site. Images may be Pulumi outputs. It contains no secret.
    """

    namespace: str
    outputs: Mapping[str, Any]
    identities: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class PlatformDescription(Component):
    """A ConfigMap in the namespace of the workloads."""

    def __init__(
        self, name: str, args: PlatformDescriptionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("PlatformDescription", name, opts)
        document = pulumi.Output.json_dumps(
            {
                "stack": pulumi.get_stack(),
                "outputs": dict(args.outputs),
                "identities": dict(args.identities),
                "labels": dict(args.labels),
                "annotations": dict(args.annotations),
            },
            sort_keys=True,
        )
        self.create(
            f"{name}-description",
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": NAME,
                    "namespace": args.namespace,
                    "labels": standard_labels("platform", NAME),
                },
                "data": {KEY: document},
            },
        )
        self.register_outputs({})
