"""Routes that would receive the same requests."""

from typing import Any

import pytest

from tests.infra.examples import good, problems
from tests.infra.jobs import configuration, job

GATEWAY = {"gateway": {"name": "public"}}
INGRESS = {"ingress": {"class_name": "nginx"}}
MODELS = {"size": "1Gi", "storage_class": "shared", "access_modes": ["ReadOnlyMany"]}
FIRST = "gpu-platform:inference.services.a.route"
SECOND = "gpu-platform:inference.services.b.route"


def found(first: dict[str, Any], second: dict[str, Any], runtime: str = "torch") -> list[str]:
    """Return the problems if two services have these routes."""
    values = good()
    service = {
        "cpu": "500m",
        "memory": "2Gi",
        "source": {"claim": {"name": "models"}},
        "runtime": runtime,
    }
    values["inference"]["services"] = {
        key: {**service, "route": route} for key, route in {"a": first, "b": second}.items()
    }
    values["storage"]["claims"]["models"] = MODELS
    return problems(values)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({**GATEWAY, "path": "/a"}, {**GATEWAY, "path": "/b"}),
        ({**GATEWAY, "hostnames": ["a.example.com"]}, {**GATEWAY, "hostnames": ["b.example.com"]}),
        ({**GATEWAY, "hostnames": ["a.example.com"]}, GATEWAY),
        (GATEWAY, INGRESS),
        (GATEWAY, {"gateway": {"name": "internal"}}),
        (GATEWAY, {"gateway": {"name": "public", "namespace": "gateways"}}),
        (
            {"gateway": {"name": "public", "section": "http"}},
            {"gateway": {"name": "public", "section": "https"}},
        ),
    ],
    ids=["paths", "hosts", "one host", "kinds", "Gateways", "namespaces", "listeners"],
)
def test_routes_for_different_requests_are_accepted(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert found(first, second) == []


@pytest.mark.parametrize(
    ("first", "second", "requests"),
    [
        (GATEWAY, GATEWAY, "/ of every host name"),
        (GATEWAY, {"gateway": {"name": "public", "section": "http"}}, "/ of every host name"),
        (GATEWAY, {"gateway": {"name": "public", "namespace": "ml"}}, "/ of every host name"),
        ({**GATEWAY, "path": "/a"}, {**GATEWAY, "path": "/a/"}, "/a of every host name"),
        (
            {**GATEWAY, "hostnames": ["a.example.com", "b.example.com"]},
            {**GATEWAY, "hostnames": ["c.example.com", "b.example.com"]},
            "/ of b.example.com",
        ),
    ],
    ids=["equal", "all listeners", "namespace", "slash", "common host"],
)
def test_routes_for_the_same_requests_are_rejected(
    first: dict[str, Any], second: dict[str, Any], requests: str
) -> None:
    assert found(first, second) == [
        f"{SECOND} receives the requests to path {requests} from Gateway ml/public, as does "
        f"{FIRST}: use different hostnames or paths."
    ]


def test_two_services_cannot_share_an_ingress_hostname() -> None:
    route = {**INGRESS, "hostnames": ["a.example.com"]}
    assert found(INGRESS, INGRESS) == found(INGRESS, route) == []
    assert found(route, route) == [
        f"{SECOND} receives the requests to a.example.com from Ingress class nginx, as does "
        f"{FIRST}: use different hostnames."
    ]


@pytest.mark.parametrize(
    "first",
    [
        {**GATEWAY, "hostnames": ["a.example.com"], "path": "/a"},
        {**GATEWAY, "path": "/a"},
    ],
    ids=["host name", "every host name"],
)
def test_hostname_cannot_be_used_for_both_http_and_grpc(first: dict[str, Any]) -> None:
    grpc = {**GATEWAY, "hostnames": ["b.example.com"], "grpc_hostnames": ["a.example.com"]}
    assert found(first, grpc, "triton") == [
        f"{SECOND}.grpc_hostnames receives the requests to a.example.com from Gateway "
        f"ml/public, as does {FIRST}: use different hostnames."
    ]


def test_two_services_cannot_share_a_grpc_hostname() -> None:
    first = {**GATEWAY, "hostnames": ["b.example.com"], "grpc_hostnames": ["a.example.com"]}
    second = {**first, "hostnames": ["c.example.com"]}
    assert found(first, second, "triton") == [
        f"{SECOND}.grpc_hostnames receives the requests to a.example.com from Gateway "
        f"ml/public, as does {FIRST}.grpc_hostnames: use different hostnames."
    ]


def test_notebook_and_service_cannot_share_a_route() -> None:
    values = configuration(job("notebook"))
    route = values["training"]["jobs"]["job"]["notebook"]["route"]
    values["storage"]["claims"]["models"] = MODELS
    values["inference"]["services"] = {}
    values["inference"]["services"]["digits"] = {
        "cpu": "500m",
        "memory": "2Gi",
        "source": {"claim": {"name": "models"}},
        "route": route,
    }
    (problem,) = problems(values)
    assert problem.startswith(
        "gpu-platform:training.jobs.job.notebook.route receives the requests to"
    )
