"""Label selectors, and the effects of disruption budgets and spread constraints on replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from kube.quantities import quantity_or_none
from policies.resources import Resource
from policies.values import UNKNOWN, Node

NAMESPACE_NAMES = (
    "kubernetes.io/metadata.name",
    "io.kubernetes.pod.namespace",
    "k8s:io.kubernetes.pod.namespace",
)
"""Labels that every namespace has, or that Cilium adds to every endpoint."""


def selects(selector: Node, labels: Node) -> bool:
    """Return whether a label selector may match the labels; unknown parts count as matching."""
    if UNKNOWN in (selector.value, labels.value):
        return True
    if selector.absent:
        return False
    wanted = selector["matchLabels"].fields()
    equal = all(
        UNKNOWN in (value.value, labels[key].value) or value.value == labels[key].value
        for key, value in wanted
    )
    return equal and all(_may_match(item, labels) for item in selector["matchExpressions"].items())


def matches_everything(selector: Node) -> bool:
    """Return whether a selector matches all objects, or all except those with certain labels."""
    if not isinstance(selector.value, dict) or selector["matchLabels"].value:
        return False
    expressions = list(selector["matchExpressions"].items())
    return all(
        item["operator"].value in ("DoesNotExist", "NotIn")
        or (item["operator"].value == "Exists" and item["key"].value in NAMESPACE_NAMES)
        for item in expressions
    )


def _may_match(expression: Node, labels: Node) -> bool:
    """Return whether a match expression may be true for the labels; unknown parts count as true."""
    key, operator, values = (expression[name] for name in ("key", "operator", "values"))
    if not (key.text and operator.known and values.complete) or not labels[key.text].known:
        return True
    label = labels[key.text]
    listed = label.value in [value.value for value in values.items()]
    return {
        "In": listed,
        "NotIn": not listed,
        "Exists": label.present,
        "DoesNotExist": label.absent,
    }.get(str(operator.value), False)


def protects(budget: Resource, size: Decimal) -> bool:
    """Return whether a PodDisruptionBudget keeps at least one of `size` replicas running."""
    spec = budget.root["spec"]
    min_available, max_unavailable = spec["minAvailable"], spec["maxUnavailable"]
    if not (spec.known and min_available.known and max_unavailable.known):
        return True
    if not min_available.absent:
        available = _pod_count(min_available, size)
        return available is not None and available > 0
    unavailable = _pod_count(max_unavailable, size)
    return unavailable is not None and unavailable < size


def _pod_count(amount: Node, size: Decimal) -> Decimal | None:
    """Return an amount as a number of pods; a percentage is relative to `size`."""
    if amount.text and amount.text.endswith("%"):
        percent = quantity_or_none(amount.text.removesuffix("%"))
        return None if percent is None else percent * size / 100
    return quantity_or_none(amount.value)


def is_spread(pod: Node, labels: Node, size: Decimal, keys: Sequence[str]) -> bool:
    """Return whether constraints spread the pods with these labels across nodes or zones."""
    if not pod["topologySpreadConstraints"].complete:
        return True
    return any(
        _spreads(term, labels, size, keys)
        for term in (*pod["topologySpreadConstraints"].items(), *_anti_affinities(pod))
    )


def _spreads(term: Node, labels: Node, size: Decimal, keys: Sequence[str]) -> bool:
    key, skew = term["topologyKey"], quantity_or_none(term["maxSkew"].value)
    separates = not key.known or key.value in keys
    return separates and (skew is None or skew < size) and selects(term["labelSelector"], labels)


def _anti_affinities(pod: Node) -> Iterator[Node]:
    affinity = pod["affinity"]["podAntiAffinity"]
    yield from affinity["requiredDuringSchedulingIgnoredDuringExecution"].items()
    for preferred in affinity["preferredDuringSchedulingIgnoredDuringExecution"].items():
        yield preferred["podAffinityTerm"]
