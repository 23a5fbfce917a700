"""Examples of the rules about security, and builders of examples with one container."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent
from typing import Final


@dataclass(frozen=True)
class Example:
    """A bad and a good example in YAML."""

    bad: str
    good: str


def example(bad: str, good: str) -> Example:
    """Return an example from indented texts."""
    return Example(dedent(bad).strip("\n"), dedent(good).strip("\n"))


def with_limits(bad: str, good: str) -> Example:
    """Return pods whose only container has these resources."""
    frame = "containers:\n  - name: main\n    resources: {text}"
    return Example(frame.format(text=bad), frame.format(text=good))


def with_context(bad: str, good: str) -> Example:
    """Return pods whose only container has these security contexts."""
    frame = "containers:\n  - name: main\n    securityContext: {text}"
    return Example(frame.format(text=bad), frame.format(text=good))


def with_image(bad: str, good: str) -> Example:
    """Return pods whose only container has these images."""
    frame = "containers:\n  - name: main\n    image: {text}"
    return Example(frame.format(text=bad), frame.format(text=good))


SECURITY: Final[dict[str, Example]] = {
    "host-network-dns": example(
        """
        hostNetwork: true
        containers: [{name: main}]
        """,
        """
        hostNetwork: true
        dnsPolicy: ClusterFirstWithHostNet
        containers: [{name: main}]
        """,
    ),
    "image-tag-fixed": with_image("pytorch/pytorch:latest", "pytorch/pytorch:2.15.0"),
    "image-digest-pinned": with_image(
        "registry.example.com/train:1.4.2", f"registry.example.com/train@sha256:{'6d' * 32}"
    ),
    "image-registry-allowed": with_image(
        "docker.io/somebody/train:1.4.2", "registry.example.com/team/train:1.4.2"
    ),
    "run-as-non-root": with_context("{runAsUser: 0}", "{runAsNonRoot: true, runAsUser: 10001}"),
    "no-privilege-escalation": with_context("{}", "{allowPrivilegeEscalation: false}"),
    "not-privileged": with_context("{privileged: true}", "{privileged: false}"),
    "capabilities-dropped": with_context(
        "{capabilities: {add: [SYS_ADMIN]}}", "{capabilities: {drop: [ALL]}}"
    ),
    "no-host-namespaces": example(
        "hostIPC: true\ncontainers: [{name: main}]", "containers: [{name: main}]"
    ),
    "no-host-path": example(
        """
        containers: [{name: main}]
        volumes: [{name: data, hostPath: {path: /mnt/data}}]
        """,
        """
        containers: [{name: main}]
        volumes: [{name: data, persistentVolumeClaim: {claimName: datasets}}]
        """,
    ),
    "no-host-ports": example(
        "containers: [{name: main, ports: [{containerPort: 8080, hostPort: 80}]}]",
        "containers: [{name: main, ports: [{containerPort: 8080}]}]",
    ),
    "security-profiles-kept": with_context(
        "{seccompProfile: {type: Unconfined}}", "{seccompProfile: {type: RuntimeDefault}}"
    ),
    "sysctls-safe": example(
        """
        securityContext: {sysctls: [{name: kernel.shmmax, value: "68719476736"}]}
        containers: [{name: main}]
        """,
        """
        securityContext: {sysctls: [{name: net.ipv4.tcp_keepalive_time, value: "600"}]}
        containers: [{name: main}]
        """,
    ),
    "probes-stay-in-pod": example(
        "containers: [{name: main, livenessProbe: {httpGet: {host: 169.254.169.254, port: 80}}}]",
        "containers: [{name: main, livenessProbe: {httpGet: {path: /health, port: 8080}}}]",
    ),
    "volume-types-restricted": example(
        """
        containers: [{name: main}]
        volumes: [{name: data, nfs: {server: nfs.example.com, path: /data}}]
        """,
        """
        containers: [{name: main}]
        volumes: [{name: data, persistentVolumeClaim: {claimName: datasets}}]
        """,
    ),
    "seccomp-profile-set": with_context("{}", "{seccompProfile: {type: RuntimeDefault}}"),
    "root-filesystem-read-only": with_context("{}", "{readOnlyRootFilesystem: true}"),
    "no-secrets-in-manifests": example(
        """
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: hub}
        data: {token: written-here}
        """,
        """
        apiVersion: external-secrets.io/v1
        kind: ExternalSecret
        metadata: {name: hub}
        spec:
          secretStoreRef: {name: vault}
          data: [{secretKey: token, remoteRef: {key: ml/hub}}]
        """,
    ),
    "no-hidden-token": example(
        """
        automountServiceAccountToken: false
        containers: [{name: main}]
        volumes:
          - name: token
            projected: {sources: [{serviceAccountToken: {path: token}}]}
        """,
        """
        automountServiceAccountToken: false
        containers: [{name: main}]
        volumes:
          - name: token
            projected:
              sources: [{serviceAccountToken: {path: token, audience: vault.example.com}}]
        """,
    ),
    "rbac-least-privilege": example(
        """
        apiVersion: rbac.authorization.k8s.io/v1
        kind: ClusterRoleBinding
        metadata: {name: team}
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
        subjects: [{kind: ServiceAccount, name: default, namespace: ml}]
        """,
        """
        apiVersion: rbac.authorization.k8s.io/v1
        kind: RoleBinding
        metadata: {name: team, namespace: ml}
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
        subjects: [{kind: Group, name: team}]
        """,
    ),
    "namespace-pod-security": example(
        """
        apiVersion: v1
        kind: Namespace
        metadata: {name: ml, labels: {pod-security.kubernetes.io/enforce: privileged}}
        """,
        """
        apiVersion: v1
        kind: Namespace
        metadata: {name: ml, labels: {pod-security.kubernetes.io/enforce: restricted}}
        """,
    ),
    "priority-not-of-system": example(
        "priorityClassName: system-node-critical\ncontainers: [{name: main}]",
        "priorityClassName: training\ncontainers: [{name: main}]",
    ),
    "priority-class-bounded": example(
        """
        apiVersion: scheduling.k8s.io/v1
        kind: PriorityClass
        metadata: {name: urgent}
        value: 1000000000
        """,
        """
        apiVersion: scheduling.k8s.io/v1
        kind: PriorityClass
        metadata: {name: urgent}
        value: 2000
        """,
    ),
    "tolerations-bounded": example(
        "tolerations: [{operator: Exists}]\ncontainers: [{name: main}]",
        "tolerations: [{key: nvidia.com/gpu, operator: Exists}]\ncontainers: [{name: main}]",
    ),
    "annotations-bounded": example(
        """
        apiVersion: v1
        kind: Pod
        metadata:
          name: server
          annotations: {io.kubernetes.cri-o.TrustedSandbox: "false"}
        spec: {containers: [{name: main}]}
        """,
        """
        apiVersion: v1
        kind: Pod
        metadata:
          name: server
          annotations: {prometheus.io/scrape: "true"}
        spec: {containers: [{name: main}]}
        """,
    ),
    "no-host-volume": example(
        """
        apiVersion: v1
        kind: PersistentVolume
        metadata: {name: data}
        spec: {hostPath: {path: /mnt/data}}
        """,
        """
        apiVersion: v1
        kind: PersistentVolume
        metadata: {name: data}
        spec: {csi: {driver: nfs.csi.k8s.io, volumeHandle: nfs.example.com/data}}
        """,
    ),
    "no-literal-secrets": example(
        """
        containers:
          - name: main
            env: [{name: HF_TOKEN, value: written-here}]
        """,
        """
        containers:
          - name: main
            env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}]
        """,
    ),
    "no-service-account-token": example(
        "containers: [{name: main}]",
        "automountServiceAccountToken: false\ncontainers: [{name: main}]",
    ),
    "api-extensions-trusted": example(
        """
        apiVersion: admissionregistration.k8s.io/v1
        kind: MutatingWebhookConfiguration
        metadata: {name: pods}
        webhooks:
          - name: pods.example.com
            clientConfig: {url: "https://hooks.example.net/mutate"}
        """,
        """
        apiVersion: admissionregistration.k8s.io/v1
        kind: MutatingWebhookConfiguration
        metadata: {name: pods}
        webhooks:
          - name: pods.example.com
            clientConfig: {service: {name: hooks, namespace: ml, path: /mutate}}
        """,
    ),
    "device-names-kept": example(
        """
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: settings}
        data: {NVIDIA_VISIBLE_DEVICES: all}
        """,
        """
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: settings}
        data: {OMP_NUM_THREADS: "4"}
        """,
    ),
    "control-plane-kept": example(
        """
        apiVersion: certificates.k8s.io/v1
        kind: CertificateSigningRequest
        metadata: {name: operator}
        spec: {signerName: kubernetes.io/kube-apiserver-client, usages: [client auth]}
        """,
        """
        apiVersion: certificates.k8s.io/v1
        kind: CertificateSigningRequest
        metadata: {name: operator}
        spec: {signerName: issuers.example.com/internal, usages: [server auth]}
        """,
    ),
    "service-not-public": example(
        """
        apiVersion: v1
        kind: Service
        metadata: {name: server}
        spec: {type: LoadBalancer}
        """,
        """
        apiVersion: v1
        kind: Service
        metadata: {name: server}
        spec: {type: ClusterIP}
        """,
    ),
}
