"""Rules about new versions: their assumptions, and objects that they do not evaluate."""

from tests.policies import manifests
from tests.policies.harness import changed, judge


def test_a_route_may_send_to_what_the_configuration_names() -> None:
    elsewhere = changed(
        manifests.http_route(), ("spec/rules/0/backendRefs/0/name", "of-another-stack")
    )
    assert judge("route-backends-declared", elsewhere)
    named = {"existingServices": ["training/of-another-stack"]}
    assert not judge("route-backends-declared", elsewhere, config=named)


def test_an_ingress_is_evaluated_like_a_route() -> None:
    backend = {"service": {"name": "nowhere", "port": {"name": "http"}}}
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": manifests.metadata("server"),
        "spec": {"rules": [{"http": {"paths": [{"path": "/", "backend": backend}]}}]},
    }
    (message,) = judge("route-backends-declared", ingress, manifests.service())
    assert 'service.name: found "nowhere"' in str(message)


def test_services_of_other_namespaces_and_other_kinds_are_not_evaluated() -> None:
    route = manifests.http_route()
    route["spec"]["rules"][0]["backendRefs"] = [
        {"name": "nowhere", "namespace": "elsewhere"},
        {"name": "nowhere", "kind": "InferencePool", "group": "inference.networking.k8s.io"},
    ]
    assert not judge("route-backends-declared", route)


def test_kubernetes_rounds_a_share_of_few_pods_down_to_none() -> None:
    assert not judge("inference-rolling-update", manifests.deployment())


def test_without_a_pause_or_known_seconds_the_default_grace_is_enough() -> None:
    assert not judge("inference-grace-period", manifests.deployment())
