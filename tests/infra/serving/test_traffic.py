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
from tests.policies.harness import evaluate_rule


def test_service_without_a_route_setting_has_no_route() -> None:
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


def test_path_prefix_is_removed_before_requests_reach_the_server() -> None:
    (rule,) = objects(serving(route={**GATEWAY, "path": "/digits"}))["HTTPRoute"]["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/digits"}}]
    assert rule["filters"][0]["urlRewrite"]["path"]["replacePrefixMatch"] == "/"


def test_canary_gets_its_share_of_requests() -> None:
    assert shares(serving(route=GATEWAY, canary=CANARY)) == {"digits": 80, "digits-canary": 20}


def test_weight_0_and_100_send_all_requests_to_one_version() -> None:
    stable_only, canary_only = (
        serving(route=GATEWAY, canary={**CANARY, "weight": weight}) for weight in (0, 100)
    )
    assert shares(stable_only) == {"digits": 100}
    assert shares(canary_only) == {"digits-canary": 100}


def test_pulumi_waits_only_for_the_canary() -> None:
    args = serving(route=GATEWAY, canary=CANARY, progress_deadline_seconds=90)
    for manifest in build_canary(args):
        annotations = manifest["metadata"]["annotations"]
        assert annotations == {"pulumi.com/timeoutSeconds": "90"}
    assert [manifest["kind"] for manifest in build_canary(args)] == ["Deployment", "Service"]


def test_canary_differs_from_the_service_only_in_its_run() -> None:
    args = serving(route=GATEWAY, canary=CANARY, digest=DIGEST)
    found = canary_objects(args)["Deployment"]
    (server,) = pod(found)["containers"]
    env, stable = environment(server), environment(container(args))
    assert env["INFERENCE_MODEL_PATH"] == "/models/digits-4567cdef/export"
    assert "INFERENCE_MODEL_SHA256" not in env
    assert env["INFERENCE_MODEL_NAME"] == stable["INFERENCE_MODEL_NAME"]
    assert server["image"] == "image"
    assert found["spec"]["replicas"] == 1


def test_canary_can_change_image_and_server_settings() -> None:
    canary = {"weight": 5, "image": "inference", "server": {"max_body_bytes": 2048}}
    args = serving(route=GATEWAY, canary=canary, digest=DIGEST, server={"notice_seconds": 1})
    (server,) = pod(canary_objects(args)["Deployment"])["containers"]
    env = environment(server)
    assert server["image"] == "other-image"
    assert env["INFERENCE_MODEL_SHA256"] == DIGEST
    assert env["INFERENCE_MAX_BODY_BYTES"] == "2048"
    assert env["INFERENCE_NOTICE_SECONDS"] == "1.0"


def test_selectors_distinguish_stable_and_canary_pods() -> None:
    args = serving(route=GATEWAY, canary={**CANARY, "replicas": 2}, replicas=2)
    stable, canary = (
        {manifest["kind"]: manifest for manifest in built}
        for built in (build(args), build_canary(args))
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


def test_ingress_nginx_annotations_split_requests() -> None:
    route = {"ingress": {"class_name": "nginx"}, "hostnames": ["digits.example.com"]}
    stable, canary = routes(serving(route=route, canary=CANARY))
    assert stable["spec"]["rules"][0]["host"] == "digits.example.com"
    assert stable["spec"]["rules"][0]["http"]["paths"][0]["backend"] == backend("digits")
    assert canary["spec"]["rules"][0]["http"]["paths"][0]["backend"] == backend("digits-canary")
    annotations = canary["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/canary"] == "true"
    assert annotations["nginx.ingress.kubernetes.io/canary-weight"] == "20"


def test_policies_accept_ingresses_that_are_allowed_by_name() -> None:
    route = {"ingress": {"class_name": "nginx"}}
    built = routes(serving(route=route, canary=CANARY))
    assert len(evaluate_rule("service-not-public", *built)) == 2
    allowed = [f"ml/Ingress/{each['metadata']['name']}" for each in built]
    assert evaluate_rule("service-not-public", *built, config={"allowedServices": allowed}) == []


def backend(name: str) -> dict[str, Any]:
    return {"service": {"name": name, "port": {"name": "http"}}}


def shares(args: Any) -> dict[str, int]:
    (rule,) = objects(args)["HTTPRoute"]["spec"]["rules"]
    assert {backend["port"] for backend in rule["backendRefs"]} == {8080}
    return {backend["name"]: backend["weight"] for backend in rule["backendRefs"]}


def test_pods_that_are_not_ready_can_be_evicted() -> None:
    budget = objects(serving())["PodDisruptionBudget"]["spec"]
    # Otherwise, pods that wait for their model would block node drains.
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
