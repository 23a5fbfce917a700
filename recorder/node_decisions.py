"""Health of GPU nodes, and decisions to cordon, drain and uncordon them.

This module sends no requests.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from lightkube.resources.core_v1 import Node

from kube.accelerators import SHARED_SUFFIX
from kube.quantities import parse_quantity

MARK: Final = "gpu-platform.dev/gpu-unhealthy"
"""Annotation of nodes cordoned by this program. It contains the fault and the number of GPUs."""
OPT_OUT: Final = "gpu-platform.dev/node-health"
"""Annotation that excludes a node from all actions of this program if its value is `ignore`."""
CONDITION: Final = "GpuUnhealthy"
UNCORDONED_ANNOTATION: Final = "gpu-platform.dev/gpu-checked"
"""Annotation with the time when a node was uncordoned. Earlier reports and faults are ignored."""

Reason = Literal["DevicesUnhealthy", "XidError", "SlowInGangs", "UnreadableMark"]
Health = Reason | Literal["Healthy", "Unknown"]


@dataclass(frozen=True)
class Policy:
    """Thresholds for cordoning and uncordoning nodes. Durations are in seconds.

    `max_nodes` is the maximum number of nodes that this program cordons at the same time.
    """

    max_nodes: int = 1
    fault_seconds: float = 360
    """Time that a fault must last before the node is cordoned."""
    settle_seconds: float = 600
    """Time that a node must be healthy before it is uncordoned."""
    slow_reports: int | None = None
    """Number of run starts that must report a node as slow before it is cordoned."""
    xids: frozenset[int] = frozenset()
    """Xid errors that make a node unhealthy."""


@dataclass(frozen=True)
class Fault:
    """The fault for which a node was cordoned, and the number of GPUs that the node had."""

    reason: Reason
    message: str
    gpus: int


@dataclass(frozen=True)
class NodeState:
    """State of a node and its faults.

    `gpus` is the GPU capacity of the node; `offered` is the number of allocatable GPUs.
    """

    name: str
    ready: bool
    gpus: int
    offered: int
    cordoned: bool = False
    mark: Fault | None = None
    condition: bool = False
    ignored: bool = False
    xids: frozenset[int] | None = frozenset()
    """All Xid errors that Prometheus reports for the node; None if Prometheus has no data."""
    reports: int = 0
    """Number of recent run starts that reported the node as slow."""
    checked_at: float = 0
    """Time when the node was created or last uncordoned. Earlier reports and faults are ignored."""
    version: str = ""


@dataclass(frozen=True)
class Action:
    """A change to a node, with the fault to record.

    A `wait` action changes nothing: the maximum number of nodes is already cordoned.
    """

    kind: Literal[
        "cordon",
        "wait",
        "mark",
        "evict",
        "evict_reporting_runs",
        "uncordon",
        "clear_mark",
        "set_condition",
    ]
    node: NodeState
    fault: Fault | None = None


Memory = Mapping[str, tuple[bool | None, float]]
"""Maps each node to its health (None if unknown) and the time when its health last changed."""


def health(node: NodeState, policy: Policy) -> tuple[Health, str]:
    """Return the health of a node, and a message that describes its fault."""
    if not node.ready:
        return "Unknown", "the node is not Ready"
    xids = node.xids or frozenset()
    if node.mark is None or node.mark.reason != "XidError":
        # On a node marked for an Xid error, every error counts, because a later error may hide
        # the one in policy.xids.
        xids &= policy.xids
    if xids:
        return "XidError", f"Xid {', '.join(map(str, sorted(xids)))}"
    gpus = max(node.gpus, node.mark.gpus if node.mark else 0)
    if node.offered < gpus:
        return "DevicesUnhealthy", f"the device plugin offers {node.offered} of {gpus} GPUs"
    if policy.slow_reports is not None and node.reports >= policy.slow_reports:
        return "SlowInGangs", f"the node was reported as slow in {node.reports} run starts"
    if node.xids is None:
        return "Unknown", "Prometheus has no Xid series for the node"
    return "Healthy", ""


def decide(
    nodes: Iterable[NodeState], memory: Memory, now: float, policy: Policy
) -> tuple[list[Action], Memory]:
    """Return the actions, and the memory to pass to the next call."""
    actions: list[Action] = []
    remembered: dict[str, tuple[bool | None, float]] = {}
    faulty: list[tuple[float, str, Action]] = []
    marked = 0
    for node in nodes:
        marked += node.mark is not None
        if node.ignored or not (node.gpus or node.mark):
            continue
        state, message = health(node, policy)
        healthy = None if state == "Unknown" else state == "Healthy"
        before = memory.get(node.name)
        since = max(before[1], node.checked_at) if before and before[0] == healthy else now
        remembered[node.name] = (healthy, since)
        if node.mark is not None:
            actions += _actions_for_marked(node, state, message, now - since, policy)
        elif state != "Healthy" and state != "Unknown":
            # A gang that reports a slow node restarts immediately, so waiting would use up its
            # retries.
            is_confirmed = state == "SlowInGangs" or now - since >= policy.fault_seconds
            if not node.cordoned and is_confirmed:
                fault = Fault(state, message, node.gpus)
                faulty.append((since, node.name, Action("cordon", node, fault)))
        elif node.condition:
            actions.append(Action("set_condition", node))
    faulty.sort(key=lambda each: each[:2])
    capacity = max(0, policy.max_nodes - marked)
    actions += [action for *_, action in faulty[:capacity]]
    actions += [replace(action, kind="wait") for *_, action in faulty[capacity:]]
    return actions, remembered


def _actions_for_marked(
    node: NodeState, state: Health, message: str, seconds: float, policy: Policy
) -> Iterator[Action]:
    """Yield the actions for a node that this program cordoned."""
    mark = node.mark
    if mark is None:
        return
    if not node.cordoned:
        # An administrator has checked the node and uncordoned it.
        yield Action("clear_mark", node)
    elif (state == "XidError" and mark.reason == "DevicesUnhealthy") or (
        state == "SlowInGangs" and mark.reason in ("DevicesUnhealthy", "XidError")
    ):
        # The node must recover from this fault, too, before it is uncordoned.
        yield Action("mark", node, Fault(state, message, mark.gpus))
    elif state == "Healthy" and mark.reason in ("DevicesUnhealthy", "XidError"):
        if seconds >= policy.settle_seconds:
            yield Action("uncordon", node)
    elif state in ("DevicesUnhealthy", "XidError"):
        yield Action("evict", node)
    elif mark.reason == "SlowInGangs":
        yield Action("evict_reporting_runs", node)
    if node.cordoned and not node.condition:
        yield Action("set_condition", node, mark)


def node_state(node: Node, resource: str, errors: Mapping[str, frozenset[int]] | None) -> NodeState:
    """Return the state of a node.

    `errors` maps nodes to their Xid errors. It is None if no Prometheus server is configured.
    """
    metadata, status, spec = node.metadata, node.status, node.spec
    name = (metadata.name if metadata else None) or ""
    annotations = (metadata and metadata.annotations) or {}
    # Reports and faults from before the node was created may belong to an earlier node with the
    # same name.
    creation = metadata.creationTimestamp if metadata else None
    created = 0 if creation is None else creation.timestamp()
    conditions = {each.type: each.status for each in (status and status.conditions) or []}
    return NodeState(
        name=name,
        ready=conditions.get("Ready") == "True",
        gpus=_gpus((status and status.capacity) or {}, resource),
        offered=_gpus((status and status.allocatable) or {}, resource),
        cordoned=bool(spec and spec.unschedulable),
        mark=_parse_mark(annotations[MARK]) if MARK in annotations else None,
        condition=conditions.get(CONDITION) == "True",
        ignored=annotations.get(OPT_OUT) == "ignore",
        xids=frozenset() if errors is None else errors.get(name),
        checked_at=max(created, _parse_time(annotations.get(UNCORDONED_ANNOTATION, ""))),
        version=(metadata.resourceVersion if metadata else None) or "",
    )


def _gpus(resources: Mapping[str, str], resource: str) -> int:
    """Return the number of GPUs, including GPU shares and MIG devices."""
    base = resource.removesuffix(SHARED_SUFFIX)
    mig = f"{resource.partition('/')[0]}/mig-"
    return sum(
        int(parse_quantity(amount))
        for name, amount in resources.items()
        if name in (base, base + SHARED_SUFFIX) or name.startswith(mig)
    )


def to_annotation(fault: Fault | None) -> str | None:
    """Return the value of the annotation that records a fault.

    Without a fault, return None, which removes the annotation.
    """
    if fault is None:
        return None
    return json.dumps({"reason": fault.reason, "message": fault.message, "gpus": fault.gpus})


def _parse_mark(text: str) -> Fault:
    try:
        fields = json.loads(text)
        return Fault(fields["reason"], str(fields["message"]), int(fields["gpus"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Fault("UnreadableMark", f"the {MARK} annotation is unreadable", 0)


def _parse_time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0
