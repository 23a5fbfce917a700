"""Ways to get more rights in the API than a role seems to grant."""

from typing import Any

from tests.policies.ways.pods import pod
from tests.policies.ways.tenants import ACCOUNT, RBAC, added, binding, role
from tests.policies.ways.way import way

BOUND = "ordinary_controller"
GROUP = RBAC.partition("/")[0]


def projected(what: str, **source: Any) -> Any:
    """A volume with one projected source, in a pod that states to have no token."""
    return pod(what, "volumes", [{"name": "p", "projected": {"sources": [source]}}])


WAYS = [
    role("a role for one group with every verb", ["apps"], ["deployments"], ["*"]),
    role("a role for the exec of any resource", [""], ["*/exec"], ["create"]),
    role("a role for the proxy of any resource", [""], ["*/proxy"], ["get"]),
    role("a role that forwards ports of every pod", [""], ["pods/portforward"], ["create"]),
    role("a role that calls every Service", [""], ["services/proxy"], ["get"]),
    role("a role that calls every pod", [""], ["pods/proxy"], ["get"]),
    role("a role that issues tokens", [""], ["serviceaccounts/token"], ["create"]),
    role(
        "a role that approves certificates",
        ["certificates.k8s.io"],
        ["certificatesigningrequests/approval"],
        ["update"],
    ),
    role("a role that signs certificates", ["certificates.k8s.io"], ["signers"], ["sign"]),
    role("a role that deletes secrets of all groups", ["", "*"], ["secrets"], ["delete"]),
    role("a role that impersonates groups", [""], ["groups"], ["get", "impersonate"]),
    way(
        "every URL of the API server",
        BOUND,
        "rbac-least-privilege",
        ("1/rules", [{"nonResourceURLs": ["/*"], "verbs": ["get"]}]),
    ),
    way(
        "a role that aggregates all others",
        BOUND,
        "rbac-least-privilege",
        ("1/aggregationRule", {"clusterRoleSelectors": [{}]}),
        ("1/rules", []),
    ),
    way(
        "a role that aggregates by an expression that all match",
        BOUND,
        "rbac-least-privilege",
        (
            "1/aggregationRule",
            {
                "clusterRoleSelectors": [
                    {"matchExpressions": [{"key": "example.com/none", "operator": "DoesNotExist"}]}
                ]
            },
        ),
    ),
    way(
        "rights that every reader gets",
        BOUND,
        "rbac-least-privilege",
        ("1/metadata/labels", {"rbac.authorization.k8s.io/aggregate-to-view": "true"}),
        (
            "1/rules",
            [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "update"]}],
        ),
    ),
    binding("admin of every namespace", "ClusterRoleBinding", "admin", ACCOUNT),
    binding("edit in every namespace", "ClusterRoleBinding", "edit", ACCOUNT),
    binding(
        "the role of a controller that escalates",
        "ClusterRoleBinding",
        "system:controller:clusterrole-aggregation-controller",
        ACCOUNT,
    ),
    binding("the role of nodes", "ClusterRoleBinding", "system:node", ACCOUNT),
    binding("the kubelets' role", "ClusterRoleBinding", "system:kubelet-api-admin", ACCOUNT),
    binding(
        "rights of every service account of the system",
        "ClusterRoleBinding",
        "view",
        {"kind": "Group", "name": "system:serviceaccounts"},
    ),
    added(
        "a binding in a list",
        RBAC,
        "ClusterRoleBindingList",
        items=[
            {
                "apiVersion": RBAC,
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "all"},
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [ACCOUNT],
            }
        ],
    ),
    added(
        "a token without an end",
        "v1",
        "Secret",
        type="kubernetes.io/service-account-token",
        metadata={"annotations": {"kubernetes.io/service-account.name": "default"}},
    ),
    projected(
        "a certificate of the API as a volume",
        podCertificate={
            "signerName": "kubernetes.io/kube-apiserver-client-pod",
            "keyType": "ED25519",
            "credentialBundlePath": "bundle.pem",
        },
    ),
    projected(
        "a token for the API server by its address",
        serviceAccountToken={
            "path": "t",
            "audience": "https://kubernetes.default.svc.cluster.local",
        },
    ),
]
