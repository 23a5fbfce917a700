from pathlib import Path

import pytest

from infra.serving.autoscaling import autoscaler
from tests.infra.observability.promtool import check, expression_test, promtool
from tests.infra.serving.examples import objects, serving

KEDA = {"prometheus": "http://prometheus.monitoring:9090"}


def test_autoscaled_deployment_has_no_replicas() -> None:
    found = objects(serving(autoscaling={"min": 2, "max": 5, "cpu_percent": 60}))
    assert "replicas" not in found["Deployment"]["spec"]
    spec = found["HorizontalPodAutoscaler"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)
    assert spec["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    assert spec["metrics"][0]["resource"]["target"]["averageUtilization"] == 60


def test_autoscaler_targets_cpu_by_default() -> None:
    (metric,) = autoscaler(serving(autoscaling={"max": 5}))["spec"]["metrics"]
    assert metric["resource"]["target"]["averageUtilization"] == 70


def test_autoscaler_can_target_requests_in_flight_per_pod() -> None:
    scaling = {"max": 5, "requests_in_flight": 8}
    (metric,) = autoscaler(serving(autoscaling=scaling))["spec"]["metrics"]
    assert metric == {
        "type": "Pods",
        "pods": {
            "metric": {"name": "inference_requests_in_flight"},
            "target": {"type": "AverageValue", "averageValue": "8"},
        },
    }


def test_autoscaler_can_use_cpu_and_requests_together() -> None:
    scaling = {"max": 5, "requests_in_flight": 8, "cpu_percent": 50}
    metrics = autoscaler(serving(autoscaling=scaling))["spec"]["metrics"]
    assert [metric["type"] for metric in metrics] == ["Resource", "Pods"]


def test_autoscaler_cannot_be_built_without_autoscaling() -> None:
    with pytest.raises(ValueError, match="'digits' has no autoscaling"):
        autoscaler(serving())


def test_keda_replaces_the_autoscaler_and_queries_prometheus() -> None:
    found = objects(serving(autoscaling={"max": 5, "requests_in_flight": 8, "keda": KEDA}))
    assert "HorizontalPodAutoscaler" not in found
    assert "replicas" not in found["Deployment"]["spec"]
    spec = found["ScaledObject"]["spec"]
    assert spec["scaleTargetRef"]["name"] == "digits"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 5)
    (trigger,) = spec["triggers"]
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus.monitoring:9090",
        "query": "avg_over_time(sum(inference_requests_in_flight"
        '{namespace="ml",pod=~"digits-[a-z0-9]+-[a-z0-9]{5}"})[1m:5s])',
        "threshold": "8",
    }


def test_keda_starts_the_first_pod_on_requests_at_the_gateway() -> None:
    gateway_query = 'sum(rate(requests_total{service="digits"}[1m]))'
    keda = {**KEDA, "activation_query": gateway_query, "cooldown_seconds": 60}
    scaling = {"min": 0, "max": 5, "requests_in_flight": 8, "cpu_percent": 70, "keda": keda}
    spec = autoscaler(serving(autoscaling=scaling))["spec"]
    assert (spec["minReplicaCount"], spec["cooldownPeriod"]) == (0, 60)
    _, activation, cpu = spec["triggers"]
    assert activation["metadata"]["query"] == f"({gateway_query}) > bool 0"
    assert activation["metadata"]["threshold"] == "1"
    assert cpu == {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "70"}}


def in_flight(pod: str) -> str:
    return f'inference_requests_in_flight{{namespace="ml",pod="{pod}"}}'


# One value every 15 seconds for two minutes.
LOADS: dict[str, tuple[dict[str, str], float]] = {
    "the last minute is averaged": ({in_flight("digits-1a-xxxxx"): "12x6 0x1"}, 8),
    "group leaders of other services are ignored": (
        {in_flight("digits-1a-xxxxx"): "3x8", in_flight("digits-large-0"): "4x8"},
        3,
    ),
    "all pods are summed": (
        {in_flight("digits-1a-xxxxx"): "3x8", in_flight("digits-1a-yyyyy"): "4x8"},
        7,
    ),
    "a replaced pod counts until its end": (
        {in_flight("digits-1a-xxxxx"): "12x5 stale", in_flight("digits-2b-yyyyy"): "_x6 6x2"},
        9,
    ),
    "canary pods are ignored": (
        {in_flight("digits-1a-xxxxx"): "3x8", in_flight("digits-canary-1a-yyyyy"): "4x8"},
        3,
    ),
}


@pytest.mark.parametrize("load", LOADS)
def test_keda_query_returns_the_expected_load(load: str, tmp_path: Path) -> None:
    series, expected = LOADS[load]
    scaling = {"max": 5, "requests_in_flight": 8, "keda": KEDA}
    (trigger,) = autoscaler(serving(autoscaling=scaling))["spec"]["triggers"]
    query = f"round({trigger['metadata']['query']})"
    test = expression_test(series, 2, query, {"labels": "{}", "value": expected})
    assert check(promtool(), tmp_path, {**test, "interval": "15s"}) == ""
