"""Rules for rollouts: their defaults, and objects that they do not evaluate."""

from policies.catalogue import RULES_BY_NAME
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


def test_remediation_of_rolling_updates_does_not_contradict_the_message() -> None:
    # Without a surge, the API server rejects maxUnavailable 0.
    update = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}
    server = changed(manifests.deployment(), ("spec/strategy", update))
    (message,) = evaluate_rule("inference-rolling-update", server)
    assert "maxUnavailable: found 2; write 1" in message
    assert "maxUnavailable 0" not in RULES_BY_NAME["inference-rolling-update"].remediation


def test_default_grace_period_is_sufficient_without_known_drain_times() -> None:
    assert not evaluate_rule("inference-grace-period", manifests.deployment())
