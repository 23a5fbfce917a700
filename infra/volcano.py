"""The batch scheduler: release of its chart, queues and priority classes."""

from dataclasses import dataclass
from typing import Any

import pulumi

from infra.chart_release import chart_release
from infra.component import Component
from infra.manifests import Manifest, compact
from infra.scheduler_configuration import scheduler_configuration
from infra.settings.volcano import (
    OVERRIDE,
    PriorityClassSettings,
    QueueSettings,
    VolcanoSettings,
)


@dataclass(frozen=True, kw_only=True)
class VolcanoArgs:
    """The scheduler's settings; `rendering` says that no cluster is asked."""

    volcano: VolcanoSettings
    rendering: bool = False


class Volcano(Component):
    """The scheduler and what jobs wait in."""

    queues: list[str]

    def __init__(
        self, name: str, args: VolcanoArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Volcano", name, opts)
        settings = args.volcano
        values = chart_values(settings)
        release = chart_release(self, name, "volcano", settings, values, rendering=args.rendering)
        for key, priority in settings.priority_classes.items():
            options = self.options(after=release)
            self.create(f"{name}-priority-{key}", priority_class(key, priority), options)
        made: dict[str, pulumi.Resource] = {}
        for key in parents_first(settings.queues):
            parent = made.get(settings.queues[key].parent or "")
            options = self.options(after=[*release, *([parent] if parent else [])])
            manifest = queue(key, settings.queues[key])
            made[key] = self.create(f"{name}-queue-{key}", manifest, options)
        self.queues = sorted(settings.queues)
        self.register_outputs({"queues": self.queues})


def chart_values(settings: VolcanoSettings) -> dict[str, Any]:
    """The chart's values, and before them what the typed settings say that they leave open."""
    typed = {**settings.controllers.chart_values(), **settings.log_values}
    custom = {**typed, **settings.values.get("custom", {})}
    if not settings.own_configuration:
        hierarchical = settings.hierarchical
        custom[OVERRIDE] = scheduler_configuration(settings.scheduler, hierarchical=hierarchical)
    return {**settings.values, "custom": custom}


def parents_first(queues: dict[str, QueueSettings]) -> list[str]:
    """Names of the queues, each after its parent; a circle is cut where it is entered."""
    ordered: list[str] = []

    def visit(name: str, path: frozenset[str]) -> None:
        if name in queues and name not in path and name not in ordered:
            visit(queues[name].parent or "", path | {name})
            ordered.append(name)

    for name in queues:
        visit(name, frozenset())
    return ordered


def queue(name: str, settings: QueueSettings) -> Manifest:
    """A Volcano queue."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": compact(
            {
                "weight": settings.weight,
                "priority": settings.priority,
                "reclaimable": settings.reclaimable,
                "capability": settings.capability,
                "deserved": settings.deserved,
                "guarantee": compact({"resource": settings.guarantee}),
                "parent": settings.parent,
            }
        ),
    }


def priority_class(name: str, settings: PriorityClassSettings) -> Manifest:
    """A priority class."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": settings.value,
        "preemptionPolicy": settings.preemption,
        "description": settings.description,
    }
