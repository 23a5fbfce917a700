"""Rule that requires namespaces with non-system workloads to deny ingress by default.

No network policy may allow ingress from all sources to these namespaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from policies.availability import matches_everything
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, stack_rule
from policies.rules.tenancy import (
    NamespaceConfig,
    in_namespace,
    namespace_or_workload,
    workload_namespaces,
)
from policies.values import UNKNOWN, Node
from policies.views import Stack

_HALF_PREFIX: Final = 1
_LARGE_BLOCK_PREFIX: Final = 16
"""Prefix lengths: /1 covers half of all addresses, /16 a large range of private addresses."""
_CALICO_ALL: Final = "all()"
_CLUSTER_SCOPED: Final = (
    *("adminnetworkpolicy", "baselineadminnetworkpolicy", "clusternetworkpolicy"),
    *("ciliumclusterwidenetworkpolicy", "globalnetworkpolicy"),
)


def _denies_by_default(policy: Resource) -> bool:
    """Return whether a policy denies ingress to every pod; True if this is unknown."""
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


def _open_peers(policy: Resource) -> Iterator[Node]:
    """Yield the peers or rules of a NetworkPolicy that allow all sources to reach every pod."""
    spec = policy.root["spec"]
    if not spec["podSelector"].absent and not matches_everything(spec["podSelector"]):
        return
    for rule in spec["ingress"].items():
        peers = rule["from"]
        if peers.absent or peers.value == []:
            yield rule
        for peer in peers.items():
            selector, pods, block = peer["namespaceSelector"], peer["podSelector"], peer["ipBlock"]
            everywhere = matches_everything(selector) and (pods.absent or matches_everything(pods))
            if everywhere or _is_everywhere(block):
                yield peer


def _is_everywhere(block: Node) -> bool:
    """Return whether a block covers at least half of all addresses and excludes no large range."""
    if _prefix(block["cidr"]) > _HALF_PREFIX:
        return False
    return not any(_prefix(excluded) <= _LARGE_BLOCK_PREFIX for excluded in block["except"].items())


def _prefix(cidr: Node) -> int:
    """Return the prefix length of an address block, or 128 if it has none."""
    length = str(cidr.value).rpartition("/")[2]
    return int(length) if length.isdecimal() else 128


def _open_cluster_peers(policy: Resource) -> Iterator[Node]:
    """Yield the allowed peers of an AdminNetworkPolicy that match every namespace."""
    for rule in policy.root["spec"]["ingress"].items():
        allows = rule["action"].value in ("Allow", "Accept")
        for peer in rule["from"].items() if allows else ():
            selectors = (peer["namespaces"], peer["pods"]["namespaceSelector"])
            if any(matches_everything(selector) for selector in selectors):
                yield peer


def _open_cilium_rules(policy: Resource) -> Iterator[Node]:
    """Yield the rules of a Cilium policy that allow all sources to reach every pod."""
    for spec in (policy.root["spec"], *policy.root["specs"].items()):
        if not matches_everything(spec["endpointSelector"]):
            continue
        for rule in spec["ingress"].items():
            entities = {item.value for item in rule["fromEntities"].items()}
            endpoints = any(item.value == {} for item in rule["fromEndpoints"].items())
            everywhere = any(_prefix(item) <= _HALF_PREFIX for item in rule["fromCIDR"].items())
            everywhere |= any(_is_everywhere(item) for item in rule["fromCIDRSet"].items())
            named = entities & {"all", "world", "cluster"}
            if named or endpoints or everywhere or rule.value == {}:
                yield rule


def _open_calico_rules(policy: Resource) -> Iterator[Node]:
    """Yield the rules of a Calico policy that allow all sources to reach every pod."""
    spec = policy.root["spec"]
    if spec["selector"].value not in (None, "", _CALICO_ALL):
        return
    for rule in spec["ingress"].items():
        source = rule["source"]
        limited = source["selector"].value not in (None, "", _CALICO_ALL)
        limited |= not source["serviceAccounts"].absent
        limited |= any(_prefix(item) <= _LARGE_BLOCK_PREFIX for item in source["notNets"].items())
        everywhere = any(_prefix(item) <= _HALF_PREFIX for item in source["nets"].items())
        everywhere |= source["namespaceSelector"].value == _CALICO_ALL
        if rule["action"].value == "Allow" and ((everywhere and not limited) or not source.value):
            yield rule


_OPEN_PEER_FINDERS: Final[
    list[tuple[str, tuple[str, ...], Callable[[Resource], Iterator[Node]]]]
] = [
    ("networking.k8s.io", ("NetworkPolicy",), _open_peers),
    (
        "policy.networking.k8s.io",
        ("AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"),
        _open_cluster_peers,
    ),
    (
        "cilium.io",
        ("CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"),
        _open_cilium_rules,
    ),
    ("projectcalico.org", ("NetworkPolicy", "GlobalNetworkPolicy"), _open_calico_rules),
    ("crd.projectcalico.org", ("NetworkPolicy", "GlobalNetworkPolicy"), _open_calico_rules),
]
"""Functions that find peers or rules which override the default deny, by API group and kinds."""


@stack_rule(
    name="namespace-default-deny",
    description="A namespace with pods of any role except `system` denies ingress by default.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Declare a NetworkPolicy with an empty podSelector and no ingress rules.",
    config=NamespaceConfig,
    references=["NSA Network policies", "CIS 5.3.2", "OWASP K05"],
)
def namespace_default_deny(stack: Stack, config: NamespaceConfig) -> Iterator[Violation]:
    """Rendezvous and NCCL have no authentication: anyone who reaches a worker can join the run."""
    for namespace, workload in workload_namespaces(stack, config).items():
        policies = list(in_namespace(stack, "networking.k8s.io", "NetworkPolicy", namespace))
        if not any(_denies_by_default(policy) for policy in policies):
            yield Violation(
                Node(None),
                f"a NetworkPolicy in namespace {namespace} with podSelector {{}}, "
                'policyTypes ["Ingress"] and no ingress rules',
                found=f"no default-deny NetworkPolicy in namespace {namespace}",
                resource=namespace_or_workload(stack, namespace, workload),
            )
        for group, kinds, find in _OPEN_PEER_FINDERS:
            for policy in stack.of_kind(group, *kinds):
                if policy.namespace in (namespace, None) or policy.kind.lower() in _CLUSTER_SCOPED:
                    for peer in find(policy):
                        write = "the pods or namespaces that may connect: policies are additive"
                        yield Violation(peer, write, resource=policy)


RULES: list[Rule[Any]] = [namespace_default_deny]
