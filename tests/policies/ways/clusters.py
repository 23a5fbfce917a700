"""Ways around the rules by objects of the whole cluster and by objects that hold others."""

from typing import Any

from tests.policies.ways.kinds import TEMPLATE
from tests.policies.ways.pods import WEB
from tests.policies.ways.tenants import RBAC, added, denied
from tests.policies.ways.way import Way, way

DENY: dict[str, Any] = {"podSelector": {}, "policyTypes": ["Ingress"]}
ADMIN = {
    "apiVersion": RBAC,
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "all"},
    "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "web"}],
}
REMOTE = {"url": "https://hooks.example.net/mutate"}
LISTED = """
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: List
    items:
      - {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostPID: true}}
"""
PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}


def webhook(what: str, kind: str, **fields: Any) -> Way:
    """An admission webhook outside of the cluster."""
    hook = {
        "name": "pods.example.net",
        "clientConfig": REMOTE,
        "rules": [PODS],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **fields,
    }
    return added(what, "admissionregistration.k8s.io/v1", kind, webhooks=[hook])


def allowing(what: str, *peers: dict[str, Any]) -> Way:
    """A policy that undoes the default of a namespace in another spelling."""
    return denied(what, DENY, {"podSelector": {}, "ingress": [{"from": list(peers)}]})


def in_addition(what: str, version: str, kind: str, **spec: Any) -> Way:
    """A policy of another engine in addition to the one that denies."""
    metadata = {"name": "allow", "namespace": "tenant"}
    manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    return way(what, "tenant_namespace", "namespace-default-deny", ("6", manifest))


def holding(what: str, version: str, kind: str, rules: str = "", **spec: Any) -> Way:
    """An object whose controller creates another one."""
    return added(what, version, kind, rules, spec=spec)


WAYS = [
    # what the API server calls
    webhook("a webhook of strangers that changes pods", "MutatingWebhookConfiguration"),
    webhook("a webhook of strangers that sees pods", "ValidatingWebhookConfiguration"),
    added(
        "an API that nobody authenticates",
        "apiregistration.k8s.io/v1",
        "APIService",
        spec={
            "group": "metrics.example.com",
            "version": "v1",
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": "metrics", "namespace": "web"},
        },
    ),
    added(
        "a definition that strangers convert",
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        spec={
            "group": "example.com",
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": REMOTE}},
        },
    ),
    # policies that are undone
    allowing(
        "a policy that allows every namespace by labels that are empty",
        {"namespaceSelector": {"matchLabels": {}}},
    ),
    allowing(
        "a policy that allows every namespace by an expression that all match",
        {
            "namespaceSelector": {
                "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]
            }
        },
    ),
    allowing(
        "a policy that allows both halves of all addresses",
        {"ipBlock": {"cidr": "0.0.0.0/1"}},
        {"ipBlock": {"cidr": "128.0.0.0/1"}},
    ),
    allowing("a policy that allows every address of IPv6", {"ipBlock": {"cidr": "::/0"}}),
    allowing(
        "a policy that allows every address but one",
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["192.0.2.1/32"]}},
    ),
    denied(
        "a policy for all pods by labels that are empty that allows everything",
        DENY,
        {"podSelector": {"matchLabels": {}}, "ingress": [{}]},
    ),
    in_addition(
        "a policy of the cluster that allows everything",
        "policy.networking.k8s.io/v1alpha1",
        "AdminNetworkPolicy",
        priority=1,
        subject={"namespaces": {}},
        ingress=[{"action": "Allow", "from": [{"namespaces": {}}]}],
    ),
    in_addition(
        "a policy of Cilium that allows everything",
        "cilium.io/v2",
        "CiliumNetworkPolicy",
        endpointSelector={},
        ingress=[{"fromEntities": ["all"]}],
    ),
    in_addition(
        "a policy of Calico that allows everything",
        "projectcalico.org/v3",
        "NetworkPolicy",
        selector="all()",
        types=["Ingress"],
        ingress=[{"action": "Allow"}],
    ),
    # entry points
    added(
        "an Ingress with its own configuration of nginx",
        "networking.k8s.io/v1",
        "Ingress",
        "service-not-public",
        metadata={
            "annotations": {
                "nginx.ingress.kubernetes.io/configuration-snippet": "proxy_pass http://10.0.0.1;"
            }
        },
        spec={
            "tls": [{"hosts": ["a.example.com"], "secretName": "tls"}],
            "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}},
        },
    ),
    added(
        "a Route of OpenShift without TLS",
        "route.openshift.io/v1",
        "Route",
        "service-not-public",
        spec={"host": "a.example.com", "to": {"kind": "Service", "name": "web"}},
    ),
    added(
        "a Gateway of Istio without TLS",
        "networking.istio.io/v1",
        "Gateway",
        "service-not-public",
        spec={"servers": [{"port": {"number": 80, "protocol": "HTTP"}, "hosts": ["*"]}]},
    ),
    # priorities, devices and the host
    added(
        "a priority of Kueue above all others",
        "kueue.x-k8s.io/v1beta1",
        "WorkloadPriorityClass",
        "priority-class-bounded",
        value=2_000_000_000,
    ),
    way(
        "the priority of the system for a PodGroup",
        "volcano_queue",
        "priority-class-bounded",
        ("2/spec/priorityClassName", "system-node-critical"),
    ),
    added(
        "a namespace in which claims have admin access",
        "v1",
        "Namespace",
        metadata={"labels": {"resource.kubernetes.io/admin-access": "true"}},
    ),
    added(
        "GPUs by the name of another device",
        "resource.k8s.io/v1",
        "DeviceClass",
        spec={
            "extendedResourceName": "rdma/fast",
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
        },
    ),
    added(
        "the runtime of NVIDIA by another name", "node.k8s.io/v1", "RuntimeClass", handler="nvidia"
    ),
    added(
        "the devices of NVIDIA by a ConfigMap",
        "v1",
        "ConfigMap",
        data={"NVIDIA_VISIBLE_DEVICES": "all"},
    ),
    *(
        added(
            f"the devices of NVIDIA by the {field} of a Secret",
            "v1",
            "Secret",
            "device-names-kept",
            **{field: {"NVIDIA_VISIBLE_DEVICES": value}},
        )
        for field, value in (("data", "YWxs"), ("stringData", "all"))
    ),
    added(
        "the runtime of Kata with GPUs",
        "v1",
        "Pod",
        "gpu-limit-present",
        spec={**TEMPLATE["template"]["spec"], "runtimeClassName": "kata-qemu-nvidia-gpu"},
    ),
    added(
        "a group of nodes for models on the host",
        "serving.kserve.io/v1alpha1",
        "LocalModelNodeGroup",
        spec={
            "storageLimit": "1Ti",
            "persistentVolumeClaimSpec": {"accessModes": ["ReadWriteOnce"]},
            "persistentVolumeSpec": {"accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"}},
        },
    ),
    added(
        "volumes for other people's pods",
        "kubeflow.org/v1alpha1",
        "PodDefault",
        "no-host-path",
        spec={
            "selector": {"matchLabels": {"a": "b"}},
            "volumes": [{"name": "h", "hostPath": {"path": "/"}}],
        },
    ),
    # objects that hold others
    holding(
        "a binding in a Composition",
        "apiextensions.crossplane.io/v1",
        "Composition",
        "kind-known",
        resources=[{"name": "a", "base": ADMIN}],
    ),
    holding(
        "a binding in a Work of Karmada",
        "work.karmada.io/v1alpha1",
        "Work",
        "",
        workload={"manifests": [ADMIN]},
    ),
    holding(
        "a binding in a Policy of OCM",
        "policy.open-cluster-management.io/v1",
        "Policy",
        "kind-known",
        **{
            "policy-templates": [
                {
                    "objectDefinition": {
                        "apiVersion": "a/v1",
                        "kind": "ConfigurationPolicy",
                        "metadata": {"name": "a"},
                        "spec": {"object-templates": [{"objectDefinition": ADMIN}]},
                    }
                }
            ]
        },
    ),
    holding(
        "a binding in a ManifestWork",
        "work.open-cluster-management.io/v1",
        "ManifestWork",
        "rbac-least-privilege",
        workload={"manifests": [ADMIN]},
    ),
    holding(
        "a binding in an Object of Crossplane",
        "kubernetes.m.crossplane.io/v1alpha1",
        "Object",
        "rbac-least-privilege",
        forProvider={"manifest": ADMIN},
    ),
    holding(
        "a binding in a step of a Sensor",
        "argoproj.io/v1alpha1",
        "Sensor",
        "rbac-least-privilege",
        triggers=[
            {
                "template": {
                    "name": "a",
                    "k8s": {"operation": "create", "source": {"resource": ADMIN}},
                }
            }
        ],
    ),
    added(
        "a password in the values of a HelmRelease",
        "helm.toolkit.fluxcd.io/v2",
        "HelmRelease",
        "no-secrets-in-manifests",
        spec={"values": {"auth": {"adminPassword": "correct-horse"}}},
    ),
    added(
        "a password in a file of a ConfigMap",
        "v1",
        "ConfigMap",
        "no-secrets-in-manifests",
        data={"app.env": "DEBUG=1\nDB_PASSWORD=correct-horse\n"},
    ),
    added(
        "a key in a kubeconfig of a ConfigMap",
        "v1",
        "ConfigMap",
        "no-secrets-in-manifests",
        data={"config": "client-key-data: LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpNSUlF\n"},
    ),
    added(
        "a token in the binary data of a ConfigMap",
        "v1",
        "ConfigMap",
        "no-secrets-in-manifests",
        binaryData={"token": "aGZfYWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXo="},
    ),
    way(
        "a Pod below a field of an ordinary object",
        WEB,
        "",
        (
            "4",
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "a", "namespace": "web"},
                "data": {"pod.yaml": LISTED},
            },
        ),
    ),
    way(
        "a role that reads the Secrets of the system",
        WEB,
        "rbac-least-privilege",
        (
            "4",
            {
                "apiVersion": RBAC,
                "kind": "Role",
                "metadata": {"name": "reader", "namespace": "kube-system"},
                "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
            },
        ),
    ),
    added(
        "edit in the namespace of the system",
        RBAC,
        "RoleBinding",
        "rbac-least-privilege",
        metadata={"namespace": "kube-system"},
        roleRef={**ADMIN["roleRef"], "name": "edit"},
        subjects=ADMIN["subjects"],
    ),
    *(
        way(
            f"a device by the annotation {name}",
            WEB,
            "gpu-limit-present",
            ("0/spec/template/metadata/annotations", {name: "/dev/nvidia0"}),
        )
        for name in (
            "io.kubernetes.cri-o.Devices",
            "devices.noderesource.dev/container.web",
            "devices.nri.io/pod",
            "devices.gke.io/container.web",
        )
    ),
    way(
        "an address of another host for Ray's head",
        "ray_cluster_cpu",
        "service-not-public",
        ("0/spec/headGroupSpec/headService", {"spec": {"externalIPs": ["192.0.2.1"]}}),
    ),
    way(
        "a model as an image without a version",
        "llmisvc_single_gpu",
        "image-tag-fixed",
        ("0/spec/model/uri", "oci://ghcr.io/team/model"),
    ),
    way(
        "an adapter as an image without a version",
        "llmisvc_single_gpu",
        "image-tag-fixed",
        ("0/spec/model/lora", {"adapters": [{"name": "a", "uri": "oci://ghcr.io/team/lora"}]}),
    ),
]
