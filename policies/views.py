"""Views that rules check: a resource divided into its parts, and a stack with its autoscalers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from kube.quantities import quantity_or_none
from kube.workloads.control import Scaler
from kube.workloads.record import steps
from policies.controllers import Workload, find_workloads
from policies.embedded import embedded
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
        """Map each autoscaled part of a resource to the largest maximum of its autoscalers.

        The key of the whole resource is the empty string.
        """
        limits: dict[str, Decimal] = {}
        for scaling in (*self.for_target(target), *self._through_adapters(target)):
            limit = max(scaling.minimum, scaling.maximum)
            limits[scaling.part] = max(limit, limits.get(scaling.part, limit))
        return limits

    def _through_adapters(self, target: Resource) -> Iterator[Scaling]:
        """Yield the autoscalers of a resource's adapters; each adapter scales one part."""
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


Scope = Literal["pod", "workload", "resource", "release", "stack"]


class View:
    """A resource, and its parts for each rule scope, computed once."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self._parts: dict[Scope, list[Any]] = {}

    @cached_property
    def nested(self) -> list[View]:
        """Views of the objects that are embedded in the resource."""
        return [View(resource) for resource in embedded(self.resource)]

    @cached_property
    def workloads(self) -> list[Workload]:
        """The workloads of the resource; empty if it runs no pods."""
        return find_workloads(self.resource)

    def parts(self, scope: Scope) -> list[Any]:
        """Return the parts for a scope; stack rules have none, because they receive the stack."""
        if scope not in self._parts:
            nested = (part for view in self.nested for part in view.parts(scope))
            self._parts[scope] = [*self._own_parts(scope), *nested]
        return self._parts[scope]

    def _own_parts(self, scope: Scope) -> list[Any]:
        if scope == "pod":
            return [pod for workload in self.workloads for pod in workload.pods]
        if scope == "workload":
            return [workload for workload in self.workloads if workload.pods]
        if scope == "resource":
            return [self.resource] if self.resource.is_manifest else []
        if scope == "release":
            return [self.resource] if self.resource.hidden_effects else []
        return []


def flatten(views: Sequence[View]) -> Iterator[View]:
    """Yield each view, followed by the views of the objects that are embedded in its resource."""
    for view in views:
        yield view
        yield from flatten(view.nested)


def _may_reference(resource: Resource, other: Resource) -> bool:
    """Return whether an object may refer to another one by name alone, without a namespace."""
    cluster_scoped = other.record is not None and not other.record.namespaced
    return (
        cluster_scoped
        or None in (resource.namespace, other.namespace)
        or (resource.namespace == other.namespace)
    )


class Stack:
    """All Kubernetes objects that a stack declares, including embedded ones."""

    def __init__(self, views: Sequence[View]) -> None:
        self._views = [view for view in flatten(views) if view.resource.is_manifest]

    @cached_property
    def resources(self) -> list[Resource]:
        """Every Kubernetes object of the stack."""
        return [view.resource for view in self._views]

    @cached_property
    def workloads(self) -> list[Workload]:
        """Every workload of the stack."""
        return [workload for view in self._views for workload in view.workloads]

    @cached_property
    def scalings(self) -> Scalings:
        """The autoscalers of the stack."""
        return Scalings(self.resources)

    @cached_property
    def _by_kind(self) -> dict[tuple[str, str], list[Resource]]:
        by_kind: dict[tuple[str, str], list[Resource]] = defaultdict(list)
        for resource in self.resources:
            by_kind[resource.group, resource.kind.lower()].append(resource)
        return by_kind

    @cached_property
    def _by_name(self) -> dict[tuple[str, str, str | None, str], Resource]:
        by_name: dict[tuple[str, str, str | None, str], Resource] = {}
        for item in self.resources:
            by_name.setdefault((item.group, item.kind.lower(), item.namespace, item.name), item)
        return by_name

    @cached_property
    def _runs(self) -> dict[int, list[Resource]]:
        runs: dict[int, list[Resource]] = defaultdict(list)
        for resource in self.resources:
            for runtime in self._runtimes_of(resource):
                runs[id(runtime)].append(resource)
        return runs

    def runs_of(self, runtime: Resource) -> list[Resource]:
        """Return the objects, such as TrainJobs and JobFlows, that run the pods of `runtime`."""
        return self._runs.get(id(runtime), [])

    def runtime_of(self, resource: Resource) -> Resource | None:
        """Return the runtime that defines an object's pods, if the stack declares the runtime."""
        return next(self._runtimes_of(resource), None)

    def _runtimes_of(self, resource: Resource) -> Iterator[Resource]:
        """Yield the declared objects that define an object's pods, one for each name."""
        run = resource.record.runs if resource.record is not None else None
        if run is None:
            return
        kind = resource.root.at(run.kind).text or run.kind_default
        names = dict.fromkeys(node.text for node in nodes_at(resource.root, steps(run.name)))
        for name in names:
            runtimes = (item for item in self.of_kind(resource.group, kind) if item.name == name)
            yield from islice((item for item in runtimes if _may_reference(resource, item)), 1)

    def of_kind(self, group: str, *kinds: str) -> Iterator[Resource]:
        """Return the objects of the given kinds in an API group."""
        return (item for kind in kinds for item in self._by_kind.get((group, kind.lower()), ()))

    def find(self, group: str, kind: str, namespace: str | None, name: str) -> Resource | None:
        """Return the object with this name if the stack declares it and its name is known.

        If `namespace` is None, it is unknown, and the object may be in any namespace.
        """
        found = self._by_name.get((group, kind.lower(), namespace, name))
        if found is None and namespace is None:
            return next((item for item in self.of_kind(group, kind) if item.name == name), None)
        return found

    def may_have(self, group: str, kind: str, namespace: str | None, name: str) -> bool:
        """Return whether the stack declares, or may declare, an object with this name."""
        return any(resource.may_be(namespace, name) for resource in self.of_kind(group, kind))
