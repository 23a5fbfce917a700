"""Rule about volumes that are declared outside of pods and expose files on the node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kube.workloads.record import steps
from policies import cel
from policies.pod_search import find_pods
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, resource_rule
from policies.rules.host_access import HOST_DRIVER, HOST_SOURCES
from policies.settings import SystemConfig
from policies.values import Node, any_field, nodes_at

_SOURCES: Final = (*HOST_SOURCES, "local")
_VOLUME_FIELDS: Final = frozenset({"accessModes", "capacity", "claimRef", "storageClassName"})
_NODE_PATH: Final = re.compile(r"(?i)\b(node|host|base|local)path\b")
_UNSAFE_PARAMETER: Final = "allowUnsafePathPattern"
_NETWORK_PATHS: Final = (("efs.csi.aws.com", "basePath"),)
"""Pairs of a provisioner and its parameter for a path in a network file system."""


@resource_rule(
    name="no-host-volume",
    description="PersistentVolumes and custom resources do not expose the node's file system.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Use a StorageClass, or name the volume in systemWorkloads.",
    config=SystemConfig,
    references=["PSS baseline HostPath Volumes", "CIS 5.2.11", "OWASP K01"],
    admission=cel.Cel(
        "(object.spec.?hostPath.hasValue() ? ['hostPath'] : [])"
        " + (object.spec.?local.hasValue() ? ['local'] : [])"
        " + (object.spec.?csi.?driver.orValue('').matches("
        f"{cel.literal(HOST_DRIVER.pattern)}) ? ['csi'] : [])",
        cel.VOLUMES,
    ),
)
def no_host_volume(resource: Resource, config: SystemConfig) -> Iterator[Violation]:
    """A pod without a hostPath volume could still access the node's files through a claim."""
    if "." in resource.group:
        yield from _host_paths(resource)
    if resource.is_kind("storage.k8s.io", "StorageClass"):
        yield from _class_paths(resource)
    if not resource.is_kind("", "PersistentVolume"):
        return
    spec = resource.root["spec"]
    for source in ("hostPath", "local"):
        if spec[source].present:
            yield Violation(spec[source], "a network storage volume")
    driver = spec["csi"]["driver"]
    if driver.text and HOST_DRIVER.search(driver.text):
        yield Violation(driver, "a network storage driver")


def _class_paths(resource: Resource) -> Iterator[Violation]:
    """Yield a violation for each setting with which a StorageClass selects node directories."""
    provisioner = resource.root["provisioner"].text or ""
    is_host_driver = bool(HOST_DRIVER.search(provisioner))
    for key, value in resource.root["parameters"].fields():
        text = value.text or ""
        in_network = (provisioner, key) in _NETWORK_PATHS
        path = (text.startswith("/") or ".." in text) and not in_network
        on_node = path and (is_host_driver or _NODE_PATH.search(key))
        if on_node or (key == _UNSAFE_PARAMETER and text != "false"):
            yield Violation(value, "nothing: the provisioner uses its own directory")
    for _, note in resource.annotations.fields():
        if _NODE_PATH.search(note.text or ""):
            yield Violation(note, "nothing: the provisioner uses its own directory")


def _is_volume_spec(node: Node) -> bool:
    """Return whether an object is the specification of a PersistentVolume."""
    return isinstance(node.value, dict) and bool(_VOLUME_FIELDS & node.value.keys())


def _host_paths(resource: Resource) -> Iterator[Violation]:
    """Yield a violation for each node path in a custom resource.

    Pods and their volumes are skipped, because `no-host-path` checks them.
    """
    patterns = resource.record.patterns if resource.record is not None else ()
    if "" in patterns or not any_field(resource.properties, lambda key, _: key in _SOURCES):
        return
    skipped = {node.steps for path in patterns for node in nodes_at(resource.root, steps(path))}
    pods = find_pods(resource)
    skipped |= {pod.spec.steps for pod in pods if not pod.location.containers}
    skipped |= {volume.steps for pod in pods for volume in pod.volumes.items()}
    pending = [resource.root]
    while pending:
        node = pending.pop()
        if node.steps in skipped:
            continue
        for key, child in node.fields():
            path = child["path"] if isinstance(child.value, dict) else child
            is_source = key in HOST_SOURCES or (key == "local" and _is_volume_spec(node))
            if is_source and (path.text or "").startswith("/"):
                yield Violation(child, "a network storage volume")
        pending += node.branches()


RULES: list[Rule[Any]] = [no_host_volume]
