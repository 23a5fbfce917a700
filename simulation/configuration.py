"""Configuration from which kwokctl starts the control plane."""

import shlex
from dataclasses import dataclass
from pathlib import Path

SIMULATED_ANNOTATION = "kwok.x-k8s.io/node=fake"
# Time (s) from the last heartbeat of a real node until the node is NotReady.
NODE_GRACE_SECONDS = 16
# Time (s) that pods stay on a node that is not Ready before they are evicted.
EVICTION_SECONDS = 10
# With Kubernetes' default limits (20 to 50 requests per second), the controllers would need a
# minute to process a thousand new nodes, and the scheduler another minute to bind a thousand pods.
REQUESTS_PER_SECOND = 1000
COMPONENT_PORTS = [
    "etcdPort",
    "etcdPeerPort",
    "kubeControllerManagerPort",
    "kubeSchedulerPort",
    "kwokControllerPort",
]
PORTS = 1 + len(COMPONENT_PORTS)
"""Number of consecutive ports that a control plane on the loopback interface uses."""
ADMIN = "kwok-admin"
"""Common name of the certificate admin.crt that kwokctl creates."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def pki(home: Path) -> Path:
    """Return the directory of the certificates that kwokctl creates below its HOME."""
    return home / ".kwok" / "clusters" / "cluster" / "pki"


@dataclass(frozen=True)
class Settings:
    """Settings of a control plane. Without `address`, all nodes are simulated."""

    home: Path
    """HOME of kwokctl, with etcd's data, certificates and component logs."""
    logs: Path
    binaries: Path
    port: int
    """Port of the API server. Without `address`, other components use the ports that follow."""
    context: str
    """Name of the kubectl context."""
    kubernetes: str = "v1.34.3"
    services: str = "10.250.128.0/20"
    api_service: str = "10.250.128.1"
    address: str = ""
    """Address at which real nodes reach the API server.

    If empty, the API server listens only on the loopback interface.
    """

    @property
    def pki(self) -> Path:
        """Directory of kwokctl's certificates."""
        return pki(self.home)

    @property
    def kwok(self) -> Path:
        """Executable that kwokctl starts as kwok."""
        return self.binaries / "kwok" if self.address else self.home / "start-kwok"


def write_kwok_start(settings: Settings) -> None:
    """Write a start script for kwok that first deletes all node leases.

    kwok holds a lease for each simulated node, and every kwok process uses a new holder name. After
    a restart, kwok would not manage nodes and pods until the old leases expire, which takes
    minutes. The script is not used with real nodes, because kubelets hold leases, too.
    """
    kubeconfig = settings.pki.parent / "kubeconfig.yaml"
    kubectl = [str(settings.binaries / "kubectl"), f"--kubeconfig={kubeconfig}"]
    delete = shlex.join([*kubectl, "delete", f"--raw={LEASES}"])
    lines = [
        "#!/bin/sh",
        # kwokctl first runs the script with --version, before the API server is running.
        f'[ "$1" = --version ] || until {delete} >/dev/null 2>&1; do sleep 0.2; done',
        f'exec {shlex.quote(str(settings.binaries / "kwok"))} "$@"',
    ]
    settings.kwok.write_text("\n".join(lines) + "\n")
    settings.kwok.chmod(0o755)


def kwokctl_configuration(settings: Settings) -> dict[str, object]:
    """Return the KwokctlConfiguration (config.kwok.x-k8s.io/v1alpha1)."""
    real_nodes, binaries = bool(settings.address), settings.binaries
    names = [settings.address, settings.api_service] if real_nodes else [settings.api_service]
    # By default, kwokctl picks the first free ports. Two clusters that start at the same time could
    # pick the same ports.
    component_ports = (
        {}
        if real_nodes
        else {name: settings.port + offset for offset, name in enumerate(COMPONENT_PORTS, 1)}
    )
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokctlConfiguration",
        "options": {
            "runtime": "binary",
            "kubeVersion": settings.kubernetes,
            "kubeApiserverPort": settings.port,
            **component_ports,
            "bindAddress": "0.0.0.0" if real_nodes else "127.0.0.1",  # noqa: S104  in a namespace
            # Simulated nodes cannot fail, so they need few heartbeats.
            "heartbeatFactor": 1 if real_nodes else 20,
            "kubeApiserverCertSANs": names,
            "etcdBinary": str(binaries / "etcd"),
            "kubeApiserverBinary": str(binaries / "kube-apiserver"),
            "kubeControllerManagerBinary": str(binaries / "kube-controller-manager"),
            "kubeSchedulerBinary": str(binaries / "kube-scheduler"),
            "kwokControllerBinary": str(settings.kwok),
        },
        "componentsPatches": [
            _etcd(real_nodes=real_nodes),
            _api_server(settings),
            _controllers(settings.services, real_nodes=real_nodes),
            {"name": "kube-scheduler", "extraArgs": _single_replica_flags()},
            _kwok(),
        ],
    }


def _flag(key: str, value: str, *, override: bool = False) -> dict[str, object]:
    return {"key": key, "value": value, **({"override": True} if override else {})}


def _etcd(*, real_nodes: bool) -> dict[str, object]:
    # With simulated nodes, data loss is harmless, so etcd does not flush each write to disk.
    flags = [] if real_nodes else [_flag("unsafe-no-fsync", "true")]
    return {"name": "etcd", "extraArgs": flags}


def _api_server(settings: Settings) -> dict[str, object]:
    flags = [
        _flag("service-cluster-ip-range", settings.services),
        _flag("default-not-ready-toleration-seconds", str(EVICTION_SECONDS)),
        _flag("default-unreachable-toleration-seconds", str(EVICTION_SECONDS)),
    ]
    if settings.address:
        flags += [
            _flag("advertise-address", settings.address),
            _flag("kubelet-client-certificate", str(settings.pki / "admin.crt")),
            _flag("kubelet-client-key", str(settings.pki / "admin.key")),
            _flag("kubelet-preferred-address-types", "InternalIP"),
            *_aggregation(settings),
        ]
        return {"name": "kube-apiserver", "extraArgs": flags}
    # Kubernetes 1.35 and later enable this gate by default. It stays disabled for real nodes,
    # because Debian's containerd cannot mount images.
    flags.append(_flag("feature-gates", "ImageVolume=true"))
    # With Go's default (100), a busy API server spends an eighth of its time on garbage collection.
    environment = [{"name": "GOGC", "value": "300"}]
    return {"name": "kube-apiserver", "extraArgs": flags, "extraEnvs": environment}


def _aggregation(settings: Settings) -> list[dict[str, object]]:
    """Return the flags that let aggregated API servers, such as KEDA's, identify callers."""
    return [
        _flag("proxy-client-cert-file", str(settings.pki / "admin.crt")),
        _flag("proxy-client-key-file", str(settings.pki / "admin.key")),
        _flag("requestheader-client-ca-file", str(settings.pki / "ca.crt")),
        _flag("requestheader-allowed-names", ADMIN),
        _flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        _flag("requestheader-group-headers", "X-Remote-Group"),
        _flag("requestheader-username-headers", "X-Remote-User"),
    ]


def _controllers(services: str, *, real_nodes: bool) -> dict[str, object]:
    flags = [
        *_single_replica_flags(),
        _flag("service-cluster-ip-range", services),
        # A claim that is created right after its volume may not be bound until the next sync.
        _flag("pvclaimbinder-sync-period", "1s"),
    ]
    if real_nodes:
        grace = f"{NODE_GRACE_SECONDS}s"
        flags.append(_flag("node-monitor-grace-period", grace, override=True))
    else:
        # Batch the endpoint updates of a service whose pods start one after another.
        flags.append(_flag("endpointslice-updates-batch-period", "500ms"))
        flags.append(_flag("endpoint-updates-batch-period", "500ms"))
    return {"name": "kube-controller-manager", "extraArgs": flags}


def _single_replica_flags() -> list[dict[str, object]]:
    """Return flags that disable leader election and raise the request limits of a component.

    Each component has a single replica. With leader election, it would wait until the lease of a
    previous process expires, and it would exit if it failed to renew its lease in time, for example
    after a laptop was suspended.
    """
    return [
        _flag("leader-elect", "false"),
        _flag("kube-api-qps", str(REQUESTS_PER_SECOND)),
        _flag("kube-api-burst", str(2 * REQUESTS_PER_SECOND)),
    ]


def _kwok() -> dict[str, object]:
    flags = [
        _flag("manage-all-nodes", "false", override=True),
        _flag("manage-nodes-with-annotation-selector", SIMULATED_ANNOTATION),
    ]
    return {"name": "kwok-controller", "extraArgs": flags}
