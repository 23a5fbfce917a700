"""Ways around the walls between tenants: quotas, policies, roles, volumes."""

from typing import Any

from tests.policies.ways.way import Way, way

WEB = "ordinary_web_application"
RBAC = "rbac.authorization.k8s.io/v1"
POLICY = "3/spec"


def added(what: str, version: str, kind: str, rules: str = "", **fields: Any) -> Way:
    """One more object in the namespace of a web application."""
    metadata = {"name": "added", "namespace": "web"} | fields.pop("metadata", {})
    manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
    return way(what, WEB, rules, ("4", manifest))


def role(what: str, groups: list[str], resources: list[str], verbs: list[str]) -> Way:
    """A role with these permissions."""
    rules = [{"apiGroups": groups, "resources": resources, "verbs": verbs}]
    return way(what, "ordinary_controller", "", ("1/rules", rules))


def binding(what: str, kind: str, name: str, subject: dict[str, str]) -> Way:
    """A binding of a cluster role to a subject."""
    reference = {"apiGroup": RBAC.partition("/")[0], "kind": "ClusterRole", "name": name}
    return added(what, RBAC, kind, roleRef=reference, subjects=[subject])


ACCOUNT = {"kind": "ServiceAccount", "name": "default", "namespace": "web"}


def quota(what: str, hard: dict[str, Any], **spec: Any) -> Way:
    """A quota that does not count the GPUs of a namespace, in place of one that does."""
    return way(what, "tenant_namespace", "namespace-gpu-quota", ("1/spec", {"hard": hard, **spec}))


def denied(what: str, deny: dict[str, Any], allow: dict[str, Any] | None = None) -> Way:
    """Network policies that deny nothing, in place of two that deny all but one route."""
    edits = (("2/spec", deny), *((("3/spec", allow),) if allow else ()))
    return way(what, "tenant_namespace", "namespace-default-deny", *edits)


DENY = {"podSelector": {}, "policyTypes": ["Ingress"]}

WAYS = [
    denied(
        "a policy that allows everything beside one that denies",
        DENY,
        {"podSelector": {}, "ingress": [{}]},
    ),
    denied(
        "a policy that allows every namespace",
        DENY,
        {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]},
    ),
    denied(
        "a policy that allows every address",
        DENY,
        {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]},
    ),
    denied(
        "a policy for some pods",
        {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"]},
    ),
    denied("a policy of egress", {"podSelector": {}, "policyTypes": ["Egress"]}),
    # quotas
    quota("a quota of another vendor's GPUs", {"requests.amd.com/gpu": 8}),
    quota("a quota of limits, which are not counted", {"limits.nvidia.com/gpu": 8}),
    quota(
        "a quota of pods without resources", {"requests.nvidia.com/gpu": 8}, scopes=["BestEffort"]
    ),
    quota(
        "a quota of one priority",
        {"requests.nvidia.com/gpu": 8},
        scopeSelector={
            "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}]
        },
    ),
    quota("a quota of a million", {"requests.nvidia.com/gpu": 1_000_000}),
    quota("a quota of pods", {"pods": 10}),
    # roles
    binding("cluster-admin", "ClusterRoleBinding", "cluster-admin", ACCOUNT),
    binding("cluster-admin in a namespace", "RoleBinding", "cluster-admin", ACCOUNT),
    binding(
        "rights of everybody",
        "ClusterRoleBinding",
        "view",
        {"kind": "Group", "name": "system:unauthenticated"},
    ),
    binding(
        "rights of every user",
        "ClusterRoleBinding",
        "edit",
        {"kind": "Group", "name": "system:authenticated"},
    ),
    binding(
        "rights of the masters",
        "ClusterRoleBinding",
        "view",
        {"kind": "Group", "name": "system:masters"},
    ),
    role("a role for everything", ["*"], ["*"], ["*"]),
    role("a role that writes roles", [RBAC.partition("/")[0]], ["clusterroles"], ["escalate"]),
    role("a role that binds roles", [RBAC.partition("/")[0]], ["clusterroles"], ["bind"]),
    role("a role that impersonates", [""], ["users"], ["impersonate"]),
    role("a role that enters pods", [""], ["pods/exec"], ["create"]),
    role("a role that reads every Secret", [""], ["secrets"], ["get", "list"]),
    role("a role that reaches nodes", [""], ["nodes/proxy"], ["get"]),
    # volumes and priorities
    added(
        "a volume of the node",
        "v1",
        "PersistentVolume",
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/"},
        },
    ),
    added(
        "a local volume of the node's root",
        "v1",
        "PersistentVolume",
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": "/"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": []}},
        },
    ),
    added(
        "a volume of the node by CSI",
        "v1",
        "PersistentVolume",
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "hostpath.csi.k8s.io", "volumeHandle": "/dev"},
        },
    ),
    added(
        "a priority above all others", "scheduling.k8s.io/v1", "PriorityClass", value=1_000_000_000
    ),
    added(
        "a priority for everybody",
        "scheduling.k8s.io/v1",
        "PriorityClass",
        value=1000,
        globalDefault=True,
    ),
    added(
        "a namespace without Pod Security",
        "v1",
        "Namespace",
        metadata={"labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
    ),
]
