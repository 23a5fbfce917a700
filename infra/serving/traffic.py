"""Services, routes and disruption budgets of inference services.

In Gateway API v1, requests fail if the weights assign them to a backend without ready pods
(HTTPRoute, backendRefs). A route may therefore refer to a canary only when the canary's pods are
ready.
"""

from collections.abc import Mapping
from typing import Final

from infra.manifests import NOT_AWAITED, Manifest, compact
from infra.serving.description import LEADER_LABEL, InferenceServiceArgs, Version, metadata
from infra.serving.rollback import identity
from infra.settings.inference.access import GatewaySettings, IngressSettings, RouteSettings
from kube.names import GATEWAY_GROUP

_NGINX: Final = "nginx.ingress.kubernetes.io"


def http_route(
    args: InferenceServiceArgs, route: RouteSettings, gateway: GatewaySettings
) -> Manifest:
    """Return the HTTPRoute, which splits requests by weight."""
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": route.path}}],
        "filters": _prefix_filters(route.path),
        "backendRefs": _http_backends(args, shares(args)),
    }
    return {
        "apiVersion": f"{GATEWAY_GROUP}/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(args, args.stable, identity(args)),
        "spec": compact(
            {
                "parentRefs": [gateway.parent_reference],
                "hostnames": list(route.hostnames) or None,
                "rules": [compact(rule)],
            }
        ),
    }


def grpc_route(
    args: InferenceServiceArgs, route: RouteSettings, gateway: GatewaySettings
) -> Manifest:
    """Return the GRPCRoute, which splits calls by the same weights as the HTTPRoute."""
    return {
        "apiVersion": f"{GATEWAY_GROUP}/v1",
        "kind": "GRPCRoute",
        "metadata": metadata(args, args.stable, identity(args)),
        "spec": {
            "parentRefs": [gateway.parent_reference],
            "hostnames": list(route.grpc_hostnames),
            "rules": [{"backendRefs": _grpc_backends(args, shares(args))}],
        },
    }


def _http_backends(args: InferenceServiceArgs, weights: Mapping[str, int]) -> list[Manifest]:
    port = args.service.port
    return [{"name": name, "port": port, "weight": weight} for name, weight in weights.items()]


def _grpc_backends(args: InferenceServiceArgs, weights: Mapping[str, int]) -> list[Manifest]:
    ports = {
        version.name: version.runtime.endpoints.grpc_port
        for version in (args.stable, args.canary)
        if version is not None
    }
    return [
        {"name": name, "port": ports[name], "weight": weight} for name, weight in weights.items()
    ]


def stable_backends(args: InferenceServiceArgs) -> dict[str, list[Manifest]]:
    """Return the backends for each kind of route when the stable version gets all requests."""
    all_requests, route = {args.key: 100}, args.service.route
    backends = {"HTTPRoute": _http_backends(args, all_requests)}
    if route is not None and route.grpc_hostnames:
        backends["GRPCRoute"] = _grpc_backends(args, all_requests)
    return backends


def shares(args: InferenceServiceArgs) -> dict[str, int]:
    """Return the percentage of requests for each Service, omitting Services that get none."""
    canary, settings = args.canary, args.service.canary
    if canary is None or settings is None:
        return {args.key: 100}
    weights = {args.key: 100 - settings.weight, canary.name: settings.weight}
    return {name: weight for name, weight in weights.items() if weight > 0}


def ingresses(
    args: InferenceServiceArgs, route: RouteSettings, ingress: IngressSettings
) -> list[Manifest]:
    """Return an Ingress for each version. ingress-nginx reads the canary's annotations."""
    built = [_ingress(args, args.stable, route, ingress, {})]
    canary, settings = args.canary, args.service.canary
    if canary is not None and settings is not None:
        weight = {f"{_NGINX}/canary": "true", f"{_NGINX}/canary-weight": str(settings.weight)}
        built.append(_ingress(args, canary, route, ingress, weight))
    return built


def _ingress(
    args: InferenceServiceArgs,
    version: Version,
    route: RouteSettings,
    ingress: IngressSettings,
    annotations: Mapping[str, str],
) -> Manifest:
    backend = {"service": {"name": version.name, "port": {"name": "http"}}}
    paths = {"paths": [{"path": route.path, "pathType": "Prefix", "backend": backend}]}
    hosts = [{"host": name} for name in route.hostnames] or [{}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": metadata(args, version, {**NOT_AWAITED, **annotations}),
        "spec": {
            "ingressClassName": ingress.class_name,
            "rules": [{**host, "http": paths} for host in hosts],
        },
    }


def _prefix_filters(path: str) -> list[Manifest] | None:
    """Return the filter that removes the prefix from request paths, or None if the prefix is /."""
    if path == "/":
        return None
    rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
    return [{"type": "URLRewrite", "urlRewrite": rewrite}]


def service(args: InferenceServiceArgs, version: Version, annotations: dict[str, str]) -> Manifest:
    """Return the Service for a version."""
    settings = args.service
    ports: list[Manifest] = [
        {"name": "http", "port": settings.port, "targetPort": "http", "protocol": "TCP"}
    ]
    if (grpc := version.runtime.endpoints.grpc_port) is not None:
        # Gateways use HTTP/2 for connections to the pods only if the port declares this protocol.
        h2c = {"protocol": "TCP", "appProtocol": "kubernetes.io/h2c"}
        ports.append({"name": "grpc", "port": grpc, "targetPort": "grpc", **h2c})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(args, version, annotations),
        "spec": {
            "type": settings.service_type if version.name == args.key else "ClusterIP",
            "selector": version.selector
            if version.runtime.nodes == 1
            else {**version.selector, **LEADER_LABEL},
            "ports": ports,
        },
    }


def disruption_budget(args: InferenceServiceArgs, version: Version) -> Manifest:
    """Return the PodDisruptionBudget, which limits unavailable pods while nodes are drained.

    A canary may have fewer replicas than the service. If it has several, one stays available,
    because requests to a backend without ready pods fail.
    """
    limit = args.service.max_unavailable
    if version.replicas is not None:
        limit = min(limit, max(version.replicas - 1, 1))
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(args, version),
        "spec": {
            "maxUnavailable": limit,
            # A service whose model is missing may be unready for days, and must not block node
            # upgrades.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": version.selector},
        },
    }
