"""The controller that cordons nodes with unhealthy GPUs, and its permissions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

import pulumi

from infra.api_client import ApiClient
from infra.component import Component
from infra.configuration import RegistryLogin
from infra.manifests import DNS_PORTS, PULL_SECRET, Manifest, standard_labels
from infra.outputs import SharedResources
from infra.pods import GpuNodes
from infra.settings import StackSettings
from infra.settings.node_health import NodeHealthSettings

CONTROLLER: Final = "node-health"
_EVENTS_NAMESPACE: Final = "default"
"""The API server accepts node events only in this namespace."""
_NODE_RULES: Final = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
]
_POD_RULES: Final = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
]
_EVENT_RULES: Final = [{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}]


@dataclass(frozen=True, kw_only=True)
class NodeHealthArgs:
    """Controller settings, the runs' namespace, and the image (a string or a Pulumi output)."""

    health: NodeHealthSettings
    namespace: str
    image: Any
    gpu_nodes: GpuNodes
    isolated: bool = False
    login: RegistryLogin | None = None

    @classmethod
    def of(
        cls, settings: StackSettings, shared: SharedResources, login: RegistryLogin | None
    ) -> Self:
        """Build the arguments from the settings of a stack that has `gpu.node_health`."""
        health = settings.gpu.node_health or NodeHealthSettings()
        return cls(
            health=health,
            namespace=shared.namespace,
            image=shared.images[health.image],
            gpu_nodes=shared.gpu_nodes,
            isolated=settings.tenancy.network.isolate,
            login=login,
        )


class NodeHealth(Component):
    """A Deployment with one pod in a separate namespace. Pulumi does not wait for the pod."""

    def __init__(
        self, name: str, args: NodeHealthArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("NodeHealth", name, opts)
        earlier: list[pulumi.Resource] = []
        for suffix, manifest in manifests(args).items():
            options = self.options(after=earlier)
            earlier = [*earlier, self.create(f"{name}-{suffix}", manifest, options)]
        self.register_outputs({})


def manifests(args: NodeHealthArgs) -> dict[str, Manifest]:
    """Return the objects in the order of creation, keyed by the suffixes of their logical names."""
    namespace = args.health.namespace
    client = ApiClient(name=CONTROLLER, namespace=namespace)
    cluster_role, cluster_binding = client.cluster_role(_NODE_RULES)
    built = {"namespace": _namespace(namespace)}
    if args.login is not None:
        built["registry"] = args.login.secret(namespace)
    built |= {
        "account": client.account(PULL_SECRET if args.login else None),
        "nodes-role": cluster_role,
        "nodes-binding": cluster_binding,
        "pods-role": client.role(_POD_RULES, args.namespace),
        "pods-binding": client.binding(args.namespace),
        "events-role": client.role(_EVENT_RULES, _EVENTS_NAMESPACE),
        "events-binding": client.binding(_EVENTS_NAMESPACE),
    }
    if args.isolated:
        built["network"] = client.allow_ports(_ports(args.health))
    pod = client.pod(
        CONTROLLER,
        args.gpu_nodes,
        image=args.image,
        cpu=args.health.cpu,
        memory=args.health.memory,
        command=["python3", "-m", "recorder.node_health", *_options(args)],
        node_selector=args.health.node_selector,
    )
    # Two controllers that run at the same time could exceed the maximum number of cordoned nodes.
    return {**built, "deployment": client.deployment(pod, {"type": "Recreate"})}


def _namespace(name: str) -> Manifest:
    labels = standard_labels(CONTROLLER, CONTROLLER)
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {**labels, "pod-security.kubernetes.io/enforce": "restricted"},
        },
    }


def _ports(health: NodeHealthSettings) -> list[int]:
    ports = list(health.api_ports)
    if health.prometheus is not None:
        url = urlsplit(health.prometheus)
        ports += [*DNS_PORTS, url.port or (443 if url.scheme == "https" else 80)]
    return ports


def _options(args: NodeHealthArgs) -> Iterator[str]:
    health = args.health
    yield f"--resource={args.gpu_nodes.resource}"
    yield f"--namespace={args.namespace}"
    yield f"--max-nodes={health.max_nodes}"
    yield f"--fault-seconds={health.fault_seconds}"
    yield f"--settle-seconds={health.settle_seconds}"
    if health.slow_reports is not None:
        yield f"--slow-reports={health.slow_reports}"
    if health.prometheus is not None:
        yield f"--prometheus={health.prometheus}"
        yield from (f"--xid={number}" for number in health.xids)
