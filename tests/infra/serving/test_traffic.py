from typing import Any

from infra.inference_service import build, build_canary, routes
from tests.infra.serving.examples import (
    CANARY,
    DIGEST,
    GATEWAY,
    canary_objects,
    container,
    environment,
    objects,
    pod,
    serving,
)
from tests.policies.harness import judge


def test_a_service_without_a_route_is_reached_by_its_service_alone() -> None:
    assert routes(serving()) == []


def test_a_route_is_attached_to_its_gateway() -> None:
    gateway = {"name": "public", "namespace": "gateways", "section": "https"}
    route = {"gateway": gateway, "hostnames": ["digits.example.com"]}
    spec = objects(serving(route=route))["HTTPRoute"]["spec"]
    assert spec["parentRefs"] == [
        {"name": "public", "namespace": "gateways", "sectionName": "https"}
    ]
    assert spec["hostnames"] == ["digits.example.com"]
    assert shares(serving(route=route)) == {"digits": 100}


def test_a_prefix_is_removed_before_the_server_sees_it() -> None:
    (rule,) = objects(serving(route={**GATEWAY, "path": "/digits"}))["HTTPRoute"]["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/digits"}}]
    assert rule["filters"][0]["urlRewrite"]["path"]["replacePrefixMatch"] == "/"


def test_a_canary_gets_its_share() -> None:
    assert shares(serving(route=GATEWAY, canary=CANARY)) == {"digits": 80, "digits-canary": 20}


def test_weight_0_sends_no_requests_to_the_canary_and_weight_100_all() -> None:
    none, all_of_them = (
        serving(route=GATEWAY, canary={**CANARY, "weight": weight}) for weight in (0, 100)
    )
    assert shares(none) == {"digits": 100}
    assert shares(all_of_them) == {"digits-canary": 100}


def test_pulumi_waits_for_the_canary_and_not_for_the_stable_version() -> None:
    described = serving(route=GATEWAY, canary=CANARY, progress_deadline_seconds=90)
    for manifest in build_canary(described):
        annotations = manifest["metadata"]["annotations"]
        assert annotations == {"pulumi.com/timeoutSeconds": "90"}
    assert [manifest["kind"] for manifest in build_canary(described)] == ["Deployment", "Service"]


def test_a_canary_is_the_same_service_with_another_run() -> None:
    described = serving(route=GATEWAY, canary=CANARY, digest=DIGEST)
    found = canary_objects(described)["Deployment"]
    (server,) = pod(found)["containers"]
    env, stable = environment(server), environment(container(described))
    assert env["INFERENCE_MODEL_PATH"] == "/models/digits-4567cdef/export"
    assert "INFERENCE_MODEL_SHA256" not in env
    assert env["INFERENCE_MODEL_NAME"] == stable["INFERENCE_MODEL_NAME"]
    assert server["image"] == "image"
    assert found["spec"]["replicas"] == 1


def test_a_canary_may_be_another_image_or_configuration_of_the_same_model() -> None:
    canary = {"weight": 5, "image": "inference", "server": {"max_body_bytes": 2048}}
    described = serving(route=GATEWAY, canary=canary, digest=DIGEST, server={"notice_seconds": 1})
    (server,) = pod(canary_objects(described)["Deployment"])["containers"]
    env = environment(server)
    assert server["image"] == "other-image"
    assert env["INFERENCE_MODEL_SHA256"] == DIGEST
    assert env["INFERENCE_MAX_BODY_BYTES"] == "2048"
    assert env["INFERENCE_NOTICE_SECONDS"] == "1.0"


def test_every_selector_distinguishes_the_pods_of_versions() -> None:
    described = serving(route=GATEWAY, canary={**CANARY, "replicas": 2}, replicas=2)
    stable, canary = (
        {manifest["kind"]: manifest for manifest in built}
        for built in (build(described), build_canary(described))
    )
    labels = stable["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind, path in (
        ("Deployment", ("selector", "matchLabels")),
        ("Service", ("selector",)),
        ("PodDisruptionBudget", ("selector", "matchLabels")),
    ):
        selector = canary[kind]["spec"]
        for part in path:
            selector = selector[part]
        assert not selector.items() <= labels.items(), kind


def test_older_clusters_split_requests_by_the_annotations_of_ingress_nginx() -> None:
    route = {"ingress": {"class_name": "nginx"}, "hostnames": ["digits.example.com"]}
    stable, canary = routes(serving(route=route, canary=CANARY))
    assert stable["spec"]["rules"][0]["host"] == "digits.example.com"
    assert stable["spec"]["rules"][0]["http"]["paths"][0]["backend"] == backend("digits")
    assert canary["spec"]["rules"][0]["http"]["paths"][0]["backend"] == backend("digits-canary")
    annotations = canary["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/canary"] == "true"
    assert annotations["nginx.ingress.kubernetes.io/canary-weight"] == "20"


def test_the_policies_accept_ingresses_that_they_allow_by_name() -> None:
    route = {"ingress": {"class_name": "nginx"}}
    built = routes(serving(route=route, canary=CANARY))
    assert len(judge("service-not-public", *built)) == 2
    allowed = [f"ml/Ingress/{each['metadata']['name']}" for each in built]
    assert judge("service-not-public", *built, config={"allowedServices": allowed}) == []


def backend(name: str) -> dict[str, Any]:
    return {"service": {"name": name, "port": {"name": "http"}}}


def shares(described: Any) -> dict[str, int]:
    (rule,) = objects(described)["HTTPRoute"]["spec"]["rules"]
    assert {backend["port"] for backend in rule["backendRefs"]} == {8080}
    return {backend["name"]: backend["weight"] for backend in rule["backendRefs"]}


def test_pods_that_are_not_ready_may_be_evicted() -> None:
    budget = objects(serving())["PodDisruptionBudget"]["spec"]
    # Without it, a service that waits for its model blocks every drain of its nodes.
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
