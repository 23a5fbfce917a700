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


def route_problems(
    first: dict[str, Any], second: dict[str, Any], runtime: str = "torch"
) -> list[str]:
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
    ids=[
        "different paths",
        "different hostnames",
        "hostname and catch-all",
        "Gateway and Ingress",
        "different Gateways",
        "Gateways in different namespaces",
        "different listeners",
    ],
)
def test_routes_for_different_requests_are_accepted(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert route_problems(first, second) == []


@pytest.mark.parametrize(
    ("first", "second", "requests"),
    [
        (GATEWAY, GATEWAY, "/ on every host name"),
        (GATEWAY, {"gateway": {"name": "public", "section": "http"}}, "/ on every host name"),
        (GATEWAY, {"gateway": {"name": "public", "namespace": "ml"}}, "/ on every host name"),
        ({**GATEWAY, "path": "/a"}, {**GATEWAY, "path": "/a/"}, "/a on every host name"),
        (
            {**GATEWAY, "hostnames": ["a.example.com", "b.example.com"]},
            {**GATEWAY, "hostnames": ["c.example.com", "b.example.com"]},
            "/ on b.example.com",
        ),
    ],
    ids=[
        "equal routes",
        "one listener and all",
        "explicit Gateway namespace",
        "trailing slash",
        "one common hostname",
    ],
)
def test_routes_for_the_same_requests_are_rejected(
    first: dict[str, Any], second: dict[str, Any], requests: str
) -> None:
    assert route_problems(first, second) == [
        f"{FIRST} and {SECOND} both match the requests to path {requests} from Gateway "
        f"ml/public: use different hostnames or paths."
    ]


def test_two_services_cannot_share_an_ingress_hostname() -> None:
    route = {**INGRESS, "hostnames": ["a.example.com"]}
    assert route_problems(INGRESS, INGRESS) == route_problems(INGRESS, route) == []
    assert route_problems(route, route) == [
        f"{FIRST} and {SECOND} both match the requests to a.example.com from Ingress class "
        f"nginx: use different hostnames."
    ]


@pytest.mark.parametrize(
    "first",
    [{**GATEWAY, "hostnames": ["a.example.com"], "path": "/a"}, {**GATEWAY, "path": "/a"}],
    ids=["HTTP route for one hostname", "HTTP route for all hostnames"],
)
def test_hostname_cannot_be_used_for_both_http_and_grpc(first: dict[str, Any]) -> None:
    grpc = {**GATEWAY, "hostnames": ["b.example.com"], "grpc_hostnames": ["a.example.com"]}
    assert route_problems(first, grpc, "triton") == [
        f"{FIRST} and {SECOND}.grpc_hostnames both match the requests to a.example.com from "
        f"Gateway ml/public: use different hostnames."
    ]


def test_two_services_cannot_share_a_grpc_hostname() -> None:
    first = {**GATEWAY, "hostnames": ["b.example.com"], "grpc_hostnames": ["a.example.com"]}
    second = {**first, "hostnames": ["c.example.com"]}
    assert route_problems(first, second, "triton") == [
        f"{FIRST}.grpc_hostnames and {SECOND}.grpc_hostnames both match the requests to "
        f"a.example.com from Gateway ml/public: use different hostnames."
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
    assert "and gpu-platform:training.jobs.job.notebook.route both match the requests" in problem
