"""Autoscalers of a stack, with their targets and limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from kube.quantities import quantity_or_none
from kube.workloads.control import Scaler
from kube.workloads.record import steps
from policies.resources import Resource
from policies.values import Node, nodes_at


@dataclass(frozen=True)
class Scaling:
    """An autoscaler with its limits."""

    scaler: Resource
    minimum: Decimal
    maximum: Decimal
    part: str = ""
    """Name of the part of the target that is scaled; empty for the whole target."""
    exclusive: bool = True
    """True if the target must not set its number of replicas."""


class Scalings:
    """The autoscalers of a stack, keyed by target."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._by_target: dict[tuple[str | None, str, str], list[Scaling]] = defaultdict(list)
        for resource in resources:
            record = resource.record
            if record is not None and record.scaler is not None:
                key, scaling = _entry(resource, record.scaler)
                self._by_target[key].append(scaling)

    def for_target(self, target: Resource) -> list[Scaling]:
        """Return the autoscalers of a resource."""
        return self._by_target.get((target.namespace, target.kind.lower(), target.name), [])

    def minimum(self, target: Resource) -> Decimal | None:
        """Return the largest minimum of a resource's autoscalers, or None without an autoscaler."""
        return max((scaling.minimum for scaling in self.for_target(target)), default=None)

    def maxima(self, target: Resource) -> dict[str, Decimal]:
        """Map each part of a resource that is scaled to the largest maximum of its autoscalers.

        The key of the whole resource is the empty string.
        """
        limits: dict[str, Decimal] = {}
        for scaling in (*self.for_target(target), *self._through_adapters(target)):
            limit = max(scaling.minimum, scaling.maximum)
            limits[scaling.part] = max(limit, limits.get(scaling.part, limit))
        return limits

    def _through_adapters(self, target: Resource) -> Iterator[Scaling]:
        """Yield the autoscalers of the objects through which parts of a resource are scaled."""
        adapter = target.record.adapter.lower() if target.record is not None else ""
        prefix = f"{target.name.lower()}-"
        for (namespace, kind, name), scalings in self._by_target.items() if adapter else ():
            if (namespace, kind) == (target.namespace, adapter) and name.startswith(prefix):
                part = name.removeprefix(prefix)
                yield from (replace(scaling, part=part) for scaling in scalings)


def _entry(resource: Resource, scaler: Scaler) -> tuple[tuple[str | None, str, str], Scaling]:
    target = resource.root.at(scaler.target)
    kind = target["kind"].text or scaler.target_kind
    limits = [
        quantity_or_none(resource.root.at(path).value) for path in (scaler.minimum, scaler.maximum)
    ]
    defaults = (scaler.default_minimum, scaler.default_maximum)
    minimum, maximum = (
        Decimal(default) if limit is None else limit
        for limit, default in zip(limits, defaults, strict=True)
    )
    scheduled = (
        quantity_or_none(node.value) or Decimal(0)
        for path in scaler.scheduled
        for node in nodes_at(resource.root, steps(path))
    )
    maximum = max((maximum, *scheduled))
    fixed = quantity_or_none(resource.root.at(scaler.fixed).value) if scaler.fixed else None
    if fixed is not None:
        minimum, maximum = fixed, max(fixed, maximum)
    key = (resource.namespace, kind.lower(), target["name"].text or "")
    part = resource.root.at(scaler.part) if scaler.part else Node(None)
    exclusive = scaler.exclusive and part.absent
    return key, Scaling(resource, minimum, maximum, part.text or "", exclusive)
