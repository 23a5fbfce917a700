"""Conditions and effects of a canary rollback, with the real client and a simulated transport."""

import json
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from lightkube import Client

from recorder.rollback import UNREADY_EVALUATIONS, Limit, Plan, Rollback, breach, roll_back
from tests.recorder.examples import CONFIG, rejection

ERRORS = Limit("the share of failed requests", "errors[$span]", 0.05)
LATENCY = Limit("the latency", "latency[$span]", 0.5)
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
        ({}, UNREADY_EVALUATIONS - 1, None),
        ({}, UNREADY_EVALUATIONS, "no pod of the canary is ready"),
    ],
)
def test_values_above_a_limit_and_missing_ready_pods_are_breaches(
    values: dict[str, float], unready: int, reason: str | None
) -> None:
    assert breach([ERRORS, LATENCY], values, unready) == reason


class World:
    """A cluster with one canary, and a Prometheus server with values provided by the test."""

    def __init__(self) -> None:
        self.backends = SPLIT
        self.annotations = dict(CANARY)
        self.values: dict[str, float] = {}
        self.ready = 1
        self.deleted = {"grpcroutes"}
        """Resource types whose object has been deleted."""
        self.prometheus_answers = True
        self.broken: set[str] = set()
        """Series for which Prometheus returns an HTML page."""
        self.spans: list[str] = []
        self.now = 1000.0
        self.managers = [{"manager": "pulumi"}]
        self.version = 7
        self.status_writes = 0
        """Number of status updates by the gateway, each just before field ownership is released."""
        self.concurrent_annotations: dict[str, str] = {}
        """Annotations that a stack update writes just before a rollback."""
        self.fail_next_release = False
        """True if the connection fails when field ownership is released next."""
        self.refuse_events = False
        self.events: list[dict[str, Any]] = []
        self.patches: list[Any] = []
        self.start()

    def start(self) -> None:
        """Start or restart the rollback program."""
        plan = Plan(
            service="digits",
            canary="digits-canary",
            workload="Deployment",
            prometheus="http://prometheus:9090/",
            interval_seconds=5,
            window_seconds=30,
            limits=(ERRORS, LATENCY),
            stable={"GRPCRoute": STABLE, "HTTPRoute": STABLE},
        )
        self.rollback = Rollback(
            plan,
            Client(CONFIG, transport=httpx2.MockTransport(self._respond)),
            httpx2.Client(transport=httpx2.MockTransport(self._query)),
        )

    def _query(self, request: httpx2.Request) -> httpx2.Response:
        if not self.prometheus_answers:
            raise httpx2.ConnectError("connection refused", request=request)
        assert str(request.url).startswith("http://prometheus:9090/api/v1/query?")
        name, _, span = request.url.params["query"].rstrip("]").partition("[")
        self.spans.append(span)
        if name in self.broken:
            return httpx2.Response(200, text="<html>")
        value = self.values.get(name)
        result = [] if value is None else [{"metric": {}, "value": [0, str(value)]}]
        return httpx2.Response(200, json={"data": {"result": result}})

    def evaluate(self, seconds: float = 30) -> None:
        """Advance the clock and evaluate the canary."""
        self.now += seconds
        self.rollback.evaluate(self.now)

    def _respond(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path.split("/")[-2] in self.deleted:
            return rejection(404)
        if path.endswith("/events"):
            if self.refuse_events:
                return rejection(403)
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
                return self._roll_back(change)
            return self._release_fields(change["metadata"], request)
        return httpx2.Response(200, json=self._route())

    def _roll_back(self, change: list[dict[str, Any]]) -> httpx2.Response:
        self.annotations |= self.concurrent_annotations
        for each in change:
            name = each["path"].rpartition("/")[2].replace("~1", "/")
            if each["op"] == "test" and self.annotations.get(name) != each["value"]:
                return rejection(422)
            if each["op"] == "replace":
                self.backends = each["value"]
            elif each["op"] == "add":
                assert each["path"] == "/metadata/annotations/gpu-platform.dev~1rolled-back"
                self.annotations[ROLLED_BACK] = each["value"]
        self.managers = [*self.managers, {"manager": "canary-rollback"}]
        self.version += 1
        return httpx2.Response(200, json=self._route())

    def _release_fields(self, change: dict[str, Any], request: httpx2.Request) -> httpx2.Response:
        if self.fail_next_release:
            self.fail_next_release = False
            raise httpx2.ConnectError("connection refused", request=request)
        if self.status_writes:
            self.status_writes -= 1
            self.version += 1
        if change["resourceVersion"] != str(self.version):
            return rejection(409)
        self.managers = change["managedFields"]
        return httpx2.Response(200, json=self._route())

    def _route(self) -> dict[str, Any]:
        return {
            "kind": "HTTPRoute",
            "metadata": {
                "name": "digits",
                "namespace": "ml",
                "uid": "1",
                "resourceVersion": str(self.version),
                "annotations": self.annotations,
                "managedFields": self.managers,
            },
            "spec": {"rules": [{"backendRefs": self.backends}]},
        }


@pytest.fixture
def world() -> World:
    """Return a cluster whose canary has received requests for some time."""
    cluster = World()
    cluster.evaluate()
    return cluster


def test_canary_within_its_limits_keeps_its_weight(world: World) -> None:
    world.values = {"errors": 0.01}
    world.evaluate()
    assert world.backends == SPLIT
    assert world.patches == []


def test_canary_above_a_limit_loses_its_traffic_and_an_event_is_written(world: World) -> None:
    world.values = {"errors": 0.4}
    world.evaluate()
    assert world.backends == STABLE
    assert world.annotations[ROLLED_BACK].startswith("1234@image the share of failed requests")
    [event] = world.events
    assert event["reason"] == "CanaryRolledBack"
    assert event["involvedObject"]["kind"] == "HTTPRoute"
    assert "more than 0.05" in event["message"]
    world.evaluate()
    assert len(world.events) == 1


def test_field_ownership_is_released_despite_concurrent_status_updates(world: World) -> None:
    world.values, world.status_writes = {"errors": 0.4}, 2
    world.evaluate()
    assert world.managers == [{"manager": "pulumi"}]


@pytest.mark.parametrize("status_writes", [0, 1000])
def test_interrupted_rollback_is_completed_at_the_next_evaluation(
    world: World, status_writes: int
) -> None:
    world.values, world.status_writes = {"errors": 0.4}, status_writes
    world.fail_next_release = not status_writes
    with suppress(httpx2.ConnectError):
        world.evaluate()
    assert world.backends == STABLE
    assert {"manager": "canary-rollback"} in world.managers
    world.status_writes = 0
    world.events.clear()
    world.start()
    world.evaluate()
    assert world.managers == [{"manager": "pulumi"}]
    assert [event["reason"] for event in world.events] == ["CanaryRolledBack"]


def test_field_ownership_is_released_even_if_the_event_is_rejected(world: World) -> None:
    world.values, world.refuse_events = {"errors": 0.4}, True
    world.evaluate()
    assert world.managers == [{"manager": "pulumi"}]


def test_canary_updated_during_the_evaluation_is_not_rolled_back(world: World) -> None:
    world.values = {"errors": 0.4}
    world.concurrent_annotations = {"gpu-platform.dev/canary": "5678"}
    with pytest.raises(httpx2.HTTPStatusError):
        world.evaluate()
    assert world.backends == SPLIT
    assert ROLLED_BACK not in world.annotations


def test_metrics_of_the_previous_canary_do_not_count_for_a_new_canary() -> None:
    world = World()
    world.values = {"errors": 0.4}
    world.evaluate()
    assert (world.backends, world.spans) == (SPLIT, [])
    world.values = {}
    for _ in range(3):
        world.evaluate(15)
    assert world.spans == ["15s", "15s", "30s", "30s", "30s", "30s"]
    world.annotations["gpu-platform.dev/canary"] = "5678"
    world.spans, world.values = [], {"errors": 0.4}
    world.evaluate(5)
    assert (world.backends, world.spans) == (SPLIT, [])
    world.evaluate(5)
    assert (world.backends, world.spans) == (STABLE, ["5s", "5s"])


def test_restored_weights_are_rolled_back_again_without_querying_prometheus(world: World) -> None:
    world.annotations[ROLLED_BACK] = "1234@image the latency is 3, more than 0.5"
    world.prometheus_answers = False
    world.evaluate()
    assert world.backends == STABLE
    assert "the latency is 3" in world.events[0]["message"]


def test_new_canary_is_evaluated_after_an_earlier_rollback(world: World) -> None:
    world.annotations[ROLLED_BACK] = "0000@image the latency is 3, more than 0.5"
    world.evaluate()
    assert world.backends == SPLIT


def test_prometheus_outage_does_not_cause_a_rollback(world: World) -> None:
    world.prometheus_answers = False
    world.evaluate()
    assert world.backends == SPLIT


def test_invalid_prometheus_response_does_not_hide_other_breaches(world: World) -> None:
    world.broken, world.values = {"errors"}, {"latency": 3}
    world.evaluate()
    assert world.backends == STABLE


def test_unready_canary_is_rolled_back_even_without_metrics(world: World) -> None:
    world.broken, world.ready = {"errors", "latency"}, 0
    world.evaluate()
    world.evaluate()
    assert world.backends == STABLE


def test_a_canary_without_a_ready_pod_is_rolled_back_at_the_second_evaluation(world: World) -> None:
    world.ready, world.prometheus_answers = 0, False
    world.evaluate()
    assert world.backends == SPLIT
    world.evaluate()
    assert world.backends == STABLE


def test_a_deleted_canary_is_rolled_back_at_the_second_evaluation(world: World) -> None:
    world.deleted.add("deployments")
    world.evaluate()
    assert world.backends == SPLIT
    world.evaluate()
    assert world.backends == STABLE
    assert "no pod of the canary is ready" in world.events[0]["message"]


def test_deleted_routes_are_not_evaluated(world: World) -> None:
    world.values = {"errors": 0.4}
    world.deleted.add("httproutes")
    world.evaluate()
    assert world.patches == []


def test_canary_without_traffic_is_not_evaluated(world: World) -> None:
    world.backends, world.values, world.ready = STABLE, {"errors": 1}, 0
    for _ in range(UNREADY_EVALUATIONS + 1):
        world.evaluate()
    assert world.patches == []


@pytest.mark.parametrize("plan", ["", "[]", "{}", '{"limits": 1}', '{"limits": [], "unknown": 1}'])
def test_unreadable_plan_is_reported_in_one_line(plan: str) -> None:
    with pytest.raises(SystemExit, match="the plan cannot be read: "):
        roll_back(plan)
