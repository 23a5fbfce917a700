"""Rule that rejects objects that could be used to take over the control plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kube.names import BUS_GROUP
from policies import cel
from policies.documents import DocumentError, embedded_values
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, resource_rule
from policies.rules.access import BUILT_IN_GROUPS
from policies.settings import SystemConfig
from policies.values import Node

_SIGNER_PREFIX: Final = "kubernetes.io/"
_MASTERS: Final = "system:masters"
_KUBE_SYSTEM: Final = "kube-system"
_AWS_AUTH: Final = "aws-auth"
_OTHER_GROUPS: Final = "groups with only the permissions that are needed"
_NODE_CONFIGURATIONS: Final = ("MachineConfig", "KubeletConfig", "ContainerRuntimeConfig")
_BOOTSTRAP_TYPE: Final = "bootstrap.kubernetes.io/token"
_EVERYBODY: Final = (
    *("system:authenticated", "system:unauthenticated", "system:serviceaccounts", "*"),
)
_CERTIFICATE_KINDS: Final = (
    *("CertificateSigningRequest", "ClusterTrustBundle", "PodCertificateRequest"),
)
_LEADERS: Final = ("kube-", "cloud-controller-manager")
_SERVICE_LABEL: Final = "kubernetes.io/service-name"
_CLUSTER_SERVICES: Final = (
    *((_KUBE_SYSTEM, "kube-dns"), (_KUBE_SYSTEM, "coredns"), ("default", "kubernetes")),
)
"""Services of the cluster DNS and of the API server. CoreDNS's ConfigMap is named `coredns` too."""


@resource_rule(
    name="control-plane-kept",
    description="No object allows anyone to take over the control plane or its identities.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Remove the object, or name it in systemWorkloads.",
    config=SystemConfig,
    references=["NSA Authentication and authorization", "CIS 5.1.11", "OWASP K03"],
    admission=cel.Cel(
        "dyn(object).?target.?kind.orValue('') == 'Queue' ? ['target'] : []",
        cel.COMMANDS,
        partial=True,
    ),
)
def control_plane_kept(resource: Resource, config: SystemConfig) -> Iterator[Violation]:
    """Certificates, groups, leases, addresses and API priorities can grant more than any Role."""
    root = resource.root
    yield from _moved_service(resource)
    if resource.is_kind("certificates.k8s.io", *_CERTIFICATE_KINDS):
        signer = root["spec"]["signerName"]
        if (signer.text or "").startswith(_SIGNER_PREFIX):
            yield Violation(signer, "a custom signer")
    elif resource.is_kind("flowcontrol.apiserver.k8s.io", "FlowSchema"):
        yield from _unlimited(root["spec"])
    elif resource.is_kind("networking.k8s.io", "ServiceCIDR"):
        yield Violation(
            root["spec"]["cidrs"], "nothing: Services could take over the addresses of other hosts"
        )
    elif resource.is_kind("apiregistration.k8s.io", "APIService"):
        group, service = root["spec"]["group"], root["spec"]["service"]
        is_built_in = "." not in (group.text or "") or group.text in BUILT_IN_GROUPS
        if group.known and is_built_in and not service.absent:
            yield Violation(service, "nothing: the API server itself serves this group")
    elif resource.is_kind("", "Secret"):
        if root["type"].value == _BOOTSTRAP_TYPE:
            yield Violation(root["type"], "nothing: anyone with this token can add a node")
    elif resource.namespace == _KUBE_SYSTEM and resource.is_kind("coordination.k8s.io", "Lease"):
        if resource.name.startswith(_LEADERS):
            yield Violation(
                root["metadata"]["name"],
                "nothing: the holder of this lease becomes the component's leader",
            )
    elif resource.is_kind(BUS_GROUP, "Command"):
        if root["target"]["kind"].value == "Queue":
            yield Violation(
                root["target"], "a job: a command for a queue can close or open any team's queue"
            )
    elif resource.is_kind("machineconfiguration.openshift.io", *_NODE_CONFIGURATIONS):
        yield Violation(root["spec"], "nothing: it changes every node, with root permissions")
    elif resource.is_kind("iamauthenticator.k8s.aws", "IAMIdentityMapping"):
        for group in root["spec"]["groups"].items():
            if group.value == _MASTERS:
                yield Violation(group, _OTHER_GROUPS)
    elif resource.namespace == _KUBE_SYSTEM and resource.is_kind("", "ConfigMap"):
        for _, text in root["data"].fields() if resource.name == _AWS_AUTH else ():
            if _mentions_masters(text.text or ""):
                yield Violation(text, _OTHER_GROUPS)


def _mentions_masters(text: str) -> bool:
    """Return whether a YAML text contains the group of administrators, even if it is escaped."""
    try:
        return _MASTERS in str(list(embedded_values(text)))
    except DocumentError:
        return _MASTERS in text


def _moved_service(resource: Resource) -> Iterator[Violation]:
    """Yield a violation if the object takes over traffic for the cluster DNS or the API server."""
    name = resource.root["metadata"]["name"]
    if resource.is_kind("discovery.k8s.io", "EndpointSlice"):
        name = resource.labels[_SERVICE_LABEL]
    elif not resource.is_kind("", "Service", "Endpoints", "ConfigMap"):
        return
    if (resource.namespace, name.value) in _CLUSTER_SERVICES:
        yield Violation(name, "nothing: it redirects the requests of all pods")


def _unlimited(spec: Node) -> Iterator[Violation]:
    """Yield a violation if everybody gets the `exempt` priority level, which has no limits."""
    level = spec["priorityLevelConfiguration"]["name"]
    subjects = [subject for rule in spec["rules"].items() for subject in rule["subjects"].items()]
    kinds = ("group", "user", "serviceAccount")
    names = [subject[kind]["name"].value for subject in subjects for kind in kinds]
    if level.value == "exempt" and any(name in _EVERYBODY for name in names):
        yield Violation(level, "a level with a limit")


RULES: list[Rule[Any]] = [control_plane_kept]
