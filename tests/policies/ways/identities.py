"""Ways to get more API permissions than a role seems to grant."""

from typing import Any

from tests.policies.ways.pods import pod
from tests.policies.ways.tenants import ACCOUNT, RBAC, added, binding, role
from tests.policies.ways.way import way

BOUND = "ordinary_controller"
GROUP = RBAC.partition("/")[0]
OPENSHIFT = "authorization.openshift.io/v1"
RANCHER = "management.cattle.io/v3"
EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


def projected_volume(description: str, **source: Any) -> Any:
    """Return an edit that adds a projected volume to a pod without a mounted token."""
    return pod(description, "volumes", [{"name": "p", "projected": {"sources": [source]}}])


WAYS = [
    role("a role with every verb for one API group", ["apps"], ["deployments"], ["*"]),
    role("a role for the exec subresource of all resources", [""], ["*/exec"], ["create"]),
    role("a role for the proxy subresource of all resources", [""], ["*/proxy"], ["get"]),
    role("a role that forwards ports of all pods", [""], ["pods/portforward"], ["create"]),
    role("a role that proxies to all Services", [""], ["services/proxy"], ["get"]),
    role("a role that proxies to all pods", [""], ["pods/proxy"], ["get"]),
    role("a role that issues tokens", [""], ["serviceaccounts/token"], ["create"]),
    role(
        "a role that approves certificates",
        ["certificates.k8s.io"],
        ["certificatesigningrequests/approval"],
        ["update"],
    ),
    role("a role that signs certificates", ["certificates.k8s.io"], ["signers"], ["sign"]),
    role("a role that deletes secrets in all API groups", ["", "*"], ["secrets"], ["delete"]),
    role("a role that impersonates groups", [""], ["groups"], ["get", "impersonate"]),
    role(
        "a role that impersonates users for some requests",
        ["authentication.k8s.io"],
        ["users"],
        ["impersonate:user-info"],
    ),
    way(
        "all URLs of the API server",
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
        "a role that aggregates all roles through an expression",
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
        "permissions aggregated to the view role",
        BOUND,
        "rbac-least-privilege",
        ("1/metadata/labels", {"rbac.authorization.k8s.io/aggregate-to-view": "true"}),
        (
            "1/rules",
            [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "update"]}],
        ),
    ),
    binding("the admin role in all namespaces", "ClusterRoleBinding", "admin", ACCOUNT),
    binding("the edit role in all namespaces", "ClusterRoleBinding", "edit", ACCOUNT),
    binding(
        "the role of a controller that can escalate permissions",
        "ClusterRoleBinding",
        "system:controller:clusterrole-aggregation-controller",
        ACCOUNT,
    ),
    binding("the node role", "ClusterRoleBinding", "system:node", ACCOUNT),
    *(
        binding(f"the role {name}", "ClusterRoleBinding", name, ACCOUNT)
        for name in (
            "system:kube-scheduler",
            "system:persistent-volume-provisioner",
            "system:certificates.k8s.io:kube-apiserver-client-approver",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        )
    ),
    binding(
        "OpenShift's privileged constraints",
        "RoleBinding",
        "system:openshift:scc:privileged",
        ACCOUNT,
    ),
    way(
        "a role that uses OpenShift's privileged constraints",
        BOUND,
        "rbac-least-privilege",
        (
            "1/rules",
            [
                {
                    "apiGroups": ["security.openshift.io"],
                    "resources": ["securitycontextconstraints"],
                    "resourceNames": ["privileged"],
                    "verbs": ["use"],
                }
            ],
        ),
    ),
    *(
        way(
            f"a role that aggregates the default roles by {description}",
            BOUND,
            "rbac-least-privilege",
            ("1/aggregationRule", {"clusterRoleSelectors": [selector]}),
            ("1/rules", []),
        )
        for description, selector in (
            ("their label", {"matchLabels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}),
            *(
                (f"the label of {role}", {"matchLabels": {f"{GROUP}/aggregate-to-{role}": "true"}})
                for role in ("admin", "edit")
            ),
            (
                "an expression",
                {
                    "matchExpressions": [
                        {"key": "kubernetes.io/bootstrapping", "operator": "Exists"}
                    ]
                },
            ),
        )
    ),
    *(
        added(
            f"a namespace with the label {label}",
            "v1",
            "Namespace",
            "namespace-pod-security",
            metadata={"labels": {label: "0"}},
        )
        for label in ("openshift.io/run-level", "admission.gatekeeper.sh/ignore")
    ),
    added(
        "security constraints that allow privileged pods",
        "security.openshift.io/v1",
        "SecurityContextConstraints",
        "namespace-pod-security",
        allowPrivilegedContainer=True,
    ),
    *(
        added(
            f"cluster-admin through the {description} of a Tenant",
            "capsule.clastix.io/v1beta2",
            "Tenant",
            "rbac-least-privilege",
            spec=spec,
        )
        for description, spec in (
            ("owners", {"owners": [{"name": "a", "clusterRoles": ["cluster-admin"]}]}),
            ("bindings", {"additionalRoleBindings": [{"clusterRoleName": "cluster-admin"}]}),
        )
    ),
    *(
        added(
            f"an administrator's {kind} of {version}",
            version,
            kind,
            "rbac-least-privilege",
            **fields,
        )
        for version, kind, fields in (
            (OPENSHIFT, "ClusterRoleBinding", {"roleRef": {"name": "cluster-admin"}}),
            (OPENSHIFT, "ClusterRole", {"rules": [EVERYTHING]}),
            (RANCHER, "ClusterRoleTemplateBinding", {"roleTemplateName": "cluster-owner"}),
            (RANCHER, "GlobalRoleBinding", {"globalRoleName": "admin"}),
            (RANCHER, "GlobalRole", {"rules": [EVERYTHING]}),
            (RANCHER, "RoleTemplate", {"roleTemplateNames": ["cluster-owner"]}),
            ("example.com/v1", "Team", {"spec": {"roleRef": {"name": "cluster-admin"}}}),
        )
    ),
    binding("the kubelets' role", "ClusterRoleBinding", "system:kubelet-api-admin", ACCOUNT),
    binding(
        "permissions for all service accounts in kube-system",
        "ClusterRoleBinding",
        "view",
        {"kind": "Group", "name": "system:serviceaccounts"},
    ),
    added(
        "a role binding in a List",
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
        "a token that never expires",
        "v1",
        "Secret",
        type="kubernetes.io/service-account-token",
        metadata={"annotations": {"kubernetes.io/service-account.name": "default"}},
    ),
    projected_volume(
        "an API client certificate as a volume",
        podCertificate={
            "signerName": "kubernetes.io/kube-apiserver-client-pod",
            "keyType": "ED25519",
            "credentialBundlePath": "bundle.pem",
        },
    ),
    projected_volume(
        "a token whose audience is the API server's address",
        serviceAccountToken={
            "path": "t",
            "audience": "https://kubernetes.default.svc.cluster.local",
        },
    ),
]
