"""Ways to gain control of the cluster through a role."""

from typing import Any

from tests.policies.ways.makers import harmless, replacement
from tests.policies.ways.way import Way

ADMISSION = "admissionregistration.k8s.io"


def role(description: str, group: str, resource: str, verb: str, *names: str) -> Way:
    """Return an edit that sets the only rule of a ClusterRole."""
    rule = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
    if names:
        rule["resourceNames"] = list(names)
    api = "rbac.authorization.k8s.io/v1"
    return replacement(description, api, "ClusterRole", "rbac-least-privilege", rules=[rule])


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
    role(
        "an admission policy binding of the platform",
        ADMISSION,
        "validatingadmissionpolicybindings",
        "delete",
        "gpu-platform-pods",
    ),
    role("changes to all pods", ADMISSION, "mutatingadmissionpolicies", "create"),
    role("Secrets in the responses to patches", "", "secrets", "patch"),
    role("Secrets in the responses to deletions", "", "secrets", "deletecollection"),
    role("a list of all Secrets, as requests for it have no name", "", "secrets", "list", ""),
    role("new webhooks without a name", ADMISSION, "mutatingwebhookconfigurations", "create", ""),
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
    role("the quota of a namespace", "", "resourcequotas", "update"),
    role("the Pod Security labels of namespaces", "", "namespaces", "patch"),
    role("the Pod Security labels of one namespace", "", "namespaces", "update", "team"),
    role("the Pod Security labels through the status", "", "namespaces/status", "patch"),
    role("the Pod Security labels through the finalizers", "", "namespaces/finalize", "update"),
    role("the Pod Security labels through all statuses", "", "*/status", "update"),
    role("addresses of Services", "networking.k8s.io", "servicecidrs", "create"),
    role("trusted certificates", "certificates.k8s.io", "clustertrustbundles", "create"),
    role("priorities of requests", "flowcontrol.apiserver.k8s.io", "flowschemas", "patch"),
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


def control_plane_takeover(
    description: str, api_version: str, kind: str, name: str, **fields: Any
) -> Way:
    """Return an edit that adds an object that takes over the control plane."""
    metadata = {"name": name, "namespace": "kube-system", "labels": fields.pop("labels", {})}
    return replacement(
        description, api_version, kind, "control-plane-kept", metadata=metadata, **fields
    )


GROUP = {"kind": "Group", "group": {"name": "system:authenticated"}}
WAYS += [
    control_plane_takeover(
        "an API server client certificate",
        "certificates.k8s.io/v1",
        "CertificateSigningRequest",
        "a",
        spec={"signerName": "kubernetes.io/kube-apiserver-client", "request": "LS0t"},
    ),
    control_plane_takeover(
        "unlimited requests for every user",
        "flowcontrol.apiserver.k8s.io/v1",
        "FlowSchema",
        "a",
        spec={
            "priorityLevelConfiguration": {"name": "exempt"},
            "rules": [{"subjects": [GROUP]}],
        },
    ),
    control_plane_takeover(
        "the scheduler's lease",
        "coordination.k8s.io/v1",
        "Lease",
        "kube-scheduler",
        spec={"holderIdentity": "a"},
    ),
    control_plane_takeover(
        "a user in the administrators group",
        "v1",
        "ConfigMap",
        "aws-auth",
        data={"mapUsers": "- userarn: a\n  groups: [system:masters]\n"},
    ),
    control_plane_takeover(
        "a node bootstrap token",
        "v1",
        "Secret",
        "bootstrap-token-abcdef",
        type="bootstrap.kubernetes.io/token",
        stringData={"usage-bootstrap-authentication": "true"},
    ),
    *(
        control_plane_takeover(
            f"unlimited requests for {description}",
            "flowcontrol.apiserver.k8s.io/v1",
            "FlowSchema",
            "a",
            spec={
                "priorityLevelConfiguration": {"name": "exempt"},
                "rules": [{"subjects": [subject]}],
            },
        )
        for description, subject in (
            (
                "all service accounts",
                {"kind": "Group", "group": {"name": "system:serviceaccounts"}},
            ),
            (
                "all service accounts of a namespace",
                {"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "web"}},
            ),
        )
    ),
    control_plane_takeover(
        "a user in the administrators group, written with an escape",
        "v1",
        "ConfigMap",
        "aws-auth",
        data={"mapUsers": '- userarn: a\n  groups: ["system:\\x6dasters"]\n'},
    ),
    control_plane_takeover(
        "an AWS identity in the administrators group",
        "iamauthenticator.k8s.aws/v1alpha1",
        "IAMIdentityMapping",
        "a",
        spec={"arn": "a", "username": "a", "groups": ["system:masters"]},
    ),
    control_plane_takeover(
        "a command that closes a queue",
        "bus.volcano.sh/v1alpha1",
        "Command",
        "a",
        target={
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "name": "team",
            "uid": "a",
        },
        action="CloseQueue",
    ),
    control_plane_takeover(
        "programs on OpenShift's nodes",
        "machineconfiguration.openshift.io/v1",
        "MachineConfig",
        "a",
        spec={"config": {"systemd": {"units": [{"name": "a.service", "enabled": True}]}}},
    ),
    control_plane_takeover(
        "a trusted certificate authority of the API server",
        "certificates.k8s.io/v1beta1",
        "ClusterTrustBundle",
        "kubernetes.io:kube-apiserver-serving:a",
        spec={"signerName": "kubernetes.io/kube-apiserver-serving", "trustBundle": "a"},
    ),
    control_plane_takeover(
        "the lease of the cloud controllers",
        "coordination.k8s.io/v1",
        "Lease",
        "cloud-controller-manager",
        spec={"holderIdentity": "a"},
    ),
    control_plane_takeover(
        "Services with addresses of other hosts",
        "networking.k8s.io/v1",
        "ServiceCIDR",
        "a",
        spec={"cidrs": ["8.8.8.0/24"]},
    ),
    control_plane_takeover(
        "an aggregated API server for Deployments",
        "apiregistration.k8s.io/v1",
        "APIService",
        "v1.apps",
        spec={"group": "apps", "version": "v1", "service": {"name": "a", "namespace": "web"}},
    ),
    control_plane_takeover(
        "endpoints of the cluster's DNS server",
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "a",
        labels={"kubernetes.io/service-name": "kube-dns"},
        addressType="IPv4",
        endpoints=[{"addresses": ["10.1.2.3"]}],
    ),
    control_plane_takeover(
        "the Service of the cluster's DNS server",
        "v1",
        "Service",
        "kube-dns",
        spec={"selector": {"app": "web"}, "ports": [{"port": 53}]},
    ),
    control_plane_takeover(
        "the configuration of the cluster's DNS server",
        "v1",
        "ConfigMap",
        "coredns",
        data={"Corefile": ".:53 {\n  forward . 192.0.2.1\n}\n"},
    ),
]


def controller_role(description: str, group: str, resource: str, *verbs: str) -> Way:
    """Return an edit that sets permissions a controller needs."""
    rule = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
    return harmless(description, "rbac.authorization.k8s.io/v1", "Role", rules=[rule])


HARMLESS = [
    controller_role("reading volumes", "", "persistentvolumes", "get", "list", "watch"),
    controller_role("reading nodes", "", "nodes", "get", "list", "watch"),
    controller_role("creating volume claims", "", "persistentvolumeclaims", "create", "delete"),
    controller_role("creating device claims", "resource.k8s.io", "resourceclaims", "create"),
    controller_role("reading pods", "", "pods", "get", "list", "watch"),
    controller_role("an autoscaler", "", "nodes", "update", "delete"),
    controller_role("a device driver", "resource.k8s.io", "resourceslices", "create", "delete"),
    controller_role("a storage driver", "storage.k8s.io", "volumeattachments", "patch"),
    controller_role("reading quotas", "", "resourcequotas", "get", "list", "watch"),
    controller_role("creating namespaces", "", "namespaces", "create", "delete"),
    controller_role("updating the status of quotas", "", "resourcequotas/status", "update"),
    controller_role("creating network policies", "networking.k8s.io", "networkpolicies", "create"),
    controller_role("reading logs", "", "pods/log", "get"),
    controller_role(
        "an agent that acts as its node",
        "authentication.k8s.io",
        "nodes",
        "impersonate:associated-node",
    ),
    controller_role("reading admission policies", ADMISSION, "validatingadmissionpolicies", "get"),
    harmless(
        "changes to a storage class whose name starts like those of the admission policies",
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        rules=[
            {
                "apiGroups": ["storage.k8s.io"],
                "resources": ["storageclasses"],
                "resourceNames": ["gpu-platform-fast"],
                "verbs": ["update"],
            }
        ],
    ),
    controller_role("a controller for its own kinds", "a.example.com", "things/*", "update"),
    controller_role("a controller for gateways", "gateway.networking.k8s.io", "*", "*"),
    controller_role("a controller for queues", "kueue.x-k8s.io", "*", "*"),
    controller_role("a controller for statuses", "batch", "jobs/status", "patch"),
    harmless(
        "a Kyverno policy that exempts administrators",
        "kyverno.io/v1",
        "ClusterPolicy",
        spec={"rules": [{"name": "a", "exclude": {"any": [{"clusterRoles": ["cluster-admin"]}]}}]},
    ),
    harmless(
        "a command that suspends a job",
        "bus.volcano.sh/v1alpha1",
        "Command",
        target={"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "a", "uid": "a"},
        action="AbortJob",
    ),
    harmless(
        "an aggregated API server for metrics",
        "apiregistration.k8s.io/v1",
        "APIService",
        spec={"group": "metrics.k8s.io", "version": "v1beta1", "service": {"name": "metrics"}},
    ),
    harmless(
        "a Service with the name of the cluster's DNS server",
        "v1",
        "Service",
        metadata={"name": "kube-dns", "namespace": "web"},
        spec={"selector": {"app": "web"}, "ports": [{"port": 53}]},
    ),
]
"""Roles and objects that controllers need."""
