"""The workloads' namespace: quota, limits, network policies and service accounts."""

from dataclasses import dataclass
from typing import Any, Final, Self

import pulumi

from infra.component import Component
from infra.configuration import RegistryLogin
from infra.manifests import ADOPTED, DNS_PORTS, PULL_SECRET, Manifest, compact, standard_labels
from infra.settings import StackSettings
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.tenancy import IdentitySettings, TenancySettings
from infra.team_access import team_access
from kube.names import RAY_NODE_LABEL, ROLE_LABEL, WORKLOAD_LABEL

LIMIT_RANGE: Final = "containers"
SERVICE_ACCOUNTS: Final = ("training", "inference")
_SERVER_PORT: Final[int] = InferenceServiceSettings.model_fields["port"].default


@dataclass(frozen=True, kw_only=True)
class TenancyArgs:
    """Namespace settings, and the name of the GPU resource that the quota counts.

    The default values suit inference services that use the default port, and whose replicas may
    have several pods. No admission policy applies in `system_namespaces`, which admit privileged
    pods.
    """

    tenancy: TenancySettings
    gpu_resource: str
    inference_ports: tuple[int, ...] = (_SERVER_PORT,)
    """Ports of inference services, in addition to `tenancy.network.inference_ports`."""
    inference_groups: bool = True
    """True if a replica of any service may have several pods."""
    login: RegistryLogin | None = None
    system_namespaces: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: StackSettings, login: RegistryLogin | None) -> Self:
        """Build the arguments from the stack's settings."""
        return cls(
            tenancy=settings.tenancy,
            gpu_resource=settings.gpu.offered,
            inference_ports=settings.inference.ports,
            inference_groups=settings.inference.has_groups,
            login=login,
            system_namespaces=system_namespaces(settings),
        )


class Tenancy(Component):
    """Namespace, quota, limits, network and admission policies, and service accounts."""

    namespace: str

    def __init__(
        self, name: str, args: TenancyArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Tenancy", name, opts)
        self.namespace = args.tenancy.namespace
        namespace_resource = self.create(f"{name}-namespace", namespace(args.tenancy))
        # The update adopts an existing namespace, but fails here if it belongs to another stack.
        owned = self.create(
            f"{name}-limitrange-{LIMIT_RANGE}",
            limit_range(args.tenancy),
            self.options(after=[namespace_resource]),
        )
        in_namespace = self.options(after=[namespace_resource, owned])
        for manifest in manifests(args):
            resource_name = f"{name}-{manifest['kind'].lower()}-{manifest['metadata']['name']}"
            self.create(resource_name, manifest, in_namespace)
        if args.login is not None:
            self.create(f"{name}-registry", args.login.secret(self.namespace), in_namespace)
        if args.tenancy.admission != "off":
            # Imported here, because the rules increase a program's import time by 20%.
            from infra.admission import Admission, AdmissionArgs

            admission = AdmissionArgs(
                tenancy=args.tenancy, system_namespaces=args.system_namespaces
            )
            Admission(f"{name}-admission", admission, self.options())
        self.register_outputs({"namespace": self.namespace})


def system_namespaces(settings: StackSettings) -> tuple[str, ...]:
    """Return the namespaces that the stack creates for privileged pods."""
    monitoring = settings.monitoring
    chart, exporter = monitoring.kube_prometheus_stack, monitoring.dcgm_exporter
    installed = (
        (settings.gpu.system_namespace, True),
        (settings.volcano.namespace, settings.volcano.install),
        (chart.namespace, chart.install),
        (exporter.namespace, exporter.install and monitoring.prometheus != "none"),
    )
    return tuple(name for name, is_installed in installed if is_installed and name is not None)


def namespace(tenancy: TenancySettings) -> Manifest:
    """Return the namespace, which enforces the configured Pod Security Standard."""
    level = tenancy.pod_security
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": tenancy.namespace,
            "annotations": dict(ADOPTED),
            "labels": {
                **standard_labels("tenancy", tenancy.namespace),
                "pod-security.kubernetes.io/enforce": level,
                "pod-security.kubernetes.io/warn": level,
                "pod-security.kubernetes.io/audit": level,
            },
        },
    }


def manifests(args: TenancyArgs) -> list[Manifest]:
    """Return all objects in the namespace except the LimitRange and the pull secret."""
    tenancy = args.tenancy
    built = [
        *quotas(tenancy, args.gpu_resource),
        *service_accounts(tenancy, with_secret=args.login is not None),
        *team_access(tenancy),
    ]
    if tenancy.network.isolate:
        built += network_policies(
            tenancy, args.inference_ports, inference_groups=args.inference_groups
        )
    return built


def quotas(tenancy: TenancySettings, gpu_resource: str) -> list[Manifest]:
    """Return the ResourceQuota, or an empty list if no limit is set."""
    quota = tenancy.quota
    hard: dict[str, Any] = {
        **{f"requests.{name}": amount for name, amount in quota.devices.items()},
        f"requests.{gpu_resource}": quota.gpus,
        "requests.cpu": quota.cpu,
        "requests.memory": quota.memory,
        "limits.memory": quota.memory_limits,
        "pods": quota.pods,
        "persistentvolumeclaims": quota.claims,
    }
    limits = {name: str(amount) for name, amount in hard.items() if amount is not None}
    if not limits:
        return []
    return [_object("v1", "ResourceQuota", "workloads", tenancy, {"hard": limits})]


def limit_range(tenancy: TenancySettings) -> Manifest:
    """Return the LimitRange for containers.

    The LimitRange sets no CPU limit, because CPU throttling would leave GPUs idle.
    """
    limits = tenancy.limits
    return _object(
        "v1",
        "LimitRange",
        LIMIT_RANGE,
        tenancy,
        {
            "limits": [
                compact(
                    {
                        "type": "Container",
                        "defaultRequest": {
                            "cpu": limits.default_cpu,
                            "memory": limits.default_memory,
                        },
                        "default": {"memory": limits.default_memory},
                        "max": compact({"memory": limits.max_memory}),
                    }
                )
            ]
        },
    )


def service_accounts(tenancy: TenancySettings, *, with_secret: bool) -> list[Manifest]:
    """Return a service account for each kind of workload, without access to the API server."""
    accounts = []
    for name in SERVICE_ACCOUNTS:
        identity: IdentitySettings = getattr(tenancy.identities, name)
        account: Manifest = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": compact(
                {
                    "name": name,
                    "namespace": tenancy.namespace,
                    "labels": identity.labels,
                    "annotations": identity.annotations,
                }
            ),
            "automountServiceAccountToken": False,
        }
        if with_secret:
            account["imagePullSecrets"] = [{"name": PULL_SECRET}]
        accounts.append(account)
    return accounts


def network_policies(
    tenancy: TenancySettings, inference_ports: tuple[int, ...], *, inference_groups: bool = False
) -> list[Manifest]:
    """Return policies that deny all traffic except what the workloads need.

    The workloads need DNS, connections between training pods and within inference groups, requests
    to inference services, and egress to the configured ranges. Ray heads execute the commands that
    they receive, so only the NetworkPolicy of their run admits connections to them.
    """
    training = {"matchLabels": {WORKLOAD_LABEL: "training"}}
    ray_head = {"key": RAY_NODE_LABEL, "operator": "In", "values": ["head"]}
    inference = {"matchLabels": {WORKLOAD_LABEL: "inference"}}
    callers: list[Manifest] = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
        for name in tenancy.network.inference_from
    ] or [{"namespaceSelector": {}}]
    callers += [{"ipBlock": {"cidr": cidr}} for cidr in tenancy.network.inference_cidrs]
    policies: dict[str, Manifest] = {
        "default-deny": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
        "allow-dns": {
            "podSelector": {},
            "policyTypes": ["Egress"],
            "egress": [
                {
                    "ports": [
                        {"port": port, "protocol": protocol}
                        for port in DNS_PORTS
                        for protocol in ("UDP", "TCP")
                    ]
                }
            ],
        },
        "allow-training-gangs": {
            **_allow_within(training),
            "podSelector": {**training, "matchExpressions": [{**ray_head, "operator": "NotIn"}]},
        },
        "allow-ray-heads": {
            "podSelector": {**training, "matchExpressions": [ray_head]},
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": training}]}],
        },
    }
    additional_ports = tenancy.network.inference_ports
    if allowed_ports := {*inference_ports, *additional_ports}:
        ports = [{"port": port, "protocol": "TCP"} for port in sorted(allowed_ports)]
        policies["allow-inference"] = {
            "podSelector": inference,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": callers, "ports": ports}],
        }
    if inference_groups or additional_ports:
        policies["allow-inference-groups"] = _allow_within(
            {**inference, "matchExpressions": [{"key": ROLE_LABEL, "operator": "Exists"}]}
        )
    if tenancy.network.egress_cidrs:
        blocks = [{"ipBlock": {"cidr": cidr}} for cidr in tenancy.network.egress_cidrs]
        policies["allow-egress"] = {
            "podSelector": {},
            "policyTypes": ["Egress"],
            "egress": [{"to": blocks}],
        }
    return [
        _object("networking.k8s.io/v1", "NetworkPolicy", name, tenancy, spec)
        for name, spec in policies.items()
    ]


def _allow_within(pods: Manifest) -> Manifest:
    """Return the specification of a policy that allows connections between the selected pods."""
    return {
        "podSelector": pods,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
        "egress": [{"to": [{"podSelector": pods}]}],
    }


def _object(
    api_version: str, kind: str, name: str, tenancy: TenancySettings, spec: Manifest
) -> Manifest:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": tenancy.namespace},
        "spec": spec,
    }
