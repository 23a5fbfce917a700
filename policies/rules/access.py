"""Rules about access to the Kubernetes API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from kube.names import ADMISSION_GROUP, ADMISSION_PREFIX
from kube.workloads.record import NO_RECORD
from policies import cel
from policies.availability import matches_everything
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, pod_rule, resource_rule
from policies.settings import SystemConfig
from policies.values import Node, any_field
from policies.workloads import Pod

_RBAC_GROUPS: Final = ("rbac.authorization.k8s.io", "authorization.openshift.io")
_RANCHER_ROLES: Final = ("management.cattle.io", "GlobalRole", "RoleTemplate")
BUILT_IN_GROUPS: Final = frozenset(
    f"{name}.k8s.io"
    for name in (
        *("admissionregistration", "apiextensions", "apiregistration", "authentication"),
        *("authorization", "certificates", "coordination", "discovery", "events"),
        *("flowcontrol.apiserver", "internal.apiserver", "networking", "node"),
        *("rbac.authorization", "resource", "scheduling", "storage", "storagemigration"),
    )
) | {"authorization.openshift.io", "security.openshift.io"}
"""API groups that are part of Kubernetes or OpenShift. Other subdomains of k8s.io, such as
gateway.networking.k8s.io, are groups of custom resources."""
_ESCALATING_VERBS: Final = (
    *("bind", "escalate", "impersonate"),
    # `impersonate:associated-node` is not listed, because agents need it to impersonate their node.
    *(f"impersonate:{identity}" for identity in ("user-info", "serviceaccount", "arbitrary-node")),
)
_ESCALATING_RESOURCES: Final = (
    *("nodes/proxy", "serviceaccounts/token", "certificatesigningrequests/approval"),
)
_REPLACEMENTS: Final = {
    "nodes/proxy": "the part of the kubelet's API that is needed, such as nodes/metrics, "
    "nodes/stats or nodes/pods",
}
"""Remedies for forbidden resources that a narrower resource may replace."""
_ROLE_ONLY_RESOURCES: Final = (
    *("secrets", "pods/exec", "pods/attach", "pods/ephemeralcontainers", "pods/portforward"),
    *("pods/proxy", "services/proxy"),
)
"""Resources that a Role may grant in its namespace, but that no role may grant cluster-wide."""
_CONTROL_RESOURCES: Final = {
    "": ("persistentvolumes", "pods/binding", "bindings", "resourcequotas"),
    ADMISSION_GROUP: tuple(
        f"{prefix}{suffix}"
        for prefix in ("validating", "mutating")
        for suffix in ("admissionpolicies", "admissionpolicybindings", "webhookconfigurations")
    ),
    "apiregistration.k8s.io": ("apiservices",),
    "certificates.k8s.io": ("clustertrustbundles",),
    "flowcontrol.apiserver.k8s.io": ("flowschemas", "prioritylevelconfigurations"),
    "networking.k8s.io": ("servicecidrs",),
    "resource.k8s.io": ("deviceclasses",),
    "scheduling.k8s.io": ("priorityclasses",),
    "security.openshift.io": ("securitycontextconstraints",),
    "storage.k8s.io": ("storageclasses",),
}
"""Resources that must not be writable: a writer could access node files or every team's pods, or
change its own team's quota.

Nodes, ResourceSlices and CSIDrivers are not included, because autoscalers, feature discovery and
drivers write them in every cluster.
"""
_LABEL_VERBS: Final = ("patch", "update")
"""Verbs that can change the Pod Security labels of namespaces.

A Role can grant these verbs only on its own namespace, but that is enough to allow privileged pods
there. The same applies to a rule that is limited to certain names.
"""
_NAMESPACES: Final = ("namespaces", "namespaces/status", "namespaces/finalize")
"""Resources through which the labels of a namespace can be changed."""
_SIGNERS: Final = "signers"
_READ_VERBS: Final = ("get", "list", "watch")
_READING_VERBS: Final = (*_READ_VERBS, "patch", "deletecollection", "*")
"""Verbs whose responses contain existing objects."""
_VIEW_AGGREGATION_LABEL: Final = "rbac.authorization.k8s.io/aggregate-to-view"
_DEFAULT_ROLE_LABELS: Final = (
    "kubernetes.io/bootstrapping",
    "rbac.authorization.k8s.io/aggregate-to-admin",
    "rbac.authorization.k8s.io/aggregate-to-edit",
)
"""Labels of Kubernetes' default roles, and of roles that are aggregated into admin and edit."""
_UNSAFE_CONSTRAINTS: Final = ("privileged", "anyuid", "host*", "node-exporter")
"""OpenShift's SecurityContextConstraints that allow root or access to the node."""
_ADMINISTRATORS: Final = ("cluster-admin", "cluster-owner")
"""Roles with all permissions in the cluster. The second one is Rancher's."""
_NAMESPACE_CONTROL_ROLES: Final = (
    *(*_ADMINISTRATORS, "system:controller:*"),
    *(f"system:openshift:scc:{name}" for name in _UNSAFE_CONSTRAINTS),
)
_CONTROL_ROLES: Final = (
    *_NAMESPACE_CONTROL_ROLES,
    *("admin", "edit", "system:node", "system:kube-controller-manager", "system:kube-scheduler"),
    *("system:kubelet-api-admin", "system:persistent-volume-provisioner"),
    *("system:aggregate-to-admin", "system:aggregate-to-edit", "system:certificates.k8s.io:*"),
)
"""Roles that control the cluster if they are bound cluster-wide."""
_UNCHECKED_LABELS: Final = ("openshift.io/run-level", "admission.gatekeeper.sh/ignore")
"""Labels that exempt a namespace from OpenShift's security constraints or from Gatekeeper."""
_UNSAFE_PERMISSIONS: Final = (
    *("allowPrivilegedContainer", "allowHostDirVolumePlugin", "allowHostNetwork"),
    *("allowHostPID", "allowHostIPC", "allowHostPorts"),
)
"""Fields of OpenShift's SecurityContextConstraints that permit access to the node."""
_EVERYBODY: Final = (
    *("system:masters", "system:authenticated", "system:unauthenticated", "system:anonymous"),
    "system:serviceaccounts",
)
_API_AUDIENCE: Final = re.compile(
    r"^(api|k3s|rke2)?$|kubernetes|container\.googleapis\.com|\.azmk8s\.io"
)
"""Pattern of the default audiences of API servers, including those of k3s, GKE and AKS."""
_CEL_PROJECTED: Final = (
    "v.?projected.?sources.orValue([]).exists(s, s.?serviceAccountToken.hasValue()"
    " && s.?serviceAccountToken.?audience.orValue('')"
    f".matches({cel.literal(_API_AUDIENCE.pattern)})"
    " || s.?podCertificate.?signerName.orValue('').startsWith('kubernetes.io/kube-apiserver'))"
)


def _api_tokens(pod: Pod) -> Iterator[Node]:
    """Yield the projected tokens and certificates that the API server accepts."""
    for volume in pod.volumes.items():
        for source in volume["projected"]["sources"].items():
            signer = source["podCertificate"]["signerName"]
            if (signer.text or "").startswith("kubernetes.io/kube-apiserver"):
                yield signer
            token = source["serviceAccountToken"]
            audience = token["audience"]
            if token.present and audience.known and _API_AUDIENCE.search(audience.text or ""):
                yield token


@pod_rule(
    name="no-service-account-token",
    description="Pods that do not use the API have no token for it.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Set automountServiceAccountToken: false.",
    config=SystemConfig,
    references=["NSA Protecting Pod service account tokens", "CIS 5.1.6", "OWASP K01", "OWASP K09"],
    admission=cel.Cel(
        "variables.spec.?automountServiceAccountToken.orValue(true)"
        " ? ['automountServiceAccountToken']"
        f" : variables.volumes.filter(v, {_CEL_PROJECTED}).map(v, 'volume ' + v.name)"
    ),
)
def no_service_account_token(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """An API token is the first thing that malicious code in a model looks for."""
    flag = pod.spec["automountServiceAccountToken"]
    if flag.known and flag.value is not False:
        yield Violation(flag, "false")
    for token in _api_tokens(pod):
        yield Violation(token, "nothing, or write another audience")


@pod_rule(
    name="no-hidden-token",
    description="Pods that disable the API token do not mount it as a volume.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Remove the projected token, or set automountServiceAccountToken: true.",
    config=SystemConfig,
    references=["NSA Protecting Pod service account tokens", "CIS 5.1.6", "OWASP K09"],
    admission=cel.Cel(
        "variables.spec.?automountServiceAccountToken.orValue(true) ? []"
        f" : variables.volumes.filter(v, {_CEL_PROJECTED}).map(v, 'volume ' + v.name)"
    ),
)
def no_hidden_token(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """Readers of a manifest that disables the token assume that the pod cannot access the API."""
    if pod.spec["automountServiceAccountToken"].value is False:
        for token in _api_tokens(pod):
            yield Violation(token, "nothing, or write another audience")


@resource_rule(
    name="rbac-least-privilege",
    description="Roles and bindings do not grant control of the cluster.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="List the resources and verbs that the program needs, in a Role in its namespace.",
    config=SystemConfig,
    references=[
        *("NSA Authentication and authorization", "CIS 5.1.1", "CIS 5.1.2", "CIS 5.1.3"),
        *("CIS 5.1.7", "CIS 5.1.8", "CIS 5.1.9", "CIS 5.1.10", "CIS 5.1.12", "CIS 5.1.13"),
        "OWASP K02",
    ],
)
def rbac_least_privilege(resource: Resource, config: SystemConfig) -> Iterator[Violation]:
    """Anyone who controls the cluster controls every team's GPUs, models and data."""
    root = resource.root
    if _is_rbac(resource, "ClusterRoleBinding", "RoleBinding"):
        name = root["roleRef"]["name"]
        cluster_wide = _is_rbac(resource, "ClusterRoleBinding") or _is_in_kube_system(resource)
        powerful = _CONTROL_ROLES if cluster_wide else _NAMESPACE_CONTROL_ROLES
        if any(fnmatchcase(name.text or "", role) for role in powerful):
            yield Violation(name, "a role with only the permissions that are needed")
        for subject in root["subjects"].items():
            if subject["name"].text in _EVERYBODY:
                expected = "the service accounts, users or groups that need the role"
                yield Violation(subject["name"], expected)
    elif _is_rbac(resource, "ClusterRole", "Role") or resource.is_kind(*_RANCHER_ROLES):
        in_view = resource.labels[_VIEW_AGGREGATION_LABEL].value == "true"
        for rule in root["rules"].items():
            cluster_wide = _is_rbac(resource, "ClusterRole") or _is_in_kube_system(resource)
            yield from _excessive_permissions(rule, cluster_wide=cluster_wide)
            yield from _excessive_verbs(rule, in_view=in_view)
        yield from _aggregation_violations(root)
    if _may_bind_roles(resource):
        yield from _administrators(root)


def _is_rbac(resource: Resource, *kinds: str) -> bool:
    return any(resource.is_kind(group, *kinds) for group in _RBAC_GROUPS)


def _may_bind_roles(resource: Resource) -> bool:
    """Return whether an object is a custom resource that mentions an administrator role."""
    is_custom = "." in resource.group and resource.group not in BUILT_IN_GROUPS
    record = resource.record or NO_RECORD
    if not is_custom or record.patterns or record.objects:
        return False
    return any_field(resource.properties, _is_administrator)


def _is_administrator(key: str, value: Any) -> bool:
    return value in _ADMINISTRATORS or (key, value) == ("globalRoleName", "admin")


def _administrators(root: Node) -> Iterator[Violation]:
    """Yield the fields of a custom resource that bind an administrator role."""
    pending = [(root, False)]
    while pending:
        node, in_role = pending.pop()
        if in_role and _is_administrator(str(node.key), node.value):
            yield Violation(node, "a role with only the permissions that are needed")
        pending += [(child, in_role or "role" in key.lower()) for key, child in node.fields()]
        pending += [(item, in_role) for item in node.items()]


def _is_in_kube_system(resource: Resource) -> bool:
    """Return whether an object is in kube-system, where permissions give control of the cluster."""
    return resource.namespace == "kube-system"


def _aggregation_violations(role: Node) -> Iterator[Violation]:
    """Yield violations for selectors that match default roles with control of the cluster."""
    for selector in role["aggregationRule"]["clusterRoleSelectors"].items():
        expressions = selector["matchExpressions"].items()
        keys = {e["key"].text for e in expressions if e["operator"].value in ("In", "Exists")}
        keys |= {key for key, _ in selector["matchLabels"].fields()}
        if matches_everything(selector) or not keys.isdisjoint(_DEFAULT_ROLE_LABELS):
            yield Violation(selector, "a label of the roles to aggregate")


def _excessive_permissions(rule: Node, *, cluster_wide: bool) -> Iterator[Violation]:
    """Yield a violation for each part of a role's rule that grants control of the cluster."""
    for key in ("apiGroups", "resources", "nonResourceURLs"):
        for item in rule[key].items():
            if item.value in ("*", "/*") and not (key == "resources" and _is_custom(rule)):
                yield Violation(item, f"only the {key} that are needed")
    forbidden = (
        *_ESCALATING_RESOURCES,
        *(_ROLE_ONLY_RESOURCES if cluster_wide and not _is_limited_to_names(rule) else ()),
    )
    if any(verb.value == "use" for verb in rule["verbs"].items()):
        for name in rule["resourceNames"].items() if _controls(rule) else ():
            if any(fnmatchcase(name.text or "", unsafe) for unsafe in _UNSAFE_CONSTRAINTS):
                yield Violation(name, "restricted-v2 or nonroot-v2")
    if any(item.value == _SIGNERS for item in rule["resources"].items()):
        signers = [item.text or "" for item in rule["resourceNames"].items()]
        if not signers or any(name.startswith("kubernetes.io/") for name in signers):
            yield Violation(rule["resourceNames"], "custom signers")
    for item in rule["resources"].items():
        if _grants(item, forbidden) and not _only_writes_secrets(rule, item.text or ""):
            write = "a Role in the namespace instead"
            if item.value not in _ROLE_ONLY_RESOURCES:
                write = _REPLACEMENTS.get(item.text or "", "nothing")
            yield Violation(item, write)


def _excessive_verbs(rule: Node, *, in_view: bool) -> Iterator[Violation]:
    """Yield at most one violation for each verb of a role's rule.

    `in_view` is true if the rule becomes part of the `view` role.
    """
    controls = _controls(rule) and not _is_limited_to_names(rule)
    for verb in rule["verbs"].items():
        if verb.value == "*" and not _is_custom(rule):
            yield Violation(verb, "only the verbs that are needed")
        elif verb.value in _ESCALATING_VERBS:
            yield Violation(verb, "nothing: it grants the permissions of other users")
        elif verb.value in _LABEL_VERBS and _covers_namespaces(rule):
            yield Violation(verb, "nothing: it can change the Pod Security labels of namespaces")
        elif _names_admission_policies(rule) and verb.value not in _READ_VERBS:
            yield Violation(
                verb, "get, list or watch: this verb can disable the platform's policies"
            )
        elif controls and verb.value not in _READ_VERBS:
            yield Violation(verb, "get, list or watch: changes would affect every team")
        elif in_view and verb.value not in _READ_VERBS:
            yield Violation(verb, "get, list or watch: the view role would grant this verb")


def _is_limited_to_names(rule: Node) -> bool:
    """Return whether a rule covers only objects with certain names.

    The empty name covers all requests without a name: create, list and deletecollection.
    """
    names = rule["resourceNames"]
    return bool(names.value) and all(name.value != "" for name in names.items())


def _is_custom(rule: Node) -> bool:
    """Return whether a rule covers only custom resources, for which wildcards are allowed."""
    groups = [item.text or "" for item in rule["apiGroups"].items()]
    return bool(groups) and all("." in group and group not in BUILT_IN_GROUPS for group in groups)


def _controls(rule: Node) -> bool:
    """Return whether a rule covers resources whose writers control the cluster."""
    groups = [item.text or "" for item in rule["apiGroups"].items()]
    controlling = [name for group in groups for name in _CONTROL_RESOURCES.get(group, ())]
    return any(
        bool(item.value == "*" and controlling) or _grants(item, controlling)
        for item in rule["resources"].items()
    )


def _names_admission_policies(rule: Node) -> bool:
    """Return whether a rule covers the platform's admission policies or bindings by name."""
    names = [name.text or "" for name in rule["resourceNames"].items()]
    return (
        any(group.value == ADMISSION_GROUP for group in rule["apiGroups"].items())
        and any(name.startswith(ADMISSION_PREFIX) for name in names)
        and _controls(rule)
    )


def _covers_namespaces(rule: Node) -> bool:
    groups = {item.value for item in rule["apiGroups"].items()}
    resources = rule["resources"].items()
    return not groups.isdisjoint(("", "*")) and any(_grants(r, _NAMESPACES) for r in resources)


def _grants(resource: Node, forbidden: Sequence[str]) -> bool:
    """Return whether a resource or pattern (`pods/*`, `*/exec`) matches a forbidden resource."""
    name = resource.text or ""
    if name.endswith("/*"):
        return any(each.startswith(name.removesuffix("*")) for each in forbidden)
    if name.startswith("*/"):
        return any(each.endswith(name.removeprefix("*")) for each in forbidden)
    return name in forbidden


def _only_writes_secrets(rule: Node, resource: str) -> bool:
    """Return whether the resource is `secrets` and the rule grants no permission to read them."""
    verbs = {verb.text for verb in rule["verbs"].items()}
    return resource == "secrets" and verbs.isdisjoint(_READING_VERBS)


@resource_rule(
    name="namespace-pod-security",
    description="Namespaces do not disable Pod Security or similar checks, and security "
    "constraints allow no access to the node.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Enforce baseline or restricted, or name the namespace in systemWorkloads.",
    config=SystemConfig,
    references=["NSA Pod security enforcement", "NSA Namespaces", "CIS 5.2.1"],
)
def namespace_pod_security(resource: Resource, config: SystemConfig) -> Iterator[Violation]:
    """The `privileged` level admits privileged pods, regardless of who creates them."""
    level = resource.labels["pod-security.kubernetes.io/enforce"]
    if resource.is_kind("", "Namespace") and level.value == "privileged":
        yield Violation(level, '"restricted" or "baseline"')
    if resource.is_kind("security.openshift.io", "SecurityContextConstraints"):
        for key in _UNSAFE_PERMISSIONS:
            if resource.root[key].present and resource.root[key].value is not False:
                yield Violation(resource.root[key], "false")
    for name in _UNCHECKED_LABELS if resource.is_kind("", "Namespace") else ():
        if resource.labels[name].present:
            yield Violation(resource.labels[name], "nothing: it exempts every pod of the namespace")


RULES: list[Rule[Any]] = [
    no_service_account_token,
    no_hidden_token,
    rbac_least_privilege,
    namespace_pod_security,
]
