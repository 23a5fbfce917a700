"""The program that evaluates a canary: queries, permissions and annotations of the route."""

import json
from typing import Any

import pytest

from infra.inference_service import routes
from infra.manifests import Manifest
from infra.serving.description import InferenceServiceArgs
from infra.serving.rollback import rollback_objects
from infra.serving.traffic import stable_backends
from tests.infra.conftest import Provision
from tests.infra.examples import changed, good, problems
from tests.infra.serving.examples import CANARY, GATEWAY, serving
from tests.infra.serving.test_runtimes import CUSTOM

LIMITS = {"prometheus": "http://prometheus.monitoring:9090", "image": "inference"}


def with_rollback(weight: int = 20, **limits: Any) -> InferenceServiceArgs:
    canary = {**CANARY, "weight": weight, "rollback": {**LIMITS, **limits}}
    return serving(route=GATEWAY, canary=canary)


def built(args: InferenceServiceArgs) -> dict[str, Manifest]:
    return {each["kind"]: each for each in rollback_objects(args, stable_backends(args))}


def plan(args: InferenceServiceArgs) -> dict[str, Any]:
    (container,) = built(args)["Deployment"]["spec"]["template"]["spec"]["containers"]
    *command, text = container["command"]
    assert command == ["python3", "-m", "recorder", "rollback"]
    found: dict[str, Any] = json.loads(text)
    return found


def annotations(args: InferenceServiceArgs) -> dict[str, Any]:
    (route,) = routes(args)
    found: dict[str, Any] = route["metadata"].get("annotations", {})
    return found


def test_canary_without_rollback_limits_is_not_evaluated() -> None:
    args = serving(route=GATEWAY, canary=CANARY)
    assert built(args) == {}
    assert annotations(args) == {}


def test_program_can_change_only_the_services_route() -> None:
    rules = built(with_rollback())["Role"]["rules"]
    assert rules == [
        {
            "apiGroups": ["gateway.networking.k8s.io"],
            "resources": ["httproutes"],
            "resourceNames": ["digits"],
            "verbs": ["get", "patch"],
        },
        {
            "apiGroups": ["apps"],
            "resources": ["deployments"],
            "resourceNames": ["digits-canary"],
            "verbs": ["get"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]


def test_rollback_writes_the_same_backends_as_weight_zero() -> None:
    args = with_rollback()
    (route,) = routes(with_rollback(weight=0))
    (rule,) = route["spec"]["rules"]
    assert plan(args)["stable"] == {"HTTPRoute": rule["backendRefs"]}


def test_queries_compare_the_canary_with_the_stable_version() -> None:
    found = plan(with_rollback(latency_seconds=0.5, min_requests=50, window_seconds=60))
    errors, latency = found["limits"]
    assert found["window_seconds"] == 60
    assert errors["maximum"] == 0.05
    assert 'service="digits-canary", code=~"5.*|400|4xx"}[$span]' in errors["query"]
    assert 'service="digits", code=~"5.*|400|4xx"}[$span]' in errors["query"]
    assert latency["maximum"] == 0.5
    assert latency["query"].endswith('service="digits-canary"}[$span])) >= 50')


def test_route_annotations_change_with_the_canary_but_not_its_weight() -> None:
    before = annotations(with_rollback())
    assert before.keys() == {"gpu-platform.dev/canary", "gpu-platform.dev/canary-image"}
    assert annotations(with_rollback(weight=50)) == before
    assert annotations(with_rollback(error_share=0.5)) != before
    other_canary = {**CANARY, "run": "digits-89abcdef", "rollback": LIMITS}
    assert annotations(serving(route=GATEWAY, canary=other_canary)) != before


def test_isolated_program_can_reach_the_api_server_and_prometheus(provision: Provision) -> None:
    values = good()
    values["tenancy"] = {**values["tenancy"], "network": {"isolate": True}}
    values["inference"]["services"]["digits"] |= {
        "route": GATEWAY,
        "canary": {**CANARY, "rollback": LIMITS},
    }
    plan_of_stack = provision(values)
    (egress,) = plan_of_stack.inputs("inference-digits-rollback-networkpolicy")["spec"]["egress"]
    assert [port["port"] for port in egress["ports"]] == [443, 6443, 9090]


def test_route_is_changed_after_the_program_is_ready(provision: Provision) -> None:
    service = {
        **good()["inference"]["services"]["digits"],
        "route": GATEWAY,
        "canary": {**CANARY, "rollback": LIMITS},
    }
    plan_of_stack = provision(changed("inference.services.digits", service))
    program_name = "inference-digits-rollback-deployment"
    assert program_name in plan_of_stack.dependencies("inference-digits-httproute")
    assert "pulumi.com/skipAwait" not in str(plan_of_stack.inputs(program_name))


def test_scrape_interval_matches_the_canary_evaluation(provision: Provision) -> None:
    values = good()
    values["monitoring"] = {"prometheus": "operator"}
    values["inference"]["services"]["digits"] |= {
        "route": GATEWAY,
        "canary": {**CANARY, "rollback": {**LIMITS, "interval_seconds": 7}},
    }
    plan_of_stack = provision(values)
    intervals = {
        name: plan_of_stack.inputs(f"monitoring-podmonitor-{name}")["spec"]["podMetricsEndpoints"][
            0
        ]["interval"]
        for name in ("inference", "training")
    }
    assert intervals == {"inference": "7s", "training": "30s"}


def with_limits(**service: Any) -> dict[str, Any]:
    values = good()
    service_settings = values["inference"]["services"]["digits"]
    merged = {
        **service_settings,
        "route": GATEWAY,
        "canary": {**CANARY, "rollback": LIMITS},
        **service,
    }
    values["inference"]["services"]["digits"] = {
        name: value for name, value in merged.items() if value is not None
    }
    return values


@pytest.mark.parametrize(
    ("service", "sentence"),
    [
        ({"route": {"ingress": {"class_name": "nginx"}}}, "weights of an Ingress"),
        (
            {
                **CUSTOM,
                "job": None,
                "canary": {"weight": 1, "image": "inference", "rollback": LIMITS},
            },
            "which does not report failed requests",
        ),
        (
            {"canary": {**CANARY, "rollback": {**LIMITS, "image": "nowhere"}}},
            "canary.rollback.image is 'nowhere'",
        ),
        (
            {"canary": {**CANARY, "rollback": {**LIMITS, "window_seconds": 10}}},
            "window_seconds is 10, less than three times interval_seconds (5)",
        ),
    ],
    ids=["Ingress route", "runtime without request metrics", "unknown image", "window too short"],
)
def test_limits_that_cannot_be_evaluated_are_rejected(
    service: dict[str, Any], sentence: str
) -> None:
    assert any(sentence in problem for problem in problems(with_limits(**service)))
