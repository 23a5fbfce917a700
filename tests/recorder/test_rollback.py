"""When a canary is rolled back, and what is written then, with the client's code up to the wire."""

import json
from typing import Any

import httpx2
import pytest
from lightkube import Client
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User

from recorder.rollback import UNREADY_LOOKS, Limit, Plan, Rollback, breach

ERRORS = Limit("the share of failed requests", "errors", 0.05)
LATENCY = Limit("the latency", "latency", 0.5)
STABLE = [{"name": "digits", "port": 8080, "weight": 100}]
SPLIT = [{**STABLE[0], "weight": 80}, {"name": "digits-canary", "port": 8080, "weight": 20}]
CANARY = {"gpu-platform.dev/canary": "1234", "gpu-platform.dev/canary-image": "image"}
ROLLED_BACK = "gpu-platform.dev/rolled-back"


@pytest.mark.parametrize(
    ("values", "unready", "reason"),
    [
        ({}, 0, None),
        ({ERRORS.name: 0.05, LATENCY.name: 0.5}, 0, None),
        ({ERRORS.name: float("nan")}, 0, None),
        ({ERRORS.name: 0.4}, 0, "the share of failed requests is 0.4, more than 0.05"),
        ({LATENCY.name: 1.25}, 0, "the latency is 1.25, more than 0.5"),
        ({LATENCY.name: float("inf")}, 0, "the latency is inf, more than 0.5"),
        ({}, UNREADY_LOOKS - 1, None),
        ({}, UNREADY_LOOKS, "no pod of the canary is ready"),
    ],
)
def test_a_value_above_its_limit_or_no_ready_pod_is_a_breach(
    values: dict[str, float], unready: int, reason: str | None
) -> None:
    assert breach([ERRORS, LATENCY], values, unready) == reason


class World:
    """A cluster with one canary, and a Prometheus with the values of a test."""

    def __init__(self) -> None:
        self.backends = SPLIT
        self.annotations = dict(CANARY)
        self.values: dict[str, float] = {}
        self.ready = 1
        self.prometheus_answers = True
        self.events: list[dict[str, Any]] = []
        self.patches: list[Any] = []
        plan = Plan(
            service="digits",
            canary="digits-canary",
            prometheus="http://prometheus:9090/",
            interval_seconds=5,
            limits=(ERRORS, LATENCY),
            stable={"HTTPRoute": STABLE},
        )
        config = KubeConfig.from_one(
            cluster=Cluster(server="http://api"), user=User(token="token"), namespace="ml"
        )
        self.rollback = Rollback(
            plan,
            Client(config, transport=httpx2.MockTransport(self._answer)),
            httpx2.Client(transport=httpx2.MockTransport(self._query)),
        )

    def _query(self, request: httpx2.Request) -> httpx2.Response:
        if not self.prometheus_answers:
            raise httpx2.ConnectError("away", request=request)
        assert str(request.url).startswith("http://prometheus:9090/api/v1/query?")
        value = self.values.get(request.url.params["query"])
        result = [] if value is None else [{"metric": {}, "value": [0, str(value)]}]
        return httpx2.Response(200, json={"data": {"result": result}})

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path.endswith("/events"):
            self.events.append(json.loads(request.content))
            return httpx2.Response(201, json=self.events[-1])
        if path.endswith("/deployments/digits-canary"):
            status = {"readyReplicas": self.ready} if self.ready else {}
            spec = {"selector": {}, "template": {}}
            return httpx2.Response(200, json={"metadata": {}, "spec": spec, "status": status})
        assert path.endswith("/namespaces/ml/httproutes/digits")
        if request.method == "PATCH":
            change = json.loads(request.content)
            self.patches.append(change)
            if isinstance(change, list):
                assert change[1]["path"] == "/metadata/annotations/gpu-platform.dev~1rolled-back"
                self.backends = change[0]["value"]
                self.annotations[ROLLED_BACK] = change[1]["value"]
        return httpx2.Response(200, json=self._route())

    def _route(self) -> dict[str, Any]:
        managers = [{"manager": "pulumi"}, {"manager": "canary-rollback"}]
        return {
            "kind": "HTTPRoute",
            "metadata": {
                "name": "digits",
                "namespace": "ml",
                "uid": "1",
                "resourceVersion": "7",
                "annotations": self.annotations,
                "managedFields": managers,
            },
            "spec": {"rules": [{"backendRefs": self.backends}]},
        }


@pytest.fixture
def world() -> World:
    return World()


def test_a_canary_within_its_limits_keeps_its_share(world: World) -> None:
    world.values = {"errors": 0.01}
    world.rollback.look()
    assert world.backends == SPLIT
    assert world.patches == []


def test_a_canary_above_a_limit_gets_no_requests_and_an_event_says_why(world: World) -> None:
    world.values = {"errors": 0.4}
    world.rollback.look()
    assert world.backends == STABLE
    assert world.annotations[ROLLED_BACK].startswith("1234@image the share of failed requests")
    [event] = world.events
    assert event["reason"] == "CanaryRolledBack"
    assert event["involvedObject"]["kind"] == "HTTPRoute"
    assert "more than 0.05" in event["message"]
    world.rollback.look()
    assert len(world.events) == 1


def test_the_fields_are_left_to_the_stack(world: World) -> None:
    world.values = {"errors": 0.4}
    world.rollback.look()
    managed = world.patches[1]["metadata"]["managedFields"]
    assert managed == [{"manager": "pulumi"}]


def test_restored_weights_are_rolled_back_again_without_a_look_at_prometheus(world: World) -> None:
    world.annotations[ROLLED_BACK] = "1234@image the latency is 3, more than 0.5"
    world.prometheus_answers = False
    world.rollback.look()
    assert world.backends == STABLE
    assert "the latency is 3" in world.events[0]["message"]


def test_another_canary_is_evaluated_again(world: World) -> None:
    world.annotations[ROLLED_BACK] = "0000@image the latency is 3, more than 0.5"
    world.rollback.look()
    assert world.backends == SPLIT


def test_a_silent_prometheus_rolls_nothing_back(world: World) -> None:
    world.prometheus_answers = False
    world.rollback.look()
    assert world.backends == SPLIT


def test_a_canary_without_a_ready_pod_is_rolled_back_at_the_second_look(world: World) -> None:
    world.ready, world.prometheus_answers = 0, False
    world.rollback.look()
    assert world.backends == SPLIT
    world.rollback.look()
    assert world.backends == STABLE


def test_a_canary_without_requests_is_not_evaluated(world: World) -> None:
    world.backends, world.values, world.ready = STABLE, {"errors": 1}, 0
    for _ in range(UNREADY_LOOKS + 1):
        world.rollback.look()
    assert world.patches == []
