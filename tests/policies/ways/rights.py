"""Ways to gain control of the cluster by a role."""

from tests.policies.ways.makers import harmless, instead
from tests.policies.ways.way import Way

ADMISSION = "admissionregistration.k8s.io"


def role(what: str, group: str, resource: str, verb: str) -> Way:
    """A ClusterRole with one rule."""
    rule = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
    api = "rbac.authorization.k8s.io/v1"
    return instead(what, api, "ClusterRole", "rbac-least-privilege", rules=[rule])


WAYS = [
    role("the proxy of nodes by every subresource", "", "nodes/*", "get"),
    role("tokens by every subresource of accounts", "", "serviceaccounts/*", "create"),
    role("commands in pods by every subresource", "", "pods/*", "create"),
    role("commands by one subresource of everything", "", "*/exec", "create"),
    role("the proxy of nodes for readers", "", "nodes/proxy", "get"),
    role("admission policies", ADMISSION, "validatingadmissionpolicies", "update"),
    role(
        "the bindings of admission policies",
        ADMISSION,
        "validatingadmissionpolicybindings",
        "delete",
    ),
    role("changes of every pod", ADMISSION, "mutatingadmissionpolicies", "create"),
    role("volumes of the node", "", "persistentvolumes", "create"),
    role("volumes of the node by an update", "", "persistentvolumes", "patch"),
    role("the choice of a node", "", "pods/binding", "create"),
    role("the choice of a node by the older resource", "", "bindings", "create"),
    role("webhooks", ADMISSION, "mutatingwebhookconfigurations", "create"),
    role("webhooks that others have", ADMISSION, "validatingwebhookconfigurations", "delete"),
    role("the server of an API", "apiregistration.k8s.io", "apiservices", "create"),
    role("classes of storage of the node", "storage.k8s.io", "storageclasses", "create"),
    role("classes of devices", "resource.k8s.io", "deviceclasses", "update"),
    role("classes of priority", "scheduling.k8s.io", "priorityclasses", "create"),
    role(
        "the approval of certificates",
        "certificates.k8s.io",
        "certificatesigningrequests/*",
        "update",
    ),
    *(
        role(f"{what} of {group}", group, resource, verb)
        for group in ("certificates.k8s.io", "node.k8s.io", "networking.k8s.io")
        for what, resource, verb in (
            ("everything", "*", "*"),
            ("updates of everything", "*", "update"),
            ("all rights to statuses", "*/status", "*"),
        )
    ),
    role("everything of priority levels", "flowcontrol.apiserver.k8s.io", "*", "*"),
]


def claim_of_control(what: str, api_version: str, kind: str, name: str, **fields: object) -> Way:
    """An object that takes over the control plane."""
    metadata = {"name": name, "namespace": "kube-system"}
    return instead(what, api_version, kind, "control-plane-kept", metadata=metadata, **fields)


GROUP = {"kind": "Group", "group": {"name": "system:authenticated"}}
WAYS += [
    claim_of_control(
        "a certificate of the API server's clients",
        "certificates.k8s.io/v1",
        "CertificateSigningRequest",
        "a",
        spec={"signerName": "kubernetes.io/kube-apiserver-client", "request": "LS0t"},
    ),
    claim_of_control(
        "requests of everybody without a limit",
        "flowcontrol.apiserver.k8s.io/v1",
        "FlowSchema",
        "a",
        spec={
            "priorityLevelConfiguration": {"name": "exempt"},
            "rules": [{"subjects": [GROUP]}],
        },
    ),
    claim_of_control(
        "the lease of the scheduler",
        "coordination.k8s.io/v1",
        "Lease",
        "kube-scheduler",
        spec={"holderIdentity": "a"},
    ),
    claim_of_control(
        "a user of the group of administrators",
        "v1",
        "ConfigMap",
        "aws-auth",
        data={"mapUsers": "- userarn: a\n  groups: [system:masters]\n"},
    ),
    claim_of_control(
        "a token that adds nodes",
        "v1",
        "Secret",
        "bootstrap-token-abcdef",
        type="bootstrap.kubernetes.io/token",
        stringData={"usage-bootstrap-authentication": "true"},
    ),
]


def reading(what: str, group: str, resource: str, *verbs: str) -> Way:
    """A Role that reads or changes what a controller needs."""
    rule = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
    return harmless(what, "rbac.authorization.k8s.io/v1", "Role", rules=[rule])


HARMLESS = [
    reading("a reader of volumes", "", "persistentvolumes", "get", "list", "watch"),
    reading("a reader of nodes", "", "nodes", "get", "list", "watch"),
    reading("a creator of claims", "", "persistentvolumeclaims", "create", "delete"),
    reading("a creator of device claims", "resource.k8s.io", "resourceclaims", "create"),
    reading("a reader of pods", "", "pods", "get", "list", "watch"),
    reading("an autoscaler", "", "nodes", "update", "delete"),
    reading("a driver of devices", "resource.k8s.io", "resourceslices", "create", "delete"),
    reading("a driver of storage", "storage.k8s.io", "volumeattachments", "patch"),
    reading("a reader of logs", "", "pods/log", "get"),
    reading("a reader of admission policies", ADMISSION, "validatingadmissionpolicies", "get"),
    reading("a controller of its own kinds", "a.example.com", "things/*", "update"),
    reading("a controller of gateways", "gateway.networking.k8s.io", "*", "*"),
    reading("a controller of queues", "kueue.x-k8s.io", "*", "*"),
    reading("a controller of statuses", "batch", "jobs/status", "patch"),
]
"""Roles of controllers."""
