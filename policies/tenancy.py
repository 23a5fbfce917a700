"""Rules about the namespaces that GPU workloads share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, stack_rule
from policies.settings import RoleConfig
from policies.values import UNKNOWN, Node
from policies.views import Stack


class NamespaceConfig(RoleConfig):
    """Configuration of the rules about namespaces."""

    existing_namespaces: list[str] = Field(
        default=[], description="Namespaces that are protected outside of this stack."
    )


def _workload_namespaces(stack: Stack, config: NamespaceConfig) -> dict[str, Resource]:
    """Return the namespaces of training and inference, each with a workload in it."""
    found: dict[str, Resource] = {}
    for workload in stack.workloads:
        namespace = workload.resource.namespace
        applies = any(pod.role(config) != "system" for pod in workload.pods)
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


def _limits_gpus(quota: Resource, config: NamespaceConfig) -> bool:
    hard = quota.root["spec"]["hard"]
    names = [name.removeprefix("requests.").removeprefix("limits.") for name, _ in hard.fields()]
    return not hard.known or any(config.accelerators.includes(name) for name in names)


@stack_rule(
    name="namespace-gpu-quota",
    description="A namespace with training or inference has a quota of GPUs.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Declare a ResourceQuota with requests.nvidia.com/gpu in the namespace.",
    config=NamespaceConfig,
    references=["NSA Resource policies"],
)
def namespace_gpu_quota(stack: Stack, config: NamespaceConfig) -> Iterator[Violation]:
    """Without a quota, one team's typo takes every GPU of the cluster."""
    for namespace, workload in _workload_namespaces(stack, config).items():
        quotas = _in_namespace(stack, "", "ResourceQuota", namespace)
        if not any(_limits_gpus(quota, config) for quota in quotas):
            yield Violation(
                Node(None),
                f"a ResourceQuota in namespace {namespace} with requests.nvidia.com/gpu",
                found=f"no quota of GPUs in namespace {namespace}",
                resource=_holder(stack, namespace, workload),
            )


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
        policies = _in_namespace(stack, "networking.k8s.io", "NetworkPolicy", namespace)
        if not any(_denies_by_default(policy) for policy in policies):
            yield Violation(
                Node(None),
                f"a NetworkPolicy in namespace {namespace} with podSelector {{}}, "
                'policyTypes ["Ingress"] and no ingress rules',
                found=f"no default-deny NetworkPolicy in namespace {namespace}",
                resource=_holder(stack, namespace, workload),
            )


RULES: list[Rule[Any]] = [namespace_gpu_quota, namespace_default_deny]
