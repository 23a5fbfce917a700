"""Rule that requires namespaces with non-system workloads to have a GPU quota."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from pydantic import Field, PositiveInt

from kube.quantities import quantity_or_none
from policies.controllers import Workload
from policies.demand import Demand, demanded_gpus
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, stack_rule
from policies.settings import ExactNames, RoleConfig
from policies.values import Node
from policies.views import Stack

_DEVICE_QUOTA_SUFFIX: Final = ".deviceclass.resource.k8s.io/devices"


class NamespaceConfig(RoleConfig):
    """Configuration of the rules about namespaces."""

    existing_namespaces: ExactNames = Field(
        default=[],
        description="Namespaces whose quota and default-deny policy are declared outside this "
        "stack.",
    )


class QuotaConfig(NamespaceConfig):
    """Configuration of `namespace-gpu-quota`."""

    max_quota: PositiveInt = Field(
        default=10_000, description="Quotas above this number of accelerators count as unlimited."
    )


def workload_namespaces(stack: Stack, config: NamespaceConfig) -> dict[str, Resource]:
    """Map each namespace with non-system workloads to one of these workloads.

    Namespaces in `existing_namespaces` are omitted.
    """
    namespaces: dict[str, Resource] = {}
    for workload in stack.workloads:
        namespace = workload.resource.namespace
        record = workload.resource.record
        applies = any(pod.role(config) != "system" for pod in workload.pods)
        if record is not None and not record.namespaced:
            continue
        if applies and namespace is not None and namespace not in config.existing_namespaces:
            namespaces.setdefault(namespace, workload.resource)
    return namespaces


def namespace_or_workload(stack: Stack, namespace: str, workload: Resource) -> Resource:
    """Return the Namespace if the stack declares it, otherwise `workload`."""
    declared = next((r for r in stack.of_kind("", "Namespace") if r.name == namespace), None)
    return declared or workload


def in_namespace(stack: Stack, group: str, kind: str, namespace: str) -> Iterator[Resource]:
    """Yield the objects of a kind that are, or may be, in a namespace."""
    for resource in stack.of_kind(group, kind):
        if resource.namespace in (namespace, None):
            yield resource


def _quota_limits(quota: Resource, config: QuotaConfig) -> dict[str, Decimal] | None:
    """Return the limits of a quota by accelerator, or None if the limits are unknown."""
    spec = quota.root["spec"]
    hard = spec["hard"]
    if not (hard.known and spec["scopes"].known and spec["scopeSelector"].known):
        return None
    if spec["scopes"].value or spec["scopeSelector"].value:
        return {}
    found = {}
    for name, amount in hard.fields():
        resource = name.removeprefix("requests.")
        named = resource != name and config.accelerators.includes(resource)
        limit = quantity_or_none(amount.value) if amount.known else Decimal(config.max_quota)
        is_limit = limit is not None and limit <= config.max_quota
        if limit is not None and is_limit and (name.endswith(_DEVICE_QUOTA_SUFFIX) or named):
            found[name if name.endswith(_DEVICE_QUOTA_SUFFIX) else resource] = limit
    return found


def _merge_limits(quotas: Sequence[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    """Return the smallest limit of each resource, because all quotas of a namespace apply.

    All device classes share one entry with the largest of their limits, because the device class
    of a claim may be unknown.
    """
    smallest: dict[str, Decimal] = {}
    for name, limit in (item for quota in quotas for item in quota.items()):
        smallest[name] = min(limit, smallest.get(name, limit))
    limits: dict[str, Decimal] = {}
    for name, limit in smallest.items():
        key = _DEVICE_QUOTA_SUFFIX if name.endswith(_DEVICE_QUOTA_SUFFIX) else name
        limits[key] = max(limit, limits.get(key, limit))
    return limits


@stack_rule(
    name="namespace-gpu-quota",
    description="A namespace with pods of any role except `system` has a GPU quota.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Declare a ResourceQuota with requests.nvidia.com/gpu in the namespace.",
    config=QuotaConfig,
    references=["NSA Resource policies"],
)
def namespace_gpu_quota(stack: Stack, config: QuotaConfig) -> Iterator[Violation]:
    """Without a quota, one team's typo can take every GPU in the cluster."""
    demands = demanded_gpus(stack, config.accelerators)
    for namespace, workload in workload_namespaces(stack, config).items():
        local_demands = [item for item in demands if item.workload.resource.namespace == namespace]
        quotas = in_namespace(stack, "", "ResourceQuota", namespace)
        found = [_quota_limits(quota, config) for quota in quotas]
        if None in found:
            continue
        limits = _merge_limits([each for each in found if each is not None])
        missing = sorted({_quota_name(item) for item in local_demands} - limits.keys())
        if missing or not limits:
            write = " and ".join(_quota_key(name) for name in missing) or "requests.nvidia.com/gpu"
            yield Violation(
                Node(None),
                f"a ResourceQuota without scopes in namespace {namespace} that limits {write} to "
                f"at most {config.max_quota}",
                found=f"no effective GPU quota in namespace {namespace}",
                resource=namespace_or_workload(stack, namespace, workload),
            )
        yield from _too_large(local_demands, limits)


def _quota_name(demand: Demand) -> str:
    """Return the name of the quota entry that limits a demand."""
    return _DEVICE_QUOTA_SUFFIX if demand.claimed else demand.resource


def _too_large(demands: Sequence[Demand], limits: Mapping[str, Decimal]) -> Iterator[Violation]:
    """Yield a violation for each workload that needs more than its namespace's quota."""
    needed: dict[tuple[Workload, str], Decimal] = defaultdict(Decimal)
    for demand in demands:
        needed[demand.workload, _quota_name(demand)] += demand.requested
    for (workload, name), number in needed.items():
        if number > limits.get(name, number):
            yield Violation(
                Node(None),
                f"at most {limits[name]:f}, or raise the quota",
                found=f"{_quota_key(name)}: {number:f} in one workload",
                resource=workload.resource,
            )


def _quota_key(name: str) -> str:
    return f"gpu.nvidia.com{name}" if name == _DEVICE_QUOTA_SUFFIX else f"requests.{name}"


RULES: list[Rule[Any]] = [namespace_gpu_quota]
