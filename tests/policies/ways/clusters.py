"""Evasions with cluster-scoped objects and with objects that contain others."""

from typing import Any

import yaml

from tests.policies.ways.kinds import TEMPLATE
from tests.policies.ways.pods import WEB
from tests.policies.ways.tenants import RBAC, added, replaced_policies
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


def webhook(description: str, kind: str, **fields: Any) -> Way:
    """Return an edit that adds an admission webhook outside the cluster."""
    hook = {
        "name": "pods.example.net",
        "clientConfig": REMOTE,
        "rules": [PODS],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **fields,
    }
    return added(description, "admissionregistration.k8s.io/v1", kind, webhooks=[hook])


def allowing_policy(description: str, *peers: dict[str, Any]) -> Way:
    """Return an edit that adds a policy equivalent to allowing all traffic."""
    return replaced_policies(
        description, DENY, {"podSelector": {}, "ingress": [{"from": list(peers)}]}
    )


def additional_policy(description: str, version: str, kind: str, **spec: Any) -> Way:
    """Return an edit that adds another policy engine's policy to the denying one."""
    metadata = {"name": "allow", "namespace": "tenant"}
    manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    return way(description, "tenant_namespace", "namespace-default-deny", ("6", manifest))


def creating_object(description: str, version: str, kind: str, rules: str = "", **spec: Any) -> Way:
    """Return an edit that adds an object whose controller creates other objects."""
    return added(description, version, kind, rules, spec=spec)


WAYS = [
    # endpoints called by the API server
    webhook("an external webhook that changes pods", "MutatingWebhookConfiguration"),
    webhook("an external webhook that receives pods", "ValidatingWebhookConfiguration"),
    added(
        "an aggregated API without TLS verification",
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
        "a CRD with an external conversion webhook",
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        spec={
            "group": "example.com",
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": REMOTE}},
        },
    ),
    # ineffective network policies
    allowing_policy(
        "a network policy that allows every namespace through empty labels",
        {"namespaceSelector": {"matchLabels": {}}},
    ),
    allowing_policy(
        "a network policy that allows every namespace through an expression",
        {
            "namespaceSelector": {
                "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]
            }
        },
    ),
    allowing_policy(
        "a network policy that allows both halves of the address space",
        {"ipBlock": {"cidr": "0.0.0.0/1"}},
        {"ipBlock": {"cidr": "128.0.0.0/1"}},
    ),
    allowing_policy(
        "a network policy that allows all IPv6 addresses", {"ipBlock": {"cidr": "::/0"}}
    ),
    allowing_policy(
        "a network policy that allows all addresses but one",
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["192.0.2.1/32"]}},
    ),
    replaced_policies(
        "a network policy with empty labels that allows all traffic",
        DENY,
        {"podSelector": {"matchLabels": {}}, "ingress": [{}]},
    ),
    additional_policy(
        "an AdminNetworkPolicy that allows all traffic",
        "policy.networking.k8s.io/v1alpha1",
        "AdminNetworkPolicy",
        priority=1,
        subject={"namespaces": {}},
        ingress=[{"action": "Allow", "from": [{"namespaces": {}}]}],
    ),
    additional_policy(
        "a Cilium policy that allows all traffic",
        "cilium.io/v2",
        "CiliumNetworkPolicy",
        endpointSelector={},
        ingress=[{"fromEntities": ["all"]}],
    ),
    *(
        additional_policy(
            f"a Cilium policy that allows {description}",
            "cilium.io/v2",
            "CiliumNetworkPolicy",
            endpointSelector={},
            ingress=[rule],
        )
        for description, rule in (
            ("all sources to a port", {"toPorts": [{"ports": [{"port": "29500"}]}]}),
            ("all IPv4 addresses", {"fromEntities": ["world-ipv4"]}),
            (
                "all namespaces",
                {
                    "fromEndpoints": [
                        {
                            "matchExpressions": [
                                {"key": "k8s:io.kubernetes.pod.namespace", "operator": "Exists"}
                            ]
                        }
                    ]
                },
            ),
        )
    ),
    *(
        additional_policy(
            f"a Calico policy that allows {description}",
            "projectcalico.org/v3",
            "NetworkPolicy",
            selector="all()",
            ingress=[{"action": "Allow", "source": source}],
        )
        for description, source in (
            ("all source ports", {"ports": ["1:65535"]}),
            ("all namespaces", {"namespaceSelector": "has(projectcalico.org/name)"}),
        )
    ),
    additional_policy(
        "an Antrea policy that allows every namespace",
        "crd.antrea.io/v1beta1",
        "NetworkPolicy",
        appliedTo=[{"podSelector": {}}],
        ingress=[{"action": "Allow", "from": [{"namespaceSelector": {}}]}],
    ),
    additional_policy(
        "a Calico policy that allows all traffic",
        "projectcalico.org/v3",
        "NetworkPolicy",
        selector="all()",
        types=["Ingress"],
        ingress=[{"action": "Allow"}],
    ),
    # entry points
    added(
        "an Ingress with custom nginx configuration",
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
        "an OpenShift Route without TLS",
        "route.openshift.io/v1",
        "Route",
        "service-not-public",
        spec={"host": "a.example.com", "to": {"kind": "Service", "name": "web"}},
    ),
    added(
        "an Istio Gateway without TLS",
        "networking.istio.io/v1",
        "Gateway",
        "service-not-public",
        spec={"servers": [{"port": {"number": 80, "protocol": "HTTP"}, "hosts": ["*"]}]},
    ),
    # priorities, devices and the host
    added(
        "a Kueue priority above all others",
        "kueue.x-k8s.io/v1beta1",
        "WorkloadPriorityClass",
        "priority-class-bounded",
        value=2_000_000_000,
    ),
    way(
        "a system priority class for a PodGroup",
        "volcano_queue",
        "priority-class-bounded",
        ("2/spec/priorityClassName", "system-node-critical"),
    ),
    added(
        "a namespace whose claims may have admin access",
        "v1",
        "Namespace",
        metadata={"labels": {"resource.kubernetes.io/admin-access": "true"}},
    ),
    added(
        "GPUs through a misleading extended resource name",
        "resource.k8s.io/v1",
        "DeviceClass",
        spec={
            "extendedResourceName": "rdma/fast",
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
        },
    ),
    added(
        "the NVIDIA runtime with another name", "node.k8s.io/v1", "RuntimeClass", handler="nvidia"
    ),
    added(
        "NVIDIA device variables from a ConfigMap",
        "v1",
        "ConfigMap",
        data={"NVIDIA_VISIBLE_DEVICES": "all"},
    ),
    *(
        added(
            f"NVIDIA device variables from the {field} of a Secret",
            "v1",
            "Secret",
            "device-names-kept",
            **{field: {"NVIDIA_VISIBLE_DEVICES": value}},
        )
        for field, value in (("data", "YWxs"), ("stringData", "all"))
    ),
    *(
        added(
            f"GPUs that the device plugin names {name}",
            "v1",
            "ConfigMap",
            "device-names-kept",
            data={"any": yaml.safe_dump({"version": "v1", **settings})},
        )
        for name, settings in (
            (
                "hostdev",
                {"sharing": {"timeSlicing": {"resources": [{"rename": "nvidia.com/hostdev"}]}}},
            ),
            ("rdma", {"resources": {"gpus": [{"pattern": "*", "name": "rdma"}]}}),
        )
    ),
    added(
        "the Kata runtime with GPUs",
        "v1",
        "Pod",
        "gpu-limit-present",
        spec={**TEMPLATE["template"]["spec"], "runtimeClassName": "kata-qemu-nvidia-gpu"},
    ),
    added(
        "a node group that caches models on the host",
        "serving.kserve.io/v1alpha1",
        "LocalModelNodeGroup",
        spec={
            "storageLimit": "1Ti",
            "persistentVolumeClaimSpec": {"accessModes": ["ReadWriteOnce"]},
            "persistentVolumeSpec": {"accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"}},
        },
    ),
    added(
        "a PodDefault with host volumes",
        "kubeflow.org/v1alpha1",
        "PodDefault",
        "no-host-path",
        spec={
            "selector": {"matchLabels": {"a": "b"}},
            "volumes": [{"name": "h", "hostPath": {"path": "/"}}],
        },
    ),
    # objects that contain others
    creating_object(
        "a role binding in a Composition",
        "apiextensions.crossplane.io/v1",
        "Composition",
        "kind-known",
        resources=[{"name": "a", "base": ADMIN}],
    ),
    creating_object(
        "a role binding in a Karmada Work",
        "work.karmada.io/v1alpha1",
        "Work",
        "",
        workload={"manifests": [ADMIN]},
    ),
    creating_object(
        "a role binding in an OCM Policy",
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
    creating_object(
        "a role binding in a ManifestWork",
        "work.open-cluster-management.io/v1",
        "ManifestWork",
        "rbac-least-privilege",
        workload={"manifests": [ADMIN]},
    ),
    creating_object(
        "a role binding in a Crossplane Object",
        "kubernetes.m.crossplane.io/v1alpha1",
        "Object",
        "rbac-least-privilege",
        forProvider={"manifest": ADMIN},
    ),
    creating_object(
        "a role binding in a Sensor trigger",
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
        "a password in a ConfigMap file",
        "v1",
        "ConfigMap",
        "no-secrets-in-manifests",
        data={"app.env": "DEBUG=1\nDB_PASSWORD=correct-horse\n"},
    ),
    added(
        "a key in a kubeconfig in a ConfigMap",
        "v1",
        "ConfigMap",
        "no-secrets-in-manifests",
        data={"config": "client-key-data: LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpNSUlF\n"},
    ),
    added(
        "a token in the binaryData of a ConfigMap",
        "v1",
        "ConfigMap",
        "no-secrets-in-manifests",
        binaryData={"token": "aGZfYWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXo="},
    ),
    way(
        "a Pod in a nested field of an ordinary object",
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
        "a role that reads Secrets in kube-system",
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
        "the edit role in kube-system",
        RBAC,
        "RoleBinding",
        "rbac-least-privilege",
        metadata={"namespace": "kube-system"},
        roleRef={**ADMIN["roleRef"], "name": "edit"},
        subjects=ADMIN["subjects"],
    ),
    *(
        way(
            f"a device through the annotation {name}",
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
        "an external address for Ray's head",
        "ray_cluster_cpu",
        "service-not-public",
        ("0/spec/headGroupSpec/headService", {"spec": {"externalIPs": ["192.0.2.1"]}}),
    ),
    way(
        "a model image without a version",
        "llmisvc_single_gpu",
        "image-tag-fixed",
        ("0/spec/model/uri", "oci://ghcr.io/team/model"),
    ),
    way(
        "a model image without a version among several models",
        "kserve_model_format",
        "image-tag-fixed",
        ("0/spec/predictor/storageUris", [{"uri": "oci://ghcr.io/team/model"}]),
    ),
    way(
        "a model image without a version that the kubelet mounts",
        "kserve_model_format",
        "image-tag-fixed",
        ("0/spec/predictor/model/storageUri", "oci+native://ghcr.io/team/model"),
    ),
    way(
        "an adapter image without a version",
        "llmisvc_single_gpu",
        "image-tag-fixed",
        ("0/spec/model/lora", {"adapters": [{"name": "a", "uri": "oci://ghcr.io/team/lora"}]}),
    ),
]
