"""Kubernetes objects that reproduce the state of a snapshot in a simulated cluster."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from gitops.forecast.shapes import add, quantities
from gitops.forecast.state import Amounts, Gang, Node, PodShape, State
from kube.kinds.volcano import with_ancestors
from kube.names import GROUP_ANNOTATION, PREEMPTABLE_ANNOTATION, SCHEDULING_GROUP
from kube.quantities import quantity_or_none

NAMESPACE: Final = "simulation"
_SYSTEM_PREFIX: Final = "system-"
_API_VERSION: Final = f"{SCHEDULING_GROUP}/v1beta1"
GANG_LABEL: Final = "simulation/gang"
Manifest = dict[str, Any]


def cluster_objects(state: State) -> list[Manifest]:
    """Return the simulation's namespace, and the PriorityClasses and queues of a snapshot.

    Parent queues come before their children.
    """
    classes = {each.name: (each.value, each.preemption_policy) for each in state.priority_classes}
    for gang in state.gangs:
        if gang.priority_class:
            classes.setdefault(gang.priority_class, (gang.priority, "PreemptLowerPriority"))
    parents = {queue.name: str(queue.spec.get("parent") or "") for queue in state.queues}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "preemptionPolicy": policy,
            }
            for name, (value, policy) in classes.items()
            if not name.startswith(_SYSTEM_PREFIX)
        ),
        *(
            {
                "apiVersion": _API_VERSION,
                "kind": "Queue",
                "metadata": {"name": queue.name},
                "spec": queue.spec,
            }
            # Volcano rejects a queue whose parent does not exist.
            for queue in sorted(state.queues, key=lambda q: len(with_ancestors(q.name, parents)))
            if queue.name != "root"
        ),
    ]


_READY: Final = {"type": "Ready", "status": "True", "reason": "Simulated"}


def node(spec: Node) -> Manifest:
    """Return a simulated node. Its capacity excludes the resources of pods outside gangs."""
    left = add(amounts(spec.allocatable), amounts(spec.reserved), sign=-1)
    free = quantities({name: max(amount, Decimal(0)) for name, amount in left.items()})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "labels": spec.labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": spec.taints, "unschedulable": spec.unschedulable},
        # kwok would take 10 ms per node to set this status.
        "status": {"capacity": free, "allocatable": free, "conditions": [_READY]},
    }


def group(name: str, gang: Gang) -> Manifest:
    """Return the PodGroup of a gang."""
    total: dict[str, Decimal] = {}
    for shape in list(_pod_shapes(gang))[: gang.minimum]:
        total = add(total, amounts(shape.requests))
    spec: Manifest = {
        "minMember": gang.minimum,
        "queue": gang.queue,
        "minResources": quantities(total),
    }
    if gang.priority_class:
        spec["priorityClassName"] = gang.priority_class
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": _annotations(gang)}
    manifest = {"apiVersion": _API_VERSION, "kind": "PodGroup", "metadata": metadata, "spec": spec}
    # A running gang keeps its phase, since the scheduler admits a pending PodGroup only if capacity
    # is free.
    return manifest | ({"status": {"phase": "Running"}} if gang.state == "running" else {})


def pods(name: str, gang: Gang, attempt: int) -> list[Manifest]:
    """Return the pods of a gang. Pods of the first attempt keep their nodes from the snapshot."""
    items: list[Manifest] = []
    for shape in gang.pods:
        nodes = shape.nodes if attempt == 0 else []
        for number in range(shape.count):
            node_name = nodes[number] if number < len(nodes) else ""
            items.append(_pod(f"{name}-{attempt}-{len(items)}", name, gang, shape, node_name))
    return items


def _pod_shapes(gang: Gang) -> Iterator[PodShape]:
    for shape in gang.pods:
        for _ in range(shape.count):
            yield shape


def _annotations(gang: Gang) -> dict[str, str]:
    if gang.preemptable is None:
        return {}
    return {PREEMPTABLE_ANNOTATION: str(gang.preemptable).lower()}


def _pod(name: str, group_name: str, gang: Gang, shape: PodShape, node_name: str) -> Manifest:
    # The API server requires limits for resources that cannot be overcommitted.
    limits = {k: v for k, v in shape.requests.items() if "/" in k or k.startswith("hugepages-")}
    spec: Manifest = {
        **shape.constraints,
        "schedulerName": "volcano",
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "simulated",
                "image": "simulated",
                "resources": {"requests": shape.requests, "limits": limits},
            }
        ],
    }
    if gang.priority_class:
        spec["priorityClassName"] = gang.priority_class
    if node_name:
        spec["nodeName"] = node_name
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {**shape.labels, GANG_LABEL: group_name},
        "annotations": {GROUP_ANNOTATION: group_name, **_annotations(gang)},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def amounts(quantities: Mapping[str, Any] | Amounts) -> dict[str, Decimal]:
    """Return quantities as numbers; omit quantities that cannot be parsed."""
    parsed = {name: quantity_or_none(value) for name, value in quantities.items()}
    return {name: value for name, value in parsed.items() if value is not None}
