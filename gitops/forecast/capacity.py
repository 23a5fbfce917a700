"""Free resources of nodes, and the number of pods that fit on them."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from gitops.forecast.objects import amounts
from gitops.forecast.shapes import add, quantities
from gitops.forecast.state import Node, PodShape
from gitops.runs.snapshot import accelerators
from kube.accelerators import without_amounts

Free = dict[str, dict[str, Decimal]]
"""Maps node names to the free amount of each resource."""
_ZERO: Final = Decimal(0)
_UNLIMITED: Final = Decimal(10**6)


def free(nodes: Iterable[Node], pods: Iterable[Mapping[str, Any]]) -> Free:
    """Return the resources that these pods leave free on schedulable nodes."""
    left = {
        node.name: add(amounts(node.allocatable), amounts(node.reserved), sign=-1)
        for node in nodes
        if not node.unschedulable
    }
    for pod in pods:
        if (name := pod["spec"]["nodeName"]) in left:
            for container in pod["spec"]["containers"]:
                used = amounts(container["resources"].get("requests", {}))
                left[name] = add(left[name], used, sign=-1)
    return left


def free_devices(left: Free) -> int:
    """Return the number of free GPUs and other accelerators."""
    return sum(accelerators(quantities(without_amounts(each))).total() for each in left.values())


def fragmented(left: Free, shapes: Iterable[PodShape]) -> int:
    """Return the number of free accelerators on nodes where no pod of these shapes fits.

    Without shapes, return 0.
    """
    requests = [amounts(shape.requests) for shape in shapes]
    if not requests:
        return 0
    return free_devices({n: each for n, each in left.items() if not _max_pods(each, requests)})


def may_fit(left: Free, shapes: Sequence[PodShape], pods: int) -> bool:
    """Return whether this many pods of these shapes may fit. Only a negative result is certain."""
    requests = [amounts(shape.requests) for shape in shapes]
    return sum(_max_pods(each, requests) for each in left.values()) >= pods


def _max_pods(free: Mapping[str, Decimal], shapes: Iterable[Mapping[str, Decimal]]) -> int:
    """Return the maximum number of pods of a single shape that fit on a node."""
    counts = (
        min(
            (free.get(name, _ZERO) / amount for name, amount in each.items() if amount),
            default=_UNLIMITED,
        )
        for each in shapes
    )
    return max(int(max(counts)), 0)
