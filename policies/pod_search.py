"""Search for the pods of a resource, by structure and by the paths in the registry of kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kube.workloads.record import NO_RECORD, Pods, WorkloadKind, steps
from policies.counts import value_near_pod
from policies.pod_parts import LayeredNode, containers_at, structural_specs
from policies.resources import Resource
from policies.values import UNKNOWN, Node, nodes_at
from policies.workloads import ANYWHERE, Pod


def find_pods(resource: Resource) -> list[Pod]:
    """Return every pod specification in a resource of any kind, at any depth."""
    return [pod for pod in find_all_pods(resource) if not pod.location.machine]


def find_all_pods(resource: Resource) -> list[Pod]:
    """Return the pods of a resource, and parts that request devices, such as virtual machines."""
    record = resource.record or NO_RECORD
    if not resource.is_manifest or resource.listed or "" in record.patterns:
        return []
    pods = list(_pods_from_record(resource, record))
    known = {pod.spec.steps for pod in pods if not pod.location.machine}
    listed = {c.node.steps for pod in pods if pod.location.containers for c in pod.containers}
    embedded = (*record.patterns, *record.objects)
    for node in structural_specs(resource.root, embedded):
        if node.steps not in known and not _is_recorded(node, listed):
            pods.append(Pod(resource, node))
    for pod in pods:
        pod.siblings = pods
    return pods


def _is_recorded(spec: Node, listed: set[tuple[Any, ...]]) -> bool:
    """Return whether the kind's record already lists all containers of a possible pod."""
    containers = [node for node, _ in containers_at(spec, ANYWHERE)]
    return bool(containers) and all(node.steps in listed for node in containers)


def _pods_from_record(resource: Resource, record: WorkloadKind) -> Iterator[Pod]:
    seen = set()
    for location in record.pods:
        for node in nodes_at(resource.root, steps(location.at)):
            if node.steps not in seen or location.machine:
                pod = _pod_at(resource, node, location)
                if pod is not None:
                    seen.add(node.steps)
                    yield pod


def _pod_at(resource: Resource, node: Node, location: Pods) -> Pod | None:
    """Return the pod at a path, or None if the value there does not specify a pod."""
    if not isinstance(node.value, dict):
        return (
            Pod(resource, node, location) if resource.is_patch and not location.containers else None
        )
    partial = (
        resource.is_partial
        or location.override
        or (location.partial and "containers" not in node.value)
    )
    relative_steps = node.steps[len(resource.root.steps) :]
    candidates = [value_near_pod(resource.root, path, relative_steps) for path in location.defaults]
    defaults = [default for default in candidates if isinstance(default.value, dict)]
    if location.supplied:
        defaults.append(Node(dict.fromkeys(location.supplied, UNKNOWN)))
    if defaults:
        node = LayeredNode(node, defaults, partial, location.inherited)
    elif partial != node.partial:
        node = Node(node.value, node.parent, node.key, partial)
    pod = Pod(resource, node, location)
    return None if location.containers and not pod.containers else pod
