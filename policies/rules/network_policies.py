"""Rule that requires namespaces with non-system workloads to deny ingress by default.

No network policy may allow ingress from all sources to these namespaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from policies.availability import matches_everything, selects
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
_WORLD: Final = ("all", "world", "world-ipv4", "world-ipv6", "cluster")
"""Cilium's entities that include other namespaces or the Internet."""
_CALICO_ALL: Final = "all()"
_CALICO_NAMESPACES: Final = (
    *(_CALICO_ALL, "has(projectcalico.org/name)", "has(kubernetes.io/metadata.name)"),
)
"""Calico's selectors that match every namespace."""
_CONTROLLER_LABELS: Final = (
    *("batch.kubernetes.io/job-name", "job-name", "volcano.sh/job-name", "ray.io/cluster"),
    *("jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name"),
    "leaderworkerset.sigs.k8s.io/name",
)
"""Labels with the name of the workload, which its controller adds to the pods."""
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


def _selects_training(
    stack: Stack, namespace: str, selector: Node, config: NamespaceConfig
) -> bool:
    """Return whether a selector matches every pod, or a training pod in the namespace."""
    if selector.absent or matches_everything(selector):
        return True
    if not (selector.known and all(label.known for _, label in selector["matchLabels"].fields())):
        return False
    for workload in stack.workloads:
        added = dict.fromkeys(_CONTROLLER_LABELS, workload.resource.name)
        for pod in workload.pods if workload.resource.namespace == namespace else ():
            labels = Node(added | {key: label.value for key, label in pod.labels() if label.known})
            if pod.role(config) == "training" and selects(selector, labels):
                return True
    return False


def _open_peers(policy: Resource) -> Iterator[Node]:
    """Yield the peers or rules of a NetworkPolicy that allow all sources."""
    for rule in policy.root["spec"]["ingress"].items():
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
            entities = {item.text for item in rule["fromEntities"].items()}
            endpoints = any(matches_everything(item) for item in rule["fromEndpoints"].items())
            everywhere = any(_prefix(item) <= _HALF_PREFIX for item in rule["fromCIDR"].items())
            everywhere |= any(_is_everywhere(item) for item in rule["fromCIDRSet"].items())
            limited = any(key.startswith("from") for key, _ in rule.fields())
            if entities & set(_WORLD) or endpoints or everywhere or not limited:
                yield rule


def _open_calico_rules(policy: Resource) -> Iterator[Node]:
    """Yield the rules of a Calico policy that allow all sources to reach every pod."""
    spec = policy.root["spec"]
    if spec["selector"].value not in (None, "", _CALICO_ALL):
        return
    for rule in spec["ingress"].items():
        if rule["action"].value == "Allow" and not _is_limited(policy, rule["source"]):
            yield rule


def _is_limited(policy: Resource, source: Node) -> bool:
    """Return whether the source of a Calico rule is only part of the cluster or Internet."""
    selector, namespaces = source["selector"].value, source["namespaceSelector"].value
    nets = [_prefix(item) for item in source["nets"].items()]
    # Without a namespaceSelector, the selector of a namespaced policy applies to its namespace.
    is_global = bool(namespaces) or policy.kind.lower() in _CLUSTER_SCOPED
    return (
        (selector not in (None, "") and not (selector == _CALICO_ALL and is_global))
        or namespaces not in (None, "", *_CALICO_NAMESPACES)
        or not source["serviceAccounts"].absent
        or (bool(nets) and min(nets) > _HALF_PREFIX)
        or any(_prefix(item) <= _LARGE_BLOCK_PREFIX for item in source["notNets"].items())
    )


def _open_antrea_peers(policy: Resource) -> Iterator[Node]:
    """Yield the peers or rules of an Antrea policy that allow all sources to reach every pod."""
    spec = policy.root["spec"]
    targets = [target["podSelector"] for target in spec["appliedTo"].items()]
    if targets and not any(target.absent or matches_everything(target) for target in targets):
        return
    for rule in spec["ingress"].items():
        if rule["action"].value == "Allow":
            if not rule["from"].value:
                yield rule
            for peer in rule["from"].items():
                if matches_everything(peer["namespaceSelector"]) or _is_everywhere(peer["ipBlock"]):
                    yield peer


_OPEN_PEER_FINDERS: Final[
    list[tuple[str, tuple[str, ...], Callable[[Resource], Iterator[Node]]]]
] = [
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
    ("crd.antrea.io", ("NetworkPolicy", "ClusterNetworkPolicy"), _open_antrea_peers),
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
        for policy in policies:
            selector = policy.root["spec"]["podSelector"]
            if _selects_training(stack, namespace, selector, config):
                yield from _reported(policy, _open_peers(policy))
        for group, kinds, find in _OPEN_PEER_FINDERS:
            for policy in stack.of_kind(group, *kinds):
                if policy.namespace in (namespace, None) or policy.kind.lower() in _CLUSTER_SCOPED:
                    yield from _reported(policy, find(policy))


def _reported(policy: Resource, peers: Iterator[Node]) -> Iterator[Violation]:
    for peer in peers:
        write = "a list of the pods or namespaces that may connect"
        yield Violation(peer, write, resource=policy)


RULES: list[Rule[Any]] = [namespace_default_deny]
