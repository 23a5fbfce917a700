"""Ways to expose ports publicly, and disruption budgets that do not protect a replica."""

from typing import Any

from tests.policies.harness import REMOVED
from tests.policies.ways.tenants import WEB, added
from tests.policies.ways.way import Way, way

HOST = "a.example.com"
ENCRYPTED = {"tls": [{"hosts": [HOST], "secretName": "tls"}], "rules": [{"host": HOST}]}


def ingress(description: str, annotations: dict[str, str], **spec: Any) -> Way:
    """Return an edit that adds an Ingress."""
    return added(
        description,
        "networking.k8s.io/v1",
        "Ingress",
        "service-not-public",
        metadata={"annotations": annotations},
        spec=spec or ENCRYPTED,
    )


def entry_point(description: str, version: str, kind: str, **spec: Any) -> Way:
    """Return an edit that adds an object that makes ports public."""
    return added(description, version, kind, "service-not-public", spec=spec)


WAYS = [
    # names and addresses of nodes and metadata servers
    *(
        entry_point(
            f"a Service for {name}", "v1", "Service", type="ExternalName", externalName=name
        )
        for name in ("localhost", "instance-data.ec2.internal", "100.100.100.200")
    ),
    *(
        added(
            f"endpoints at {address}",
            "discovery.k8s.io/v1",
            "EndpointSlice",
            "service-not-public",
            endpoints=[{"addresses": [address]}],
        )
        for address in ("100.100.100.200", "fd00:ec2::254")
    ),
    # entry points
    *(
        ingress(f"an Ingress with the annotation {name}", {name: value})
        for name, value in (
            ("nginx.org/server-snippets", "location / {}"),
            ("haproxy-ingress.github.io/config-backend", "http-request lua.a"),
            ("alb.ingress.kubernetes.io/listen-ports", '[{"HTTP": 80}]'),
            ("tailscale.com/funnel", "true"),
        )
    ),
    ingress(
        "an Ingress with a host two labels below a wildcard certificate",
        {},
        tls=[{"hosts": ["*.example.com"], "secretName": "tls"}],
        rules=[{"host": "a.b.example.com"}],
    ),
    ingress("an Ingress with an empty TLS entry", {}, tls=[{}], rules=[{"host": HOST}]),
    ingress(
        "an Ingress with TLS for another host",
        {},
        tls=[{"hosts": ["*.example.net"], "secretName": "tls"}],
        rules=[{"host": HOST}],
    ),
    entry_point(
        "a Gateway of GKE's older external class",
        "gateway.networking.k8s.io/v1",
        "Gateway",
        gatewayClassName="gke-l7-gxlb",
        listeners=[{"name": "a", "protocol": "HTTPS", "port": 443}],
    ),
    entry_point(
        "an additional listener without TLS",
        "gateway.networking.x-k8s.io/v1alpha1",
        "XListenerSet",
        listeners=[{"name": "a", "protocol": "HTTP", "port": 80}],
    ),
    *(
        entry_point(f"a {kind} without TLS", version, kind, routes=[])
        for version, kind in (
            ("traefik.io/v1alpha1", "IngressRouteTCP"),
            ("configuration.konghq.com/v1beta1", "TCPIngress"),
            ("k8s.nginx.org/v1", "VirtualServer"),
        )
    ),
    entry_point(
        "a public class of Ingresses",
        "elbv2.k8s.aws/v1beta1",
        "IngressClassParams",
        scheme="internet-facing",
    ),
    entry_point(
        "a public listener of Kafka",
        "kafka.strimzi.io/v1beta2",
        "Kafka",
        kafka={"listeners": [{"name": "a", "port": 9094, "type": "loadbalancer"}]},
    ),
    entry_point(
        "a public database",
        "psmdb.percona.com/v1",
        "PerconaServerMongoDB",
        replsets=[{"name": "a", "expose": {"enabled": True, "type": "LoadBalancer"}}],
    ),
    # networks
    way("a NodePort Service", WEB, "service-not-public", ("2/spec/type", "NodePort")),
    way("a load balancer", WEB, "service-not-public", ("2/spec/type", "LoadBalancer")),
    way(
        "an external IP address",
        WEB,
        "service-not-public",
        ("2/spec/externalIPs", ["192.0.2.1"]),
    ),
    way(
        "a load balancer for Ray's head",
        "ray_cluster_cpu",
        "service-not-public",
        ("0/spec/headGroupSpec/serviceType", "LoadBalancer"),
    ),
    way(
        "a NodePort for Ray's head",
        "ray_cluster_cpu",
        "service-not-public",
        ("0/spec/headGroupSpec/serviceType", "NodePort"),
    ),
    way(
        "an Ingress for Ray's head",
        "ray_cluster_cpu",
        "",
        ("0/spec/headGroupSpec/enableIngress", True),
    ),
    way(
        "a public Service for Ray's head",
        "ray_cluster_cpu",
        "service-not-public",
        ("0/spec/headGroupSpec/headService", {"spec": {"type": "LoadBalancer"}}),
    ),
    way(
        "a public Service for Ray Serve",
        "ray_service",
        "service-not-public",
        ("0/spec/serveService", {"spec": {"type": "LoadBalancer"}}),
    ),
    way(
        "a public Service for a NIM",
        "nim_service",
        "service-not-public",
        ("0/spec/expose/service/type", "LoadBalancer"),
    ),
    way(
        "an Ingress for a NIM",
        "nim_service",
        "",
        (
            "0/spec/expose/ingress",
            {"enabled": True, "spec": {"rules": [{"host": "a.example.com"}]}},
        ),
    ),
    way(
        "an Ingress for Dynamo",
        "dynamo_services",
        "",
        ("0/spec/services/Frontend/ingress", {"enabled": True, "host": "a.example.com"}),
    ),
    added(
        "an Ingress without TLS",
        "networking.k8s.io/v1",
        "Ingress",
        spec={
            "rules": [
                {
                    "host": "a.example.com",
                    "http": {
                        "paths": [
                            {
                                "path": "/",
                                "pathType": "Prefix",
                                "backend": {"service": {"name": "web", "port": {"number": 80}}},
                            }
                        ]
                    },
                }
            ]
        },
    ),
    way(
        "an internet-facing Ingress",
        WEB,
        "",
        (
            "4",
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "Ingress",
                "metadata": {
                    "name": "a",
                    "namespace": "web",
                    "annotations": {"alb.ingress.kubernetes.io/scheme": "internet-facing"},
                },
                "spec": {
                    "tls": [{"hosts": ["a.example.com"], "secretName": "t"}],
                    "rules": [{"host": "a.example.com"}],
                },
            },
        ),
    ),
    way(
        "a Gateway without TLS",
        "gateway_http_route",
        "",
        ("0/spec/listeners/0", {"name": "http", "port": 80, "protocol": "HTTP"}),
    ),
    way(
        "a route to a Service that does not exist",
        "gateway_http_route",
        "route-backends-declared",
        ("2/spec/rules/0/backendRefs/0/name", "other"),
    ),
    way(
        "a TCPRoute to a Service that does not exist",
        "gateway_http_route",
        "route-backends-declared",
        ("2/kind", "TCPRoute"),
        ("2/apiVersion", "gateway.networking.k8s.io/v1alpha2"),
        ("2/spec/rules/0/backendRefs/0/name", "other"),
    ),
    # availability
    way(
        "a disruption budget with maxUnavailable 100%",
        "vllm_tensor_parallel",
        "inference-disruption-budget",
        ("1/spec/maxUnavailable", "100%"),
        inference_disruption_budget="mandatory",
    ),
    way(
        "a disruption budget with minAvailable zero",
        "vllm_tensor_parallel",
        "inference-disruption-budget",
        (
            "1/spec",
            {"minAvailable": 0, "selector": {"matchLabels": {"app.kubernetes.io/name": "vllm"}}},
        ),
        inference_disruption_budget="mandatory",
    ),
    way(
        "a disruption budget that allows all replicas to be evicted",
        "vllm_tensor_parallel",
        "inference-disruption-budget",
        ("1/spec/maxUnavailable", 2),
        inference_disruption_budget="mandatory",
    ),
    way(
        "a disruption budget that selects no pods",
        "vllm_tensor_parallel",
        "inference-disruption-budget",
        ("1/spec/selector/matchLabels", {"a": "b"}),
        inference_disruption_budget="mandatory",
    ),
    way(
        "a disruption budget with an expression that matches no pods",
        "vllm_tensor_parallel",
        "inference-disruption-budget",
        (
            "1/spec/selector",
            {
                "matchExpressions": [
                    {"key": "app.kubernetes.io/name", "operator": "In", "values": ["other"]}
                ]
            },
        ),
        inference_disruption_budget="mandatory",
    ),
    way(
        "replicas spread over operating systems",
        "vllm_tensor_parallel",
        "inference-spread",
        ("0/spec/template/spec/topologySpreadConstraints/0/topologyKey", "kubernetes.io/os"),
        inference_spread="mandatory",
    ),
    way(
        "replicas with another label",
        "vllm_tensor_parallel",
        "inference-spread",
        ("0/spec/template/spec/topologySpreadConstraints/0/labelSelector/matchLabels", {"a": "b"}),
        inference_spread="mandatory",
    ),
    way(
        "replicas on one node through affinity",
        "vllm_tensor_parallel",
        "inference-spread",
        ("0/spec/template/spec/topologySpreadConstraints", REMOVED),
        (
            "0/spec/template/spec/affinity",
            {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        ),
        inference_spread="mandatory",
    ),
    way(
        "a StatefulSet without a disruption budget",
        "vllm_stateful_cache",
        "inference-disruption-budget",
        ("1/spec/selector/matchLabels", {"a": "b"}),
        inference_disruption_budget="mandatory",
    ),
    way(
        "a Rollout without a disruption budget",
        "argo_rollout",
        "inference-disruption-budget",
        ("1/spec/selector/matchLabels", {"a": "b"}),
        inference_disruption_budget="mandatory",
    ),
]

HARMLESS = [
    ingress("an Ingress with TLS", {}),
    ingress(
        "an Ingress with a wildcard certificate",
        {},
        tls=[{"hosts": ["*.example.com"], "secretName": "tls"}],
        rules=[{"host": HOST}],
    ),
    ingress(
        "an Ingress for a wildcard",
        {},
        tls=[{"hosts": ["*.example.com"], "secretName": "tls"}],
        rules=[{"host": "*.example.com"}],
    ),
    ingress(
        "an Ingress whose certificate determines the hosts",
        {},
        tls=[{"secretName": "tls"}],
        rules=[{"host": HOST}],
    ),
    ingress(
        "an internal Ingress that redirects HTTP",
        {"alb.ingress.kubernetes.io/listen-ports": '[{"HTTP": 80}, {"HTTPS": 443}]'},
    ),
    entry_point(
        "an internal listener of Kafka",
        "kafka.strimzi.io/v1beta2",
        "Kafka",
        kafka={"listeners": [{"name": "a", "port": 9092, "type": "internal"}]},
    ),
]
"""Entry points with TLS inside the cluster."""
