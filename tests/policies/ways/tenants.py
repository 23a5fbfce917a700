"""Ways to break tenant isolation: quotas, network policies, roles and volumes."""

from typing import Any

from tests.policies.ways.way import Way, way

WEB = "ordinary_web_application"
RBAC = "rbac.authorization.k8s.io/v1"
POLICY = "3/spec"


def added(description: str, version: str, kind: str, rules: str = "", /, **fields: Any) -> Way:
    """Return an edit that adds an object to the namespace of a web application."""
    metadata = {"name": "added", "namespace": "web"} | fields.pop("metadata", {})
    manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
    return way(description, WEB, rules, ("4", manifest))


def role(description: str, groups: list[str], resources: list[str], verbs: list[str]) -> Way:
    """Return an edit that sets the permissions of a role."""
    rules = [{"apiGroups": groups, "resources": resources, "verbs": verbs}]
    return way(description, "ordinary_controller", "", ("1/rules", rules))


def binding(description: str, kind: str, name: str, subject: dict[str, str]) -> Way:
    """Return an edit that binds a cluster role to a subject."""
    reference = {"apiGroup": RBAC.partition("/")[0], "kind": "ClusterRole", "name": name}
    return added(description, RBAC, kind, roleRef=reference, subjects=[subject])


ACCOUNT = {"kind": "ServiceAccount", "name": "default", "namespace": "web"}


def quota(description: str, hard: dict[str, Any], **spec: Any) -> Way:
    """Return an edit that replaces the GPU quota of a namespace with an ineffective one."""
    return way(
        description, "tenant_namespace", "namespace-gpu-quota", ("1/spec", {"hard": hard, **spec})
    )


def replaced_policies(
    description: str, deny: dict[str, Any], allow: dict[str, Any] | None = None
) -> Way:
    """Return an edit that replaces the default-deny network policies with ineffective ones."""
    edits = (("2/spec", deny), *((("3/spec", allow),) if allow else ()))
    return way(description, "tenant_namespace", "namespace-default-deny", *edits)


DENY = {"podSelector": {}, "policyTypes": ["Ingress"]}

WAYS = [
    replaced_policies(
        "a network policy that allows all traffic next to the denying one",
        DENY,
        {"podSelector": {}, "ingress": [{}]},
    ),
    replaced_policies(
        "a network policy that allows every namespace",
        DENY,
        {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]},
    ),
    replaced_policies(
        "a network policy that allows every address",
        DENY,
        {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]},
    ),
    replaced_policies(
        "a network policy for selected pods only",
        {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"]},
    ),
    replaced_policies(
        "a network policy for egress only", {"podSelector": {}, "policyTypes": ["Egress"]}
    ),
    # quotas
    quota("a quota for another vendor's GPUs", {"requests.amd.com/gpu": 8}),
    quota("a quota for GPU limits, which Kubernetes ignores", {"limits.nvidia.com/gpu": 8}),
    quota(
        "a quota for pods without resources", {"requests.nvidia.com/gpu": 8}, scopes=["BestEffort"]
    ),
    quota(
        "a quota for one priority class",
        {"requests.nvidia.com/gpu": 8},
        scopeSelector={
            "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}]
        },
    ),
    quota("a quota of a million GPUs", {"requests.nvidia.com/gpu": 1_000_000}),
    quota("a quota for the number of pods", {"pods": 10}),
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
        "permissions for every user",
        "ClusterRoleBinding",
        "edit",
        {"kind": "Group", "name": "system:authenticated"},
    ),
    binding(
        "permissions for the system:masters group",
        "ClusterRoleBinding",
        "view",
        {"kind": "Group", "name": "system:masters"},
    ),
    role("a role with all permissions", ["*"], ["*"], ["*"]),
    role("a role that writes roles", [RBAC.partition("/")[0]], ["clusterroles"], ["escalate"]),
    role("a role that binds roles", [RBAC.partition("/")[0]], ["clusterroles"], ["bind"]),
    role("a role that impersonates users", [""], ["users"], ["impersonate"]),
    role("a role that executes commands in pods", [""], ["pods/exec"], ["create"]),
    role("a role that reads all Secrets", [""], ["secrets"], ["get", "list"]),
    role("a role that accesses the node proxy", [""], ["nodes/proxy"], ["get"]),
    # volumes and priorities
    added(
        "a host path PersistentVolume",
        "v1",
        "PersistentVolume",
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/"},
        },
    ),
    added(
        "a local volume at the node's root",
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
        "a host volume through CSI",
        "v1",
        "PersistentVolume",
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "hostpath.csi.k8s.io", "volumeHandle": "/dev"},
        },
    ),
    added(
        "a priority class above all others",
        "scheduling.k8s.io/v1",
        "PriorityClass",
        value=1_000_000_000,
    ),
    added(
        "a global default priority class",
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
