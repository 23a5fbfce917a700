"""Rules for rollouts: their defaults, and objects that they do not evaluate."""

from tests.policies import manifests
from tests.policies.harness import changed, evaluate_rule


def test_route_may_use_services_listed_in_the_configuration() -> None:
    route = changed(manifests.http_route(), ("spec/rules/0/backendRefs/0/name", "of-another-stack"))
    assert evaluate_rule("route-backends-declared", route)
    config = {"existingServices": ["training/of-another-stack"]}
    assert not evaluate_rule("route-backends-declared", route, config=config)


def test_an_ingress_is_evaluated_like_a_route() -> None:
    backend = {"service": {"name": "nowhere", "port": {"name": "http"}}}
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": manifests.metadata("server"),
        "spec": {"rules": [{"http": {"paths": [{"path": "/", "backend": backend}]}}]},
    }
    (message,) = evaluate_rule("route-backends-declared", ingress, manifests.service())
    assert 'service.name: found "nowhere"' in str(message)


def test_route_backends_in_other_namespaces_or_of_other_kinds_are_not_evaluated() -> None:
    route = manifests.http_route()
    route["spec"]["rules"][0]["backendRefs"] = [
        {"name": "nowhere", "namespace": "route"},
        {"name": "nowhere", "kind": "InferencePool", "group": "inference.networking.k8s.io"},
    ]
    assert not evaluate_rule("route-backends-declared", route)


def test_default_max_unavailable_is_rounded_down_to_zero_for_few_replicas() -> None:
    assert not evaluate_rule("inference-rolling-update", manifests.deployment())


def test_default_grace_period_is_sufficient_without_known_drain_times() -> None:
    assert not evaluate_rule("inference-grace-period", manifests.deployment())
