"""Numbers of pods: the requested number, and the maximum that can run at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

from kube.quantities import quantity_or_none
from kube.workloads.control import Rollout
from kube.workloads.record import Count, steps
from policies.values import Key, Node, nodes_at

UNLIMITED: Final = Decimal("Infinity")


def value_near_pod(root: Node, path: str, pod_path: Sequence[Key]) -> Node:
    """Return the value at a path, after replacing each `*` with the index in `pod_path`."""
    node, same = root, True
    for index, key in enumerate(steps(path)):
        step: Key = key
        if key == "*":
            if not same or index >= len(pod_path):
                return Node(None)
            step = pod_path[index]
        same = same and index < len(pod_path) and pod_path[index] == step
        node = node[step]
    return node


def _path_with_number(root: Node, count: Count, pod_path: Sequence[Key]) -> Sequence[Key]:
    """Return the path from which `value_near_pod` takes the index for each `*` in a count's paths.

    If the count has `members`, this is the path of the list that contains the pod's name.
    Otherwise, it is the path of the pod.
    """
    if not count.members:
        return pod_path
    name = value_near_pod(root, count.member, pod_path).text
    for node in nodes_at(root, steps(count.members)):
        if any(item.text == name for item in node.items()):
            return node.steps[len(root.steps) :]
    return ()


def requested(root: Node, count: Count, pod_path: Sequence[Key]) -> Decimal | None:
    """Return the count that the manifest requests, or None if it is unknown."""
    pod_path = _path_with_number(root, count, pod_path)
    nodes = [value_near_pod(root, path, pod_path) for path in count.paths]
    present = next((node for node in nodes if not node.absent), None)
    if present is None and count.elsewhere:
        return None
    if present is None:
        return Decimal(1 if count.default is None else count.default)
    if not present.known:
        return None
    return _adjusted(root, count, pod_path, _number(present, count) or Decimal(1))


def upper_bound(root: Node, count: Count, pod_path: Sequence[Key]) -> Decimal | None:
    """Return the upper bound of a count, or None if it is unknown."""
    pod_path = _path_with_number(root, count, pod_path)
    applies = not count.enabled or value_near_pod(root, count.enabled, pod_path).value is True
    maxima = [value_near_pod(root, path, pod_path) for path in count.maxima] if applies else []
    nodes = [*(value_near_pod(root, path, pod_path) for path in count.paths), *maxima]
    if not all(node.known for node in nodes):
        return None
    numbers = [number for node in nodes if (number := _number(node, count)) is not None]
    limits = [number for node in maxima if (number := _number(node, count))]
    unlimited = (count.default is None and count.maxima) or (count.enabled and applies)
    if (unlimited and not limits) or (count.default is None and not numbers):
        return UNLIMITED
    if not numbers:
        return None if count.elsewhere else Decimal(count.default or 0)
    return _adjusted(root, count, pod_path, max(numbers))


def _number(node: Node, count: Count) -> Decimal | None:
    word = count.words.get(node.value) if isinstance(node.value, str) else None
    return Decimal(word) if word is not None else quantity_or_none(node.value)


def _adjusted(root: Node, count: Count, pod_path: Sequence[Key], number: Decimal) -> Decimal:
    """Divide `number` by the divisor, subtract 1 if there is a leader, and apply the limit."""
    if count.divisor:
        divisor = quantity_or_none(value_near_pod(root, count.divisor, pod_path).value)
        number = number / divisor if divisor else number
    if count.less_with and not value_near_pod(root, count.less_with, pod_path).absent:
        number -= 1
    limit = (
        quantity_or_none(value_near_pod(root, count.limit, pod_path).value) if count.limit else None
    )
    return number if limit is None else min(number, limit)


def with_surge(
    root: Node, rollout: Rollout, number: Decimal, pod_path: Sequence[Key] = ()
) -> Decimal:
    """Return the maximum number of replicas during a rolling update.

    For an update that runs all old and new pods at the same time, return half of the total; the
    caller multiplies it by `copies`.
    """
    strategy = root.at(rollout.type) if rollout.type else Node(None)
    added = _added_pods(root, rollout)
    if strategy.value in rollout.stopping:
        return number
    if _doubles_pods(root, rollout):
        return max(number, (number + added) / 2)
    if rollout.without and root.at(rollout.without).present:
        return number
    update = value_near_pod(root, rollout.at, pod_path) if rollout.at else Node(None)
    max_surge = update["maxSurge"]
    surge = rollout.surge if max_surge.absent else max_surge.value
    if isinstance(surge, str) and surge.endswith("%"):
        percent = quantity_or_none(surge.removesuffix("%")) or Decimal(0)
        added = max(added, (number * percent / 100).to_integral_value(ROUND_CEILING))
    return number + max(added, quantity_or_none(surge) or Decimal(0))


def _added_pods(root: Node, rollout: Rollout) -> Decimal:
    """Return the largest number of pods that a step of an update starts."""
    nodes = (node for path in rollout.added for node in nodes_at(root, steps(path)))
    return max((quantity_or_none(node.value) or Decimal(0) for node in nodes), default=Decimal(0))


def copies(root: Node, rollout: Rollout) -> Decimal:
    """Return 2 if an update runs all old and new pods at the same time, otherwise 1."""
    return Decimal(2 if _doubles_pods(root, rollout) else 1)


def _doubles_pods(root: Node, rollout: Rollout) -> bool:
    if rollout.routed and root.at(rollout.routed).present:
        return True
    if not rollout.double:
        return False
    double = root.at(rollout.double)
    if not double.known:
        return False
    return double.value not in rollout.single if rollout.single else not double.absent


def structural_counts(spec: Node) -> Iterator[Node]:
    """Yield the `replicas` and `parallelism` fields above a pod specification, innermost first."""
    node = spec.parent
    while node is not None:
        for key in ("replicas", "parallelism"):
            if isinstance(node.value, dict) and node.value.get(key) is not None:
                yield node[key]
        node = node.parent


def product(factors: Iterable[Decimal | None]) -> Decimal | None:
    """Return the product of numbers, or None if one of them is unknown.

    Negative numbers count as 0, so that a product never reduces a sum.
    """
    result = Decimal(1)
    for factor in factors:
        if factor is None:
            return None
        result = result * factor if result and factor > 0 else Decimal(0)
    return result
