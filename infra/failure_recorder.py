"""The failure recorder: archives the last log lines and events of failed pods."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import pulumi

from infra.component import Component
from infra.configuration import RegistryLogin
from infra.manifests import NOT_AWAITED, PULL_SECRET, Manifest, standard_labels
from infra.pods import GpuNodes, Mount, Pod, Volume, pod_template
from infra.settings import StackSettings
from infra.settings.monitoring import RecorderSettings

RECORDER: Final = "failure-recorder"
SELECTOR: Final = {
    f"app.kubernetes.io/{label}": RECORDER
    for label in ("name", "instance")  # a job may share the name, but no run the instance
}
"""Labels of its pod. Without a workload label it may share a node with a `whole_node` job."""
CLAIMS_PATH: Final = "/claims"
_TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  a path
_RBAC: Final = "rbac.authorization.k8s.io"


@dataclass(frozen=True, kw_only=True)
class FailureRecorderArgs:
    """Settings of the recorder, the names of the claims and the image, maybe a Pulumi output."""

    recorder: RecorderSettings
    namespace: str
    image: Any
    claims: Mapping[str, str]
    gpu_nodes: GpuNodes
    isolated: bool = False
    pull_secret: str | None = None

    @classmethod
    def of(
        cls,
        settings: StackSettings,
        images: Mapping[str, Any],
        gpu_nodes: GpuNodes,
        claims: Mapping[str, str],
        login: RegistryLogin | None,
    ) -> Self:
        """Return the arguments for a stack that has `logs.recorder`."""
        recorder = settings.logs.recorder or RecorderSettings()
        return cls(
            recorder=recorder,
            namespace=settings.tenancy.namespace,
            image=images[recorder.image],
            claims=claims,
            gpu_nodes=gpu_nodes,
            isolated=settings.tenancy.network.isolate,
            pull_secret=PULL_SECRET if login else None,
        )


class FailureRecorder(Component):
    """A Deployment with one pod that only reads the API. Pulumi does not wait for it."""

    def __init__(
        self, name: str, args: FailureRecorderArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("FailureRecorder", name, opts)
        earlier: list[pulumi.Resource] = []
        for manifest in manifests(args):
            resource_name = f"{name}-{manifest['kind'].lower()}"
            options = self.options(after=earlier)
            earlier = [*earlier, self.create(resource_name, manifest, options)]
        self.register_outputs({})


def manifests(args: FailureRecorderArgs) -> list[Manifest]:
    """Return the objects in the order of creation."""
    return [
        _account(args),
        _role(args),
        _binding(args),
        *([_allow_api_server(args)] if args.isolated else []),
        _deployment(args),
    ]


def _account(args: FailureRecorderArgs) -> Manifest:
    account: Manifest = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(args),
        "automountServiceAccountToken": False,
    }
    if args.pull_secret is not None:
        account["imagePullSecrets"] = [{"name": args.pull_secret}]
    return account


def _role(args: FailureRecorderArgs) -> Manifest:
    """Return the permissions to read pods, their logs and events in the namespace."""
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
    ]
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": _metadata(args),
        "rules": rules,
    }


def _binding(args: FailureRecorderArgs) -> Manifest:
    account = {"kind": "ServiceAccount", "name": RECORDER, "namespace": args.namespace}
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(args),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": RECORDER},
        "subjects": [account],
    }


def _allow_api_server(args: FailureRecorderArgs) -> Manifest:
    """Allow connections to the API server, whose address no NetworkPolicy can select."""
    ports = [{"port": port, "protocol": "TCP"} for port in args.recorder.api_ports]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(args),
        "spec": {
            "podSelector": {"matchLabels": SELECTOR},
            "policyTypes": ["Egress"],
            "egress": [{"ports": ports}],
        },
    }


def _deployment(args: FailureRecorderArgs) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(args),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": SELECTOR},
            # Two pods write the same files, which is harmless; a gap would miss failures.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": pod_template(_pod(args)),
        },
    }


def _pod(args: FailureRecorderArgs) -> Pod:
    settings = args.recorder
    bounds = {name: getattr(settings, name) for name in ("lines", "kib", "failures", "pods")}
    names = [args.claims[key] for key in settings.claims]
    return Pod(
        container="recorder",
        image=args.image,
        command=[
            *("python3", "-m", "recorder", "watch", f"--claims={CLAIMS_PATH}"),
            *(f"--{name}={value}" for name, value in bounds.items()),
        ],
        cpu=settings.cpu,
        memory=settings.memory,
        shm="1Mi",
        gpus=0,
        gpu_nodes=args.gpu_nodes,
        service_account=RECORDER,
        grace_seconds=10,
        labels=standard_labels(RECORDER, RECORDER),
        mounts=[
            Mount(name=f"claim-{number}", claim=name, path=f"{CLAIMS_PATH}/{name}")
            for number, name in enumerate(names)
        ],
        volumes=[Volume(name="token", source=_token(), path=_TOKEN_PATH, read_only=True)],
        node_selector=settings.node_selector,
        affinity=_elsewhere(args.gpu_nodes),
    )


def _elsewhere(gpu_nodes: GpuNodes) -> Manifest:
    """Return an affinity that prefers nodes without GPUs."""
    without = [{"key": key, "operator": "DoesNotExist"} for key in gpu_nodes.node_selector]
    if not without:
        return {}
    preferred = {"weight": 1, "preference": {"matchExpressions": without}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def _token() -> Manifest:
    """Return the volume that the kubelet would mount if automounting were not disabled."""
    path = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    root = {"key": "ca.crt", "path": "ca.crt"}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [root]}},
        {"downwardAPI": {"items": [path]}},
    ]
    return {"projected": {"sources": sources}}


def _metadata(args: FailureRecorderArgs) -> Manifest:
    return {
        "name": RECORDER,
        "namespace": args.namespace,
        "labels": standard_labels(RECORDER, RECORDER),
        "annotations": dict(NOT_AWAITED),
    }
