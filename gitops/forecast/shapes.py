"""Pod shapes: the parts of a pod spec on which scheduling depends."""

import json
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from gitops.forecast.state import Amounts, PodShape
from gitops.runs.snapshot import Object, key
from kube.quantities import quantity_or_none

_CONSTRAINTS: Final = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints")
_RELATED_PODS: Final = ("podAffinity", "podAntiAffinity", "topologySpreadConstraints")
_ZERO: Final = Decimal(0)
_MILLI: Final = Decimal("0.001")
_ONE: Final = Decimal(1)


def requests(spec: Mapping[str, Any]) -> Amounts:
    """Return a pod's requests as Kubernetes computes them.

    The request for a resource is the larger of two values: the sum over the containers and
    sidecars, and the maximum over the other init containers, each with the sidecars before it.
    """
    sidecars: dict[str, Decimal] = {}
    largest: dict[str, Decimal] = {}
    for container in spec.get("initContainers", ()):
        together = add(sidecars, _amounts(container))
        if container.get("restartPolicy") == "Always":
            sidecars = together
        else:
            largest = {
                name: max(largest.get(name, _ZERO), a)
                for name, a in {**largest, **together}.items()
            }
    total = sidecars
    for container in spec.get("containers", ()):
        total = add(total, _amounts(container))
    return quantities(
        {
            name: max(total.get(name, _ZERO), largest.get(name, _ZERO))
            for name in {**total, **largest}
        }
    )


def add(
    first: Mapping[str, Decimal], second: Mapping[str, Decimal], *, sign: int = 1
) -> dict[str, Decimal]:
    """Add two mappings of resource names to amounts, or subtract the second if `sign` is -1."""
    names = {**first, **second}
    return {name: first.get(name, _ZERO) + sign * second.get(name, _ZERO) for name in names}


def _amounts(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    merged = {**resources.get("limits", {}), **resources.get("requests", {})}
    parsed = {name: quantity_or_none(amount) for name, amount in merged.items()}
    return {name: amount for name, amount in parsed.items() if amount}


def quantities(amounts: Mapping[str, Decimal]) -> Amounts:
    """Return amounts as Kubernetes quantities."""
    return {name: f"{amount.normalize():f}" for name, amount in sorted(amounts.items())}


def shapes_of(pods: Iterable[Object]) -> list[PodShape]:
    """Group identical pods into shapes."""
    found: dict[str, tuple[PodShape, list[str]]] = {}
    for pod in sorted(pods, key=key):
        shape = pod_shape(pod["spec"], pod["metadata"].get("labels", {}), 1)
        signature = json.dumps([shape.requests, shape.constraints], sort_keys=True)
        kept, nodes = found.setdefault(signature, (shape, []))
        nodes.append(pod["spec"].get("nodeName") or "")
        found[signature] = kept, nodes
    return [
        shape.model_copy(update={"count": len(nodes), "nodes": [name for name in nodes if name]})
        for shape, nodes in found.values()
    ]


def pod_shape(spec: Mapping[str, Any], labels: Mapping[str, str], count: int) -> PodShape:
    """Return the shape of `count` pods with this spec."""
    constraints = {name: spec[name] for name in _CONSTRAINTS if spec.get(name)}
    related = any(word in json.dumps(constraints) for word in _RELATED_PODS)
    return PodShape(
        count=count,
        requests=requests(spec),
        constraints=constraints,
        labels=dict(labels) if related else {},
    )


def job_shapes(job: Object | None) -> list[PodShape]:
    """Return the shapes of a Volcano Job's pods; an empty list for None and other objects."""
    if job is None:
        return []
    return [
        pod_shape(
            task["template"]["spec"], task["template"].get("metadata", {}).get("labels", {}), n
        )
        for task in job["spec"].get("tasks", ())
        if (n := task.get("replicas", 1))
    ]


def _unit(resource: str) -> Decimal:
    """Return the granularity of requests for a resource, such as 1 for GPUs."""
    page = quantity_or_none(resource.partition("hugepages-")[2] or None)
    return page or (_ONE if "/" in resource else _MILLI)


def estimated_shapes(spec: Mapping[str, Any]) -> list[PodShape]:
    """Return a shape for pods that do not exist yet, each with an equal share of `minResources`.

    Shares of devices are rounded up to integers, and shares of huge pages to whole pages.
    """
    minimum = max(int(spec.get("minMember") or 1), 1)
    amounts = {name: quantity_or_none(a) for name, a in spec.get("minResources", {}).items()}
    shares = {
        n: (a / minimum / _unit(n)).to_integral_value(ROUND_CEILING) * _unit(n)
        for n, a in amounts.items()
        if a and not n.startswith("limits.")
    }
    amounts_per_pod = {
        n.removeprefix("requests."): a
        for n, a in shares.items()
        if n != "pods" and "count/" not in n
    }
    return (
        [PodShape(count=minimum, requests=quantities(amounts_per_pod))] if amounts_per_pod else []
    )
