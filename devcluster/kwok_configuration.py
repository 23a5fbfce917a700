"""What kwokctl is told of a cluster's control plane (pure)."""

from pathlib import Path

from devcluster import kwok_start
from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, Kind

SIMULATED_ANNOTATION = "kwok.x-k8s.io/node=fake"
# A real node that stops reporting is NotReady after this, and its pods are evicted after the next.
NODE_GRACE_SECONDS = 16
EVICTION_SECONDS = 10
# Kubernetes' own limits (20 to 50 a second) would be what is measured of a thousand nodes: that
# many are admitted by the controllers, and get pods from the scheduler, for a minute.
REQUESTS_PER_SECOND = 1000


def _flag(key: str, value: str, *, override: bool = False) -> dict[str, object]:
    return {"key": key, "value": value, **({"override": True} if override else {})}


def kwokctl_configuration(
    spec: ClusterSpec, layout: Layout, binaries: Path, api_port: int
) -> dict[str, object]:
    """KwokctlConfiguration (config.kwok.x-k8s.io/v1alpha1) of the cluster."""
    real = spec.kind is Kind.REAL
    network = spec.network
    names = [spec.control_plane.address, network.api_service] if real else [network.api_service]
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokctlConfiguration",
        "options": {
            "runtime": "binary",
            "kubeVersion": spec.kubernetes,
            "kubeApiserverPort": api_port,
            "bindAddress": "0.0.0.0" if real else "127.0.0.1",  # noqa: S104 - inside a namespace
            # Nodes that cannot fail report seldom, and have long before they count as lost.
            "heartbeatFactor": 1 if real else 20,
            "kubeApiserverCertSANs": names,
            "etcdBinary": str(binaries / "etcd"),
            "kubeApiserverBinary": str(binaries / "kube-apiserver"),
            "kubeControllerManagerBinary": str(binaries / "kube-controller-manager"),
            "kubeSchedulerBinary": str(binaries / "kube-scheduler"),
            "kwokControllerBinary": str(kwok_binary(spec, layout, binaries)),
        },
        "componentsPatches": [
            _etcd(real=real),
            _api_server(spec, layout),
            _controllers(network.services, real=real),
            {"name": "kube-scheduler", "extraArgs": _single()},
            _kwok(),
        ],
    }


def kwok_binary(spec: ClusterSpec, layout: Layout, binaries: Path) -> Path:
    """What kwokctl starts as kwok: with simulated nodes a program that gives it their leases."""
    return binaries / "kwok" if spec.kind is Kind.REAL else kwok_start.program(layout)


def _etcd(*, real: bool) -> dict[str, object]:
    # Nodes and jobs that exist in books only are not worth a wait for the disk at every write.
    flags = [] if real else [_flag("unsafe-no-fsync", "true")]
    return {"name": "etcd", "extraArgs": flags}


def _api_server(spec: ClusterSpec, layout: Layout) -> dict[str, object]:
    flags = [
        _flag("service-cluster-ip-range", spec.network.services),
        _flag("default-not-ready-toleration-seconds", str(EVICTION_SECONDS)),
        _flag("default-unreachable-toleration-seconds", str(EVICTION_SECONDS)),
    ]
    if spec.kind is Kind.REAL:
        flags += [
            _flag("advertise-address", spec.control_plane.address),
            _flag("kubelet-client-certificate", str(layout.pki / "admin.crt")),
            _flag("kubelet-client-key", str(layout.pki / "admin.key")),
            _flag("kubelet-preferred-address-types", "InternalIP"),
        ]
        return {"name": "kube-apiserver", "extraArgs": flags}
    # An eighth of the time of an API server that is kept busy goes to garbage collection otherwise.
    environment = [{"name": "GOGC", "value": "300"}]
    return {"name": "kube-apiserver", "extraArgs": flags, "extraEnvs": environment}


def _controllers(services: str, *, real: bool) -> dict[str, object]:
    flags = [
        *_single(),
        _flag("service-cluster-ip-range", services),
        # A claim made right after its volume may miss it, and waits for the next look.
        _flag("pvclaimbinder-sync-period", "1s"),
    ]
    if real:
        grace = f"{NODE_GRACE_SECONDS}s"
        flags.append(_flag("node-monitor-grace-period", grace, override=True))
    else:
        # A service whose pods start one after the other is written down once, not for each.
        flags.append(_flag("endpointslice-updates-batch-period", "500ms"))
        flags.append(_flag("endpoint-updates-batch-period", "500ms"))
    return {"name": "kube-controller-manager", "extraArgs": flags}


def _single() -> list[dict[str, object]]:
    """Of controllers and scheduler there is one: it need not wait for the lease of the one before.

    Nor does it end when the API server did not take its own in time, as on a laptop that slept.
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
