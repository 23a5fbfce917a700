"""Objects for an in-cluster client of the Kubernetes API: account, RBAC, token and pod."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.manifests import DNS_PORTS, NOT_AWAITED, Manifest, compact, standard_labels
from infra.pods import GpuNodes, Mount, Pod, Volume, pod_template
from kube.names import RBAC_GROUP


@dataclass(frozen=True, kw_only=True)
class ApiClient:
    """An in-cluster program, identified by its name and namespace."""

    name: str
    namespace: str
    program: str | None = None
    """Value of the `app.kubernetes.io/name` label. Defaults to `name`."""
    awaited: bool = False
    """True if Pulumi waits until the program's objects are ready."""

    @property
    def metadata(self) -> Manifest:
        """Metadata of the program's objects."""
        return {"namespace": self.namespace, **self._metadata}

    @property
    def _metadata(self) -> Manifest:
        annotations = {} if self.awaited else dict(NOT_AWAITED)
        return compact({"name": self.name, "labels": self._labels, "annotations": annotations})

    @property
    def _labels(self) -> dict[str, str]:
        return standard_labels(self.program or self.name, self.name)

    @property
    def selector(self) -> dict[str, str]:
        """Labels that select the program's pods.

        The pods of a run may have the same `name` label as the program, but never the same
        `instance` label.
        """
        names = ("instance",) if self.program else ("name", "instance")
        return {f"app.kubernetes.io/{name}": self.name for name in names}

    def account(self, pull_secret: str | None) -> Manifest:
        """Return the service account, whose token is not mounted automatically."""
        account: Manifest = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": self.metadata,
            "automountServiceAccountToken": False,
        }
        if pull_secret is not None:
            account["imagePullSecrets"] = [{"name": pull_secret}]
        return account

    def role(self, rules: Sequence[Mapping[str, Any]], namespace: str | None = None) -> Manifest:
        """Return a Role in `namespace` (default: the program's namespace)."""
        metadata = {**self.metadata, "namespace": namespace or self.namespace}
        return {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": list(rules),
        }

    def binding(self, namespace: str | None = None) -> Manifest:
        """Return the RoleBinding in `namespace` (default: the program's namespace)."""
        return {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": {**self.metadata, "namespace": namespace or self.namespace},
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": self.name},
            "subjects": [self._subject],
        }

    def cluster_role(self, rules: Sequence[Mapping[str, Any]]) -> list[Manifest]:
        """Return a ClusterRole and its binding."""
        return [
            {
                "apiVersion": f"{RBAC_GROUP}/v1",
                "kind": "ClusterRole",
                "metadata": self._metadata,
                "rules": list(rules),
            },
            {
                "apiVersion": f"{RBAC_GROUP}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": self._metadata,
                "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": self.name},
                "subjects": [self._subject],
            },
        ]

    def allow_ports(self, ports: Iterable[int]) -> Manifest:
        """Return the NetworkPolicy that denies all traffic except egress to these ports.

        A NetworkPolicy cannot select the API server, so these ports are allowed on all addresses.
        """
        allowed = [
            {"port": port, "protocol": protocol}
            for port in ports
            for protocol in (("UDP", "TCP") if port in DNS_PORTS else ("TCP",))
        ]
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": self.metadata,
            "spec": {
                "podSelector": {"matchLabels": self.selector},
                "policyTypes": ["Ingress", "Egress"],
                "egress": [{"ports": allowed}],
            },
        }

    def pod(
        self,
        container: str,
        gpu_nodes: GpuNodes,
        *,
        image: Any,
        command: Sequence[str],
        cpu: str,
        memory: str,
        grace_seconds: int = 10,
        mounts: Sequence[Mount] = (),
        volumes: Sequence[Volume] = (),
        node_selector: Mapping[str, str] | None = None,
    ) -> Pod:
        """Return the program's pod. It has an API token and no GPU, and prefers nodes without GPUs.

        The pod has no workload label, so it may run on the node of a `whole_node` job.
        """
        return Pod(
            container=container,
            image=image,
            command=command,
            cpu=cpu,
            memory=memory,
            shm="1Mi",
            gpus=0,
            gpu_nodes=gpu_nodes,
            service_account=self.name,
            grace_seconds=grace_seconds,
            labels=self._labels,
            mounts=mounts,
            volumes=[TOKEN, *volumes],
            node_selector=node_selector or {},
            affinity=_avoid_gpu_nodes(gpu_nodes),
        )

    def deployment(self, pod: Pod, strategy: Mapping[str, Any] | None = None) -> Manifest:
        """Return a Deployment with one replica. Without `strategy`, Kubernetes' default applies."""
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self.metadata,
            "spec": {
                "replicas": 1,
                "revisionHistoryLimit": 1,
                "selector": {"matchLabels": self.selector},
                **({"strategy": dict(strategy)} if strategy else {}),
                "template": pod_template(pod),
            },
        }

    @property
    def _subject(self) -> Manifest:
        return {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}


def _avoid_gpu_nodes(gpu_nodes: GpuNodes) -> Manifest:
    """Return an affinity that prefers nodes without GPUs."""
    expressions = [{"key": key, "operator": "DoesNotExist"} for key in gpu_nodes.node_selector]
    if not expressions:
        return {}
    preferred = {"weight": 1, "preference": {"matchExpressions": expressions}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def _token() -> Manifest:
    path = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    root = {"key": "ca.crt", "path": "ca.crt"}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [root]}},
        {"downwardAPI": {"items": [path]}},
    ]
    return {"projected": {"sources": sources}}


TOKEN: Final = Volume(
    name="token",
    source=_token(),
    path="/var/run/secrets/kubernetes.io/serviceaccount",
    read_only=True,
)
"""Volume with the API token and the other files that Kubernetes mounts by default."""
