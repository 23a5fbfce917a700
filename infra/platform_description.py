"""The ConfigMap that describes the platform to team members, who cannot read the stack's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pulumi

from infra.component import Component
from infra.manifests import DESCRIPTION, DESCRIPTION_KEY, standard_labels
from infra.outputs import SharedResources
from infra.settings import StackSettings


@dataclass(frozen=True, kw_only=True)
class PlatformDescriptionArgs:
    """Data that `python -m gpu_platform run` needs to create the same runs as the stack.

    The stack adds `labels` and `annotations` to every object. The description contains no secret.
    """

    shared: SharedResources
    priority_classes: Sequence[str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def of(cls, settings: StackSettings, shared: SharedResources) -> Self:
        """Build the arguments from the stack's settings."""
        cluster = settings.cluster
        return cls(
            shared=shared,
            priority_classes=settings.volcano.known_priority_classes,
            labels=cluster.labels,
            annotations=cluster.annotations,
        )


class PlatformDescription(Component):
    """A ConfigMap in the namespace of the workloads."""

    def __init__(
        self, name: str, args: PlatformDescriptionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("PlatformDescription", name, opts)
        document = pulumi.Output.json_dumps(
            {
                "stack": pulumi.get_stack(),
                "outputs": args.shared.outputs,
                "identities": dict(args.shared.identities),
                "priority_classes": list(args.priority_classes),
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
                    "name": DESCRIPTION,
                    "namespace": args.shared.namespace,
                    "labels": standard_labels("platform", DESCRIPTION),
                },
                "data": {DESCRIPTION_KEY: document},
            },
        )
        self.register_outputs({})
