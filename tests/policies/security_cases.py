"""Violations of the rules for images, pod and cluster security, and tenants."""

from tests.policies import manifests
from tests.policies.harness import CONTEXT, MAIN, POD, REMOVED, Case, Manifest, job


def flow_schema() -> Manifest:
    subject = {"kind": "Group", "group": {"name": "system:authenticated"}}
    resources = {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]}
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": "lists"},
        "spec": {
            "priorityLevelConfiguration": {"name": "workload-low"},
            "rules": [{"subjects": [subject], "resourceRules": [resources]}],
        },
    }


def webhook() -> Manifest:
    service = {"name": "hooks", "namespace": "training", "path": "/mutate"}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "hooks"},
        "webhooks": [{"name": "pods.example.com", "clientConfig": {"service": service}}],
    }


def runtime_class() -> Manifest:
    metadata = {"name": "fast"}
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": metadata,
        "handler": "runc",
    }


SECURITY_CASES = [
    job(
        "image-tag-fixed", (f"{MAIN}/image", "pytorch:latest"), reports=('found "pytorch:latest"',)
    ),
    job("image-tag-fixed", (f"{MAIN}/image", REMOVED), reports=("image: not set",)),
    job("image-digest-pinned", (f"{MAIN}/image", "a/b:1"), reports=("@sha256",)),
    job(
        "image-registry-allowed",
        config={"allowedRegistries": ["registry.example.com/team"]},
        reports=("127.0.0.1:5000", "from registry.example.com/team"),
    ),
    job(
        "run-as-non-root",
        (f"{POD}/securityContext", REMOVED),
        reports=("securityContext.runAsNonRoot: not set", "true"),
    ),
    job("run-as-non-root", (f"{CONTEXT}/runAsUser", 0), reports=("runAsUser: found 0",)),
    job(
        "no-privilege-escalation",
        (f"{CONTEXT}/allowPrivilegeEscalation", REMOVED),
        reports=("allowPrivilegeEscalation", "false"),
    ),
    job("not-privileged", (f"{CONTEXT}/privileged", True), reports=("privileged: found true",)),
    job("capabilities-dropped", (f"{CONTEXT}/capabilities", REMOVED), reports=('["ALL"]',)),
    job(
        "capabilities-dropped",
        (f"{CONTEXT}/capabilities/add", ["IPC_LOCK"]),
        reports=("capabilities.add[0]", "remove it"),
    ),
    job("no-host-namespaces", (f"{POD}/hostPID", True), reports=("hostPID: found true",)),
    job("no-host-namespaces", (f"{POD}/hostIPC", True), reports=("hostIPC: found true",)),
    job(
        "no-host-path",
        (f"{POD}/volumes/2", {"name": "root", "hostPath": {"path": "/"}}),
        reports=("volumes[2].hostPath", "persistentVolumeClaim"),
    ),
    job("no-host-namespaces", (f"{POD}/hostNetwork", True), reports=("hostNetwork: found true",)),
    job(
        "no-host-ports",
        (f"{MAIN}/ports", [{"containerPort": 22, "hostPort": 22}]),
        reports=("ports[0].hostPort: found 22", "Service"),
    ),
    job(
        "security-profiles-kept",
        (f"{POD}/securityContext/seccompProfile", {"type": "Unconfined"}),
        reports=('seccompProfile.type: found "Unconfined"', '"RuntimeDefault"'),
    ),
    job(
        "sysctls-safe",
        (f"{POD}/securityContext/sysctls", [{"name": "kernel.msgmax", "value": "1"}]),
        reports=('sysctls[0].name: found "kernel.msgmax"', "net.ipv4.tcp_syncookies"),
    ),
    job(
        "probes-stay-in-pod",
        (f"{MAIN}/livenessProbe", {"httpGet": {"host": "10.0.0.1", "port": 80}}),
        reports=('livenessProbe.httpGet.host: found "10.0.0.1"', "remove it"),
    ),
    job(
        "volume-types-restricted",
        (f"{POD}/volumes/2", {"name": "d", "nfs": {"server": "a", "path": "/"}}),
        reports=("volumes[2].nfs", "persistentVolumeClaim"),
    ),
    job(
        "seccomp-profile-set",
        (f"{POD}/securityContext/seccompProfile", REMOVED),
        reports=("seccompProfile.type: not set", '"RuntimeDefault"'),
    ),
    job(
        "root-filesystem-read-only",
        (f"{CONTEXT}/readOnlyRootFilesystem", False),
        reports=("readOnlyRootFilesystem: found false", "true"),
    ),
    job(
        "no-hidden-token",
        (
            f"{POD}/volumes/2",
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
        ),
        reports=("serviceAccountToken", "audience"),
    ),
    Case(
        "no-secrets-in-manifests",
        manifests.service,
        (("metadata/annotations", {"token": "hf_" + "a" * 34}),),
        ("metadata.annotations.token: found a literal", "Secret"),
    ),
    Case(
        "rbac-least-privilege",
        manifests.role,
        (("rules/0/verbs", ["*"]),),
        ('rules[0].verbs[0]: found "*"', "the verbs that are needed"),
    ),
    Case(
        "api-extensions-trusted",
        webhook,
        (("webhooks/0/clientConfig", {"url": "https://example.net/mutate"}),),
        ('url: found "https://example.net/mutate"', "a Service in the cluster"),
    ),
    Case(
        "control-plane-kept",
        flow_schema,
        (("spec/priorityLevelConfiguration/name", "exempt"),),
        ('priorityLevelConfiguration.name: found "exempt"', "a level with a limit"),
    ),
    Case(
        "device-names-kept",
        runtime_class,
        (("handler", "nvidia"),),
        ('handler: found "nvidia"', '"fast"'),
    ),
    Case(
        "namespace-pod-security",
        manifests.namespace,
        (("metadata/labels", {"pod-security.kubernetes.io/enforce": "privileged"}),),
        ('found "privileged"', "restricted"),
    ),
    job(
        "priority-not-of-system",
        (f"{POD}/priorityClassName", "system-cluster-critical"),
        reports=('priorityClassName: found "system-cluster-critical"', "of the platform"),
    ),
    Case(
        "priority-class-bounded",
        manifests.priority_class,
        (("value", 1_000_000_000),),
        ("value: found 1000000000", "at most 1000000"),
    ),
    job(
        "tolerations-bounded",
        (f"{POD}/tolerations/1", {"operator": "Exists"}),
        reports=("tolerations[1]: found", "the key of a taint"),
    ),
    job(
        "annotations-bounded",
        ("spec/tasks/0/template/metadata/annotations", {"sidecar.istio.io/proxyImage": "a"}),
        reports=("sidecar.istio.io/proxyImage", "remove it"),
    ),
    Case(
        "no-host-volume",
        manifests.volume,
        (("spec", {"hostPath": {"path": "/"}}),),
        ("spec.hostPath", "network storage"),
    ),
    job(
        "no-literal-secrets",
        (f"{MAIN}/env/1", {"name": "HF_TOKEN", "value": "abc"}),
        reports=("env[1].value: found a literal", "secretKeyRef"),
    ),
    job(
        "no-service-account-token",
        (f"{POD}/automountServiceAccountToken", REMOVED),
        reports=("automountServiceAccountToken: not set", "false"),
    ),
    Case(
        "service-not-public",
        manifests.service,
        (("spec/type", "LoadBalancer"),),
        ('spec.type: found "LoadBalancer"', "ClusterIP"),
    ),
    Case(
        "namespace-gpu-quota",
        manifests.quota,
        reports=("no effective GPU quota in namespace training", "requests.nvidia.com/gpu"),
        removed=True,
    ),
    Case(
        "namespace-gpu-quota",
        manifests.quota,
        (("spec/hard", {"pods": "10"}),),
        ("no effective GPU quota",),
    ),
    Case(
        "namespace-default-deny",
        manifests.default_deny,
        (("spec/podSelector", {"matchLabels": {"app": "other"}}),),
        ("no default-deny NetworkPolicy in namespace training",),
    ),
    Case(
        "namespace-default-deny",
        manifests.default_deny,
        (("spec/ingress", [{}]),),
        ("no default-deny NetworkPolicy",),
    ),
]
