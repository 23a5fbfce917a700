"""Rule that requires namespaces with non-system workloads to deny ingress by default.

No network policy may allow ingress from all sources to these namespaces.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from policies.availability import NAMESPACE_NAMES, matches_everything
from policies.availability import selects as may_select
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

_PUBLIC_BITS: Final = {4: 0, 6: 3}
"""Prefix length of all Internet addresses, by IP version. Public IPv6 addresses are in 2000::/3."""
_LARGE_BLOCK_PREFIX: Final = 16
"""Maximum prefix length of an address block that counts as large."""
_HALF: Final = 0.5
_WORLD: Final = ("all", "world", "world-ipv4", "world-ipv6", "cluster")
"""Cilium's entities that include other namespaces or the Internet."""
_CILIUM_PREFIX: Final = re.compile(r"^(k8s|any)[:.]")
"""Prefix of a label key that states the source of the label in Cilium's selectors."""
_CALICO_ALL: Final = "all()"
_CALICO_LABEL: Final = re.compile(r"""\s*([\w./-]+)\s*==\s*["']([^"']*)["']\s*""")
_CALICO_NAMESPACES: Final = (
    *(_CALICO_ALL, "has(projectcalico.org/name)", "has(kubernetes.io/metadata.name)"),
)
"""Calico's selectors that match every namespace."""
_CONTROLLER_LABELS: Final = (
    *("batch.kubernetes.io/job-name", "job-name", "volcano.sh/job-name", "ray.io/cluster"),
    *("jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name"),
    "leaderworkerset.sigs.k8s.io/name",
)
"""Labels that controllers add to pods and whose value is the name of the workload."""
_CONTROLLER_PREFIXES: Final = (
    *("volcano.sh/", "batch.kubernetes.io/", "controller-uid", "ray.io/", "training.kubeflow.org/"),
    *("jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/"),
)
"""Prefixes of other labels that controllers add to pods, for example with a task or queue name."""
_CLUSTER_SCOPED: Final = (
    *("adminnetworkpolicy", "baselineadminnetworkpolicy", "clusternetworkpolicy"),
    *("ciliumclusterwidenetworkpolicy", "globalnetworkpolicy"),
)

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Selects = Callable[[Node], bool]
"""Function that returns whether a label selector matches training pods."""


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
    stack: Stack, namespace: str, config: NamespaceConfig, selector: Node
) -> bool:
    """Return whether a selector matches every pod, or a training pod in the namespace."""
    if selector.absent or matches_everything(selector):
        return True
    # A patch adds ingress to an existing policy, whose unknown selector may match training pods.
    if selector.partial and not selector.known:
        return True
    if not (selector.known and all(label.known for _, label in selector["matchLabels"].fields())):
        return False
    keys = [key for key, _ in selector["matchLabels"].fields()]
    keys += [item["key"].text or "" for item in selector["matchExpressions"].items()]
    unknown = {key: UNKNOWN for key in keys if key.startswith(_CONTROLLER_PREFIXES)}
    for workload in stack.workloads:
        added: dict[str, Any] = dict(unknown)
        added |= dict.fromkeys(_CONTROLLER_LABELS, workload.resource.name)
        added |= dict.fromkeys(NAMESPACE_NAMES, namespace)
        for pod in workload.pods if workload.resource.namespace == namespace else ():
            labels = Node(added | {key: label.value for key, label in pod.labels() if label.known})
            if pod.role(config) == "training" and may_select(selector, labels):
                return True
    return False


def _open_peers(policy: Resource) -> Iterator[Node]:
    """Yield the peers or rules of a NetworkPolicy that allow all sources."""
    blocks = []
    for rule in policy.root["spec"]["ingress"].items():
        peers = rule["from"]
        if peers.absent or peers.value == []:
            yield rule
        for peer in peers.items():
            selector, pods = peer["namespaceSelector"], peer["podSelector"]
            if matches_everything(selector) and (pods.absent or matches_everything(pods)):
                yield peer
            blocks.append(peer["ipBlock"])
    yield from _open_blocks(blocks)


def _open_blocks(blocks: Iterable[Node]) -> Iterator[Node]:
    """Yield the largest block if the blocks together cover at least half of the Internet.

    Blocks that exclude a large range are ignored.
    """
    cidrs = [
        block["cidr"]
        for block in blocks
        if not any(_prefix(item) <= _LARGE_BLOCK_PREFIX for item in block["except"].items())
    ]
    if _are_everywhere(cidrs):
        yield min(cidrs, key=_prefix)


def _are_everywhere(cidrs: Iterable[Node]) -> bool:
    """Return whether address blocks together cover at least half of the Internet."""
    networks = [network for cidr in cidrs if (network := _network(cidr)) is not None]
    # Networks may overlap, for example a network and its parts.
    apart: list[_Network] = [
        *ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv4Network)),
        *ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv6Network)),
    ]
    shares = {4: 0.0, 6: 0.0}
    for block in apart:
        shares[block.version] += 2.0 ** (_PUBLIC_BITS[block.version] - block.prefixlen)
    return max(shares.values()) >= _HALF


def _network(cidr: Node) -> _Network | None:
    try:
        return ipaddress.ip_network(cidr.text or "", strict=False)
    except ValueError:
        return None


def _prefix(cidr: Node) -> int:
    """Return the prefix length of an address block, or 128 if the block is invalid."""
    network = _network(cidr)
    return 128 if network is None else network.prefixlen


def _open_cluster_peers(policy: Resource, selects: Selects) -> Iterator[Node]:
    """Yield the allowed peers of an AdminNetworkPolicy that match every namespace."""
    for rule in policy.root["spec"]["ingress"].items():
        allows = rule["action"].value in ("Allow", "Accept")
        for peer in rule["from"].items() if allows else ():
            selectors = (peer["namespaces"], peer["pods"]["namespaceSelector"])
            if any(matches_everything(selector) for selector in selectors):
                yield peer


def _open_cilium_rules(policy: Resource, selects: Selects) -> Iterator[Node]:
    """Yield the rules of a Cilium policy that allow all sources to reach training pods."""
    for spec in (policy.root["spec"], *policy.root["specs"].items()):
        selector = spec["endpointSelector"]
        if selector.absent or not selects(_without_sources(selector)):
            continue
        for rule in spec["ingress"].items():
            entities = {item.text for item in rule["fromEntities"].items()}
            endpoints = any(matches_everything(item) for item in rule["fromEndpoints"].items())
            everywhere = _are_everywhere(rule["fromCIDR"].items())
            everywhere |= any(_open_blocks(rule["fromCIDRSet"].items()))
            limited = any(key.startswith("from") for key, _ in rule.fields())
            if entities & set(_WORLD) or endpoints or everywhere or not limited:
                yield rule


def _without_sources(selector: Node) -> Node:
    """Return a Cilium selector without the sources of its labels, such as `k8s:` in `k8s:app`."""
    labels = {
        _CILIUM_PREFIX.sub("", key): label.value for key, label in selector["matchLabels"].fields()
    }
    terms = [
        {**item.value, "key": _CILIUM_PREFIX.sub("", item["key"].text or "")}
        for item in selector["matchExpressions"].items()
        if isinstance(item.value, dict)
    ]
    return Node({"matchLabels": labels, "matchExpressions": terms})


def _calico_selector(text: str) -> Node:
    """Return the labels that a Calico selector requires.

    Parts other than `label == "value"` are ignored, so the result may select more pods.
    """
    terms = (_CALICO_LABEL.fullmatch(term) for term in text.split("&&"))
    return Node({"matchLabels": {found[1]: found[2] for found in terms if found}})


def _open_calico_rules(policy: Resource, selects: Selects) -> Iterator[Node]:
    """Yield the rules of a Calico policy that allow all sources to reach training pods."""
    spec = policy.root["spec"]
    if not selects(_calico_selector(spec["selector"].text or "")):
        return
    for rule in spec["ingress"].items():
        if rule["action"].value == "Allow" and not _is_limited(policy, rule["source"]):
            yield rule


def _is_limited(policy: Resource, source: Node) -> bool:
    """Return whether a Calico rule allows only a part of the cluster or of the Internet."""
    selector, namespaces = source["selector"].value, source["namespaceSelector"].value
    nets = list(source["nets"].items())
    # Without a namespaceSelector, the selector of a namespaced policy applies to its namespace.
    is_global = bool(namespaces) or policy.kind.lower() in _CLUSTER_SCOPED
    return (
        (selector not in (None, "") and not (selector == _CALICO_ALL and is_global))
        or namespaces not in (None, "", *_CALICO_NAMESPACES)
        or not source["serviceAccounts"].absent
        or (bool(nets) and not _are_everywhere(nets))
        or any(_prefix(item) <= _LARGE_BLOCK_PREFIX for item in source["notNets"].items())
    )


def _open_antrea_peers(policy: Resource, selects: Selects) -> Iterator[Node]:
    """Yield the peers or rules of an Antrea policy that open training pods to all sources."""
    spec = policy.root["spec"]
    targets = [target["podSelector"] for target in spec["appliedTo"].items()]
    if targets and not any(map(selects, targets)):
        return
    for rule in spec["ingress"].items():
        if rule["action"].value == "Allow":
            if not rule["from"].value:
                yield rule
            for peer in rule["from"].items():
                if matches_everything(peer["namespaceSelector"]):
                    yield peer
            yield from _open_blocks(peer["ipBlock"] for peer in rule["from"].items())


_OPEN_PEER_FINDERS: Final[
    list[tuple[str, tuple[str, ...], Callable[[Resource, Selects], Iterator[Node]]]]
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
"""API groups and kinds of policies, each with a function that finds peers or rules that override
the default deny."""


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
        selects = partial(_selects_training, stack, namespace, config)
        for policy in policies:
            if selects(policy.root["spec"]["podSelector"]):
                yield from _reported(policy, _open_peers(policy))
        for group, kinds, find in _OPEN_PEER_FINDERS:
            for policy in stack.of_kind(group, *kinds):
                if policy.namespace in (namespace, None) or policy.kind.lower() in _CLUSTER_SCOPED:
                    yield from _reported(policy, find(policy, selects))


def _reported(policy: Resource, peers: Iterator[Node]) -> Iterator[Violation]:
    for peer in peers:
        write = "a list of the pods or namespaces that may connect"
        yield Violation(peer, write, resource=policy)


RULES: list[Rule[Any]] = [namespace_default_deny]
