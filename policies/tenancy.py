"""Rules about the namespaces that GPU workloads share."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from pydantic import Field, PositiveInt

from kube.quantities import quantity_or_none
from policies.controllers import Workload
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, stack_rule
from policies.settings import RoleConfig
from policies.values import UNKNOWN, Node
from policies.views import Stack

_CLAIMED: Final = ".deviceclass.resource.k8s.io/devices"


class NamespaceConfig(RoleConfig):
    """Configuration of the rules about namespaces."""

    existing_namespaces: list[str] = Field(
        default=[], description="Namespaces that are protected outside of this stack."
    )


class QuotaConfig(NamespaceConfig):
    """Configuration of `namespace-gpu-quota`."""

    max_quota: PositiveInt = Field(
        default=10_000, description="Number of accelerators above which a quota limits nothing."
    )


def _workload_namespaces(stack: Stack, config: NamespaceConfig) -> dict[str, Resource]:
    """Return the namespaces of training and inference, each with a workload in it."""
    found: dict[str, Resource] = {}
    for workload in stack.workloads:
        namespace = workload.resource.namespace
        record = workload.resource.record
        applies = any(pod.role(config) != "system" for pod in workload.pods)
        if record is not None and not record.namespaced:
            continue
        if applies and namespace is not None and namespace not in config.existing_namespaces:
            found.setdefault(namespace, workload.resource)
    return found


def _holder(stack: Stack, namespace: str, workload: Resource) -> Resource:
    declared = next((r for r in stack.of_kind("", "Namespace") if r.name == namespace), None)
    return declared or workload


def _in_namespace(stack: Stack, group: str, kind: str, namespace: str) -> Iterator[Resource]:
    for resource in stack.of_kind(group, kind):
        if resource.namespace in (namespace, None):
            yield resource


def _counted(quota: Resource, config: QuotaConfig) -> set[str] | None:
    """Return the accelerators that a quota limits for every pod; None if that is unknown."""
    spec = quota.root["spec"]
    hard = spec["hard"]
    if not (hard.known and spec["scopes"].known and spec["scopeSelector"].known):
        return None
    if spec["scopes"].value or spec["scopeSelector"].value:
        return set()
    found = set()
    for name, amount in hard.fields():
        resource = name.removeprefix("requests.")
        is_claimed = name.endswith(_CLAIMED)
        limit = quantity_or_none(amount.value) if amount.known else Decimal(0)
        is_limit = limit is not None and limit <= config.max_quota
        named = resource != name and config.accelerators.includes(resource)
        if is_limit and (is_claimed or named):
            found.add(_CLAIMED if is_claimed else resource)
    return found


def _requested(workloads: list[Workload], config: QuotaConfig) -> set[str]:
    """Return the accelerators that the pods of some workloads request."""
    containers = [
        container for workload in workloads for pod in workload.pods for container in pod.containers
    ]
    names = {name for each in containers for name, _, _ in each.gpus(config.accelerators)}
    claimed = any(each.gpu_claims(config.accelerators) for each in containers)
    return names | ({_CLAIMED} if claimed else set())


@stack_rule(
    name="namespace-gpu-quota",
    description="A namespace with training or inference has a quota of GPUs.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Declare a ResourceQuota with requests.nvidia.com/gpu in the namespace.",
    config=QuotaConfig,
    references=["NSA Resource policies"],
)
def namespace_gpu_quota(stack: Stack, config: QuotaConfig) -> Iterator[Violation]:
    """Without a quota, one team's typo takes every GPU of the cluster."""
    for namespace, workload in _workload_namespaces(stack, config).items():
        inside = [item for item in stack.workloads if item.resource.namespace == namespace]
        requested = _requested(inside, config)
        counted: set[str] = set()
        for quota in _in_namespace(stack, "", "ResourceQuota", namespace):
            names = _counted(quota, config)
            counted |= requested | {"requests"} if names is None else names
        missing = sorted(requested - counted)
        if missing or not counted:
            write = " and ".join(_key(name) for name in missing) or "requests.nvidia.com/gpu"
            yield Violation(
                Node(None),
                f"a ResourceQuota in namespace {namespace} with {write}, at most "
                f"{config.max_quota} and without scopes",
                found=f"no quota of GPUs in namespace {namespace} that counts",
                resource=_holder(stack, namespace, workload),
            )


def _key(name: str) -> str:
    return f"gpu.nvidia.com{name}" if name == _CLAIMED else f"requests.{name}"


def _denies_by_default(policy: Resource) -> bool:
    """Return whether it selects every pod and allows no ingress itself."""
    spec = policy.root["spec"]
    selector, types = spec["podSelector"], spec["policyTypes"]
    if UNKNOWN in (spec.value, selector.value, types.value):
        return True
    if not types.complete:
        return True
    everything = isinstance(selector.value, dict) and not any(
        value.value and value.known for _, value in selector.fields()
    )
    declared = [item.value for item in types.items()] or ["Ingress"]
    return (
        everything
        and "Ingress" in declared
        and (not spec["ingress"].known or not spec["ingress"].value)
    )


def _undoing(policy: Resource) -> Iterator[Node]:
    """Return the peers of an ingress rule that admit everybody to every pod."""
    spec = policy.root["spec"]
    if spec["podSelector"].value not in ({}, None):
        return
    for rule in spec["ingress"].items():
        peers = rule["from"]
        if peers.absent or peers.value == []:
            yield rule
        for peer in peers.items():
            spaces, pods, block = peer["namespaceSelector"], peer["podSelector"], peer["ipBlock"]
            if (spaces.value == {} and pods.value in ({}, None)) or (
                str(block["cidr"].value).endswith("/0") and block["except"].absent
            ):
                yield peer


@stack_rule(
    name="namespace-default-deny",
    description="A namespace with training or inference denies ingress by default.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Declare a NetworkPolicy with an empty podSelector and no ingress rules.",
    config=NamespaceConfig,
    references=["NSA Network policies", "CIS 5.3.2", "OWASP K05"],
)
def namespace_default_deny(stack: Stack, config: NamespaceConfig) -> Iterator[Violation]:
    """Rendezvous and NCCL have no authentication: anyone who reaches a worker may join."""
    for namespace, workload in _workload_namespaces(stack, config).items():
        policies = list(_in_namespace(stack, "networking.k8s.io", "NetworkPolicy", namespace))
        if not any(_denies_by_default(policy) for policy in policies):
            yield Violation(
                Node(None),
                f"a NetworkPolicy in namespace {namespace} with podSelector {{}}, "
                'policyTypes ["Ingress"] and no ingress rules',
                found=f"no default-deny NetworkPolicy in namespace {namespace}",
                resource=_holder(stack, namespace, workload),
            )
        for policy in policies:
            for peer in _undoing(policy):
                write = "the pods or namespaces that may connect, since policies add up"
                yield Violation(peer, write, resource=policy)


RULES: list[Rule[Any]] = [namespace_gpu_quota, namespace_default_deny]
