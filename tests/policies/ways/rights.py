"""Ways to gain control of the cluster through a role."""

from tests.policies.ways.makers import harmless, instead
from tests.policies.ways.way import Way

ADMISSION = "admissionregistration.k8s.io"


def role(description: str, group: str, resource: str, verb: str) -> Way:
    """Return an edit that sets the only rule of a ClusterRole."""
    rule = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
    api = "rbac.authorization.k8s.io/v1"
    return instead(description, api, "ClusterRole", "rbac-least-privilege", rules=[rule])


WAYS = [
    role("the node proxy through all subresources", "", "nodes/*", "get"),
    role("tokens through all subresources of service accounts", "", "serviceaccounts/*", "create"),
    role("commands in pods through all subresources", "", "pods/*", "create"),
    role("commands in pods through one subresource of all resources", "", "*/exec", "create"),
    role("the node proxy for readers", "", "nodes/proxy", "get"),
    role("admission policies", ADMISSION, "validatingadmissionpolicies", "update"),
    role(
        "admission policy bindings",
        ADMISSION,
        "validatingadmissionpolicybindings",
        "delete",
    ),
    role("changes to all pods", ADMISSION, "mutatingadmissionpolicies", "create"),
    role("host path volumes", "", "persistentvolumes", "create"),
    role("host path volumes through an update", "", "persistentvolumes", "patch"),
    role("pod bindings to nodes", "", "pods/binding", "create"),
    role("pod bindings through the older resource", "", "bindings", "create"),
    role("webhooks", ADMISSION, "mutatingwebhookconfigurations", "create"),
    role(
        "webhook configurations of others", ADMISSION, "validatingwebhookconfigurations", "delete"
    ),
    role("aggregated API servers", "apiregistration.k8s.io", "apiservices", "create"),
    role("storage classes", "storage.k8s.io", "storageclasses", "create"),
    role("classes of devices", "resource.k8s.io", "deviceclasses", "update"),
    role("classes of priority", "scheduling.k8s.io", "priorityclasses", "create"),
    role(
        "certificate approval",
        "certificates.k8s.io",
        "certificatesigningrequests/*",
        "update",
    ),
    *(
        role(f"{description} of {group}", group, resource, verb)
        for group in ("certificates.k8s.io", "node.k8s.io", "networking.k8s.io")
        for description, resource, verb in (
            ("everything", "*", "*"),
            ("updates of everything", "*", "update"),
            ("all verbs for status subresources", "*/status", "*"),
        )
    ),
    role("all verbs for priority levels", "flowcontrol.apiserver.k8s.io", "*", "*"),
]


def claim_of_control(
    description: str, api_version: str, kind: str, name: str, **fields: object
) -> Way:
    """Return an edit that adds an object that takes over the control plane."""
    metadata = {"name": name, "namespace": "kube-system"}
    return instead(
        description, api_version, kind, "control-plane-kept", metadata=metadata, **fields
    )


GROUP = {"kind": "Group", "group": {"name": "system:authenticated"}}
WAYS += [
    claim_of_control(
        "an API server client certificate",
        "certificates.k8s.io/v1",
        "CertificateSigningRequest",
        "a",
        spec={"signerName": "kubernetes.io/kube-apiserver-client", "request": "LS0t"},
    ),
    claim_of_control(
        "unlimited requests for every user",
        "flowcontrol.apiserver.k8s.io/v1",
        "FlowSchema",
        "a",
        spec={
            "priorityLevelConfiguration": {"name": "exempt"},
            "rules": [{"subjects": [GROUP]}],
        },
    ),
    claim_of_control(
        "the scheduler's lease",
        "coordination.k8s.io/v1",
        "Lease",
        "kube-scheduler",
        spec={"holderIdentity": "a"},
    ),
    claim_of_control(
        "a user in the administrators group",
        "v1",
        "ConfigMap",
        "aws-auth",
        data={"mapUsers": "- userarn: a\n  groups: [system:masters]\n"},
    ),
    claim_of_control(
        "a node bootstrap token",
        "v1",
        "Secret",
        "bootstrap-token-abcdef",
        type="bootstrap.kubernetes.io/token",
        stringData={"usage-bootstrap-authentication": "true"},
    ),
]


def reading(description: str, group: str, resource: str, *verbs: str) -> Way:
    """Return an edit that sets permissions a controller needs."""
    rule = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
    return harmless(description, "rbac.authorization.k8s.io/v1", "Role", rules=[rule])


HARMLESS = [
    reading("reading volumes", "", "persistentvolumes", "get", "list", "watch"),
    reading("reading nodes", "", "nodes", "get", "list", "watch"),
    reading("creating volume claims", "", "persistentvolumeclaims", "create", "delete"),
    reading("creating device claims", "resource.k8s.io", "resourceclaims", "create"),
    reading("reading pods", "", "pods", "get", "list", "watch"),
    reading("an autoscaler", "", "nodes", "update", "delete"),
    reading("a device driver", "resource.k8s.io", "resourceslices", "create", "delete"),
    reading("a storage driver", "storage.k8s.io", "volumeattachments", "patch"),
    reading("reading logs", "", "pods/log", "get"),
    reading("reading admission policies", ADMISSION, "validatingadmissionpolicies", "get"),
    reading("a controller for its own kinds", "a.example.com", "things/*", "update"),
    reading("a controller for gateways", "gateway.networking.k8s.io", "*", "*"),
    reading("a controller for queues", "kueue.x-k8s.io", "*", "*"),
    reading("a controller for statuses", "batch", "jobs/status", "patch"),
]
"""Roles that controllers need."""
