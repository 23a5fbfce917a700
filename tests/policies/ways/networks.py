"""Ways to expose ports publicly, and disruption budgets that do not protect a replica."""

from tests.policies.harness import REMOVED
from tests.policies.ways.tenants import WEB, added
from tests.policies.ways.way import way

WAYS = [
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
