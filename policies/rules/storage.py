"""Rules about the claims to which training writes its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from kube.workloads.control import ClaimTemplates
from kube.workloads.record import steps
from policies.controllers import Workload
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, show, stack_rule
from policies.settings import RoleConfig
from policies.values import UNKNOWN, Node, nodes_at
from policies.views import Stack
from policies.workloads import Pod


class CheckpointConfig(RoleConfig):
    """Configuration of `checkpoints-kept`."""

    checkpoint_claims: list[str] = Field(
        default=["*checkpoint*", "*ckpt*"],
        description="Names of claims and volumes with checkpoints, and the paths at which they "
        "are mounted; `*` matches anything.",
    )

    def is_checkpoint(self, name: str) -> bool:
        """Return whether a name or path matches `checkpoint_claims`."""
        return any(fnmatchcase(name, pattern) for pattern in self.checkpoint_claims)


def _is_read_only(pod: Pod, volume: Node) -> bool:
    if volume["persistentVolumeClaim"]["readOnly"].value is True:
        return True
    mounts = [
        mount
        for container in pod.containers
        for mount in container.node["volumeMounts"].items()
        if mount["name"].value in (volume["name"].value, UNKNOWN)
    ]
    return bool(mounts) and all(mount["readOnly"].value is True for mount in mounts)


def _written_claims(workload: Workload, config: RoleConfig) -> Iterator[Node]:
    """Yield the names of the claims that a training workload may write to."""
    pods = [pod for pod in workload.pods if pod.role(config) == "training"]
    for pod in pods:
        for volume in pod.volumes.items():
            claim = volume["persistentVolumeClaim"]["claimName"]
            if claim.text and not _is_read_only(pod, volume):
                yield claim
    if pods:
        yield from (name for name in workload.claims() if name.text)


@stack_rule(
    name="checkpoints-shared",
    description="Training on several nodes writes to claims that all of the nodes can mount.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set the ReadWriteMany access mode and a storage class that supports it.",
    config=RoleConfig,
)
def checkpoints_shared(stack: Stack, config: RoleConfig) -> Iterator[Violation]:
    """With ReadWriteOnce, the pod on the second node waits forever for the volume."""
    for workload in stack.workloads:
        if workload.size is None or workload.size <= 1:
            continue
        for name in _written_claims(workload, config):
            namespace = workload.resource.namespace
            claim = stack.find("", "PersistentVolumeClaim", namespace, str(name.value))
            if claim is None:
                continue
            modes = claim.root["spec"]["accessModes"]
            if modes.complete and "ReadWriteMany" not in [mode.value for mode in modes.items()]:
                yield Violation(
                    modes,
                    f'["ReadWriteMany"], because {workload.resource.title} writes to the '
                    "claim from several pods",
                    resource=claim,
                )


def is_retained(stack: Stack, claim: Resource) -> bool:
    """Return whether the claim or its volume is retained; True if this is unknown."""
    spec = claim.root["spec"]
    if claim.protected or UNKNOWN in (spec["storageClassName"].value, spec["volumeName"].value):
        return True
    for volume in stack.of_kind("", "PersistentVolume"):
        claim_ref = volume.root["spec"]["claimRef"]
        if UNKNOWN in (claim_ref.value, claim_ref["name"].value, claim_ref["namespace"].value):
            return True
        named = bool(spec["volumeName"].text) and volume.may_be(None, spec["volumeName"].text or "")
        reserved = bool(claim_ref["name"].text) and claim.may_be(
            claim_ref["namespace"].text, claim_ref["name"].text or ""
        )
        if named or reserved:
            policy = volume.root["spec"]["persistentVolumeReclaimPolicy"]
            return policy.value in ("Retain", UNKNOWN)
    storage_class = spec["storageClassName"].text or ""
    for candidate in stack.of_kind("storage.k8s.io", "StorageClass"):
        if candidate.may_be(None, storage_class):
            return candidate.root["reclaimPolicy"].value in ("Retain", UNKNOWN)
    return False


@stack_rule(
    name="checkpoints-kept",
    description="Claims with checkpoints are protected, or their volumes are retained.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Protect the claim in Pulumi, or use a storage class or volume with "
    "reclaimPolicy Retain.",
    config=CheckpointConfig,
)
def checkpoints_kept(stack: Stack, config: CheckpointConfig) -> Iterator[Violation]:
    """Checkpoints can be worth weeks of GPU time, and must outlive a pod, a job or a stack."""
    written = {
        (workload.resource.namespace, name.value)
        for workload in stack.workloads
        for name in _written_claims(workload, config)
    }
    for claim in stack.of_kind("", "PersistentVolumeClaim"):
        if config.is_checkpoint(claim.name) or (claim.namespace, claim.name) in written:
            yield from _not_retained(stack, claim, claim.root["spec"], claim)
    for workload in stack.workloads:
        for claim, spec in _claim_templates(workload, config):
            yield from _not_retained(stack, claim, spec, workload.resource)
        for volume in _temporary_checkpoints(workload, config):
            write = "a persistentVolumeClaim, whose data outlives the pod"
            yield Violation(volume, write, resource=workload.resource)


def _not_retained(
    stack: Stack, claim: Resource, spec: Node, resource: Resource
) -> Iterator[Violation]:
    if not is_retained(stack, claim):
        storage_class = spec["storageClassName"]
        yield Violation(
            storage_class,
            "a storage class with reclaimPolicy Retain, or protect the claim in Pulumi",
            found=f"{show(storage_class.value)}, and neither the claim nor its volume is retained",
            resource=resource,
        )


def _claim_templates(
    workload: Workload, config: CheckpointConfig
) -> Iterator[tuple[Resource, Node]]:
    """Yield the checkpoint claims that a controller creates, each with its specification."""
    record = workload.resource.record
    for name, spec in _templates(workload.resource, record.claims if record is not None else ()):
        if name is not None and not config.is_checkpoint(name):
            continue
        metadata = {"name": name, "namespace": workload.resource.namespace or UNKNOWN}
        manifest = {"metadata": {k: v for k, v in metadata.items() if v}, "spec": spec.value}
        yield Resource("kubernetes:core/v1:PersistentVolumeClaim", manifest), spec


def _templates(
    resource: Resource, templates: Sequence[ClaimTemplates]
) -> Iterator[tuple[str | None, Node]]:
    """Yield the name (None if it is generated) and the specification of each claim template."""
    for template in templates:
        for node in nodes_at(resource.root, steps(template.at)):
            spec = node.at(template.spec)
            if spec.present:
                yield (str(node.at(template.name).value) if template.name else None), spec


def _temporary_checkpoints(workload: Workload, config: CheckpointConfig) -> Iterator[Node]:
    """Yield the sources of checkpoint volumes that are deleted with a training pod."""
    for pod in workload.pods:
        if pod.role(config) != "training":
            continue
        mounted = {
            mount["name"].text
            for container in pod.containers
            for mount in container.node["volumeMounts"].items()
            if config.is_checkpoint(mount["mountPath"].text or "")
        }
        for volume in pod.volumes.items():
            name = volume["name"].text or ""
            for source in ("emptyDir", "ephemeral"):
                if volume[source].present and (config.is_checkpoint(name) or name in mounted):
                    yield volume[source]


RULES: list[Rule[Any]] = [checkpoints_shared, checkpoints_kept]
