"""Cordoning and returning of nodes, and the objects that the controller writes."""

import json
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.resources.core_v1 import Node, Pod

from infra.settings.node_health import NodeHealthSettings
from recorder.node_health import (
    CONDITION,
    MARK,
    RETURNED_ANNOTATION,
    Action,
    Controller,
    Fault,
    Memory,
    NodeState,
    Policy,
    SlowReports,
    decide,
    health,
    node_state,
    to_annotation,
    xids_of,
)
from tests.recorder.examples import document, ended

POLICY = Policy(
    max_nodes=2, fault_seconds=60, settle_seconds=120, slow_reports=3, xids=frozenset({48, 79})
)
DEVICES = Fault("DevicesUnhealthy", "the device plugin offers 7 of 8 GPUs", 8)


def node(name: str = "a", **changed: Any) -> NodeState:
    return replace(NodeState(name, ready=True, gpus=8, offered=8), **changed)


def kinds(actions: list[Action]) -> list[tuple[str, str]]:
    return [(action.kind, action.node.name) for action in actions]


def after(seconds: float, *nodes: NodeState, policy: Policy = POLICY) -> list[tuple[str, str]]:
    """The actions for nodes that have been as they are for some time."""
    _, memory = decide(nodes, {}, 0, policy)
    return kinds(decide(nodes, memory, seconds, policy)[0])


def test_a_node_is_cordoned_after_its_fault_has_lasted() -> None:
    assert after(59, node(offered=7)) == []
    assert after(60, node(offered=7)) == [("cordon", "a")]


def test_a_restart_of_the_device_plugin_cordons_nothing() -> None:
    _, memory = decide([node(offered=0)], {}, 0, POLICY)
    _, memory = decide([node()], memory, 50, POLICY)
    assert decide([node(offered=0)], memory, 61, POLICY)[0] == []


def test_devices_that_the_kubelet_still_counts_cordon_nothing_by_default() -> None:
    """The kubelet counts devices of a stopped plugin for 300 s, and reports every 10 s."""
    assert after(310, node(gpus=12, offered=8), policy=Policy()) == []
    assert Policy().fault_seconds == NodeHealthSettings().fault_seconds


def test_the_faults_that_lasted_longest_are_cordoned_up_to_the_limit() -> None:
    _, memory = decide([node("c", offered=0)], {}, 0, POLICY)
    faulty = [node(name, offered=0) for name in "abc"]
    _, memory = decide(faulty, memory, 10, POLICY)
    assert kinds(decide(faulty, memory, 100, POLICY)[0]) == [
        *(("cordon", "c"), ("cordon", "a"), ("wait", "b"))
    ]
    others = [node("m", cordoned=True, condition=True, mark=DEVICES, ready=False) for _ in "xy"]
    waiting = kinds(decide([*others, *faulty], memory, 100, POLICY)[0])
    assert waiting == [("wait", "c"), ("wait", "a"), ("wait", "b")]


@pytest.mark.parametrize(
    "changed",
    [
        {"ready": False, "offered": 0},
        {"gpus": 0, "offered": 0},
        {"cordoned": True, "offered": 0},
        {"ignored": True, "offered": 0},
        {"xids": None},
        {"xids": frozenset({31})},
        {"reports": 2},
    ],
)
def test_what_is_unknown_or_belongs_to_others_is_left_alone(changed: dict[str, Any]) -> None:
    assert after(1000, node(**changed)) == []


def test_a_slow_node_is_cordoned_at_once_and_left_by_the_runs_that_reported_it() -> None:
    """They restart at once, before the cordon, and each restart costs one of their retries."""
    assert after(0, node(reports=3)) == [("cordon", "a")]
    slow = {**MARKED, "mark": Fault("SlowInGangs", "", 8)}
    for seconds in (0, 10_000):
        assert after(seconds, node(**slow, reports=3)) == [("evict_reporting_runs", "a")]
        assert after(seconds, node(**slow)) == [("evict_reporting_runs", "a")]
    assert after(0, node(**slow, offered=7)) == [("evict", "a")]


def test_listed_xids_and_enough_reports_are_faults() -> None:
    assert health(node(xids=frozenset({31, 79})), POLICY) == ("XidError", "Xid 79")
    assert health(node(reports=3), POLICY)[0] == "SlowInGangs"
    assert health(node(reports=3), Policy())[0] == "Healthy"


MARKED: dict[str, Any] = {"cordoned": True, "condition": True, "mark": DEVICES}


def test_a_node_returns_after_its_gpus_are_back_for_a_while() -> None:
    assert after(119, node(**MARKED)) == []
    assert after(120, node(**MARKED)) == [("uncordon", "a")]


@pytest.mark.parametrize(
    "changed",
    [
        # The kubelet forgets the GPUs of a device plugin that stays away.
        {"gpus": 0, "offered": 0},
        {"gpus": 7, "offered": 7},
        {"offered": 7},
    ],
)
def test_a_node_with_fewer_gpus_than_before_stays_and_is_emptied(changed: dict[str, Any]) -> None:
    assert after(1000, node(**MARKED, **changed)) == [("evict", "a")]


@pytest.mark.parametrize(
    "changed",
    [
        {"ready": False},
        {"xids": None},
        {"mark": Fault("UnreadableMark", "", 0)},
        {"xids": None, "mark": Fault("XidError", "Xid 79", 8)},
        {"reports": 3},
    ],
)
def test_a_node_whose_health_is_unknown_does_not_return(changed: dict[str, Any]) -> None:
    assert after(10_000, node(**{**MARKED, **changed})) == []


def test_a_node_with_an_xid_returns_after_a_reset_and_not_after_another_xid() -> None:
    marked = {**MARKED, "mark": Fault("XidError", "Xid 79", 8)}
    assert after(1000, node(**marked, xids=frozenset({31}))) == [("evict", "a")]
    assert after(120, node(**marked)) == [("uncordon", "a")]
    assert after(120, node(**MARKED, xids=frozenset({31}))) == [("uncordon", "a")]


def test_a_node_that_somebody_uncordoned_is_forgotten() -> None:
    marked = node(**{**MARKED, "cordoned": False})
    assert after(0, marked) == [("clear_mark", "a")]


def test_a_fault_that_lasts_after_an_uncordon_is_timed_again() -> None:
    _, memory = decide([node(offered=7)], {}, 0, POLICY)
    checked = node(offered=7, checked=1000)
    for now, expected in ((1015, []), (1059, []), (1060, [("cordon", "a")])):
        actions, memory = decide([checked], memory, now, POLICY)
        assert kinds(actions) == expected


def test_an_interrupted_change_is_completed() -> None:
    assert after(0, node(**{**MARKED, "condition": False})) == [("set_condition", "a")]
    assert after(0, node(condition=True)) == [("set_condition", "a")]


class World:
    """Nodes whose faults, connections and cordons change at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  a reproducible history
        self.nodes = {name: node(name) for name in "abcdef"}
        self.memory: Memory = {}
        self.now = 0.0
        self.faulty_since: dict[str, float] = {}
        self.healthy_since = dict.fromkeys(self.nodes, 0.0)
        self.by_person: set[str] = set()
        self.kinds: Counter[str] = Counter()

    def happen(self) -> None:
        name = self.random.choice("abcdef")
        now = self.nodes[name]
        match self.random.randrange(12):
            case 0 | 1 | 2:
                self.nodes[name] = replace(now, offered=self.random.randrange(9))
            case 3 | 4 | 5:
                self.nodes[name] = replace(now, offered=8, gpus=8, xids=frozenset())
            case 6:
                self.nodes[name] = replace(now, ready=not now.ready)
            case 7:
                self.nodes[name] = replace(now, gpus=0, offered=0)
            case 8:
                xids = self.random.choice([None, frozenset(), frozenset({79})])
                self.nodes[name] = replace(now, xids=xids)
            case 9 if now.mark is None:
                self.by_person ^= {name}
                self.nodes[name] = replace(now, cordoned=name in self.by_person)
            case 10 if now.mark is not None:
                self.nodes[name] = replace(now, cordoned=False)
            case 11:
                self.memory = {}  # the controller was restarted

    def observe(self) -> None:
        for name, now in self.nodes.items():
            state = health(now, POLICY)[0]
            for group, seen in (
                (self.faulty_since, state not in ("Healthy", "Unknown")),
                (self.healthy_since, state == "Healthy"),
            ):
                if seen:
                    group.setdefault(name, self.now)
                else:
                    group.pop(name, None)

    def check(self) -> None:
        self.observe()
        actions, self.memory = decide(self.nodes.values(), self.memory, self.now, POLICY)
        for action in actions:
            name = action.node.name
            now = self.nodes[name]
            self.kinds[action.kind] += 1
            if self.random.random() < 0.2:
                continue  # the API server refused it, for example because of a conflict
            if action.kind == "cordon":
                assert now.mark is None
                assert name not in self.by_person
                since = max(self.faulty_since[name], now.checked)
                assert self.now - since >= POLICY.fault_seconds
                # The second of two requests may fail.
                done = self.random.random() < 0.9
                self.nodes[name] = replace(now, cordoned=True, mark=action.fault, condition=done)
            elif action.kind == "uncordon":
                assert now.mark is not None
                assert now.cordoned
                assert self.now - self.healthy_since[name] >= POLICY.settle_seconds
                self.nodes[name] = replace(now, cordoned=False, mark=None, condition=False)
            elif action.kind == "clear_mark":
                assert not now.cordoned
                self.nodes[name] = replace(now, mark=None, condition=False, checked=self.now)
            elif action.kind in ("evict", "evict_reporting_runs"):
                assert now.mark is not None
            elif action.kind == "set_condition":
                self.nodes[name] = replace(now, condition=action.fault is not None)
        assert sum(each.mark is not None for each in self.nodes.values()) <= POLICY.max_nodes
        for name in self.by_person:
            assert self.nodes[name].cordoned


def test_random_histories_keep_the_limits_and_end_with_all_nodes_returned() -> None:
    seen: Counter[str] = Counter()
    for seed in range(200):
        world = World(seed)
        for _ in range(300):
            if world.random.random() < 0.2:
                world.happen()
            world.now += 15
            world.check()
        for name, now in world.nodes.items():
            world.nodes[name] = replace(now, ready=True, gpus=8, offered=8, xids=frozenset())
        for _ in range(60):
            world.now += 15
            world.check()
        assert not any(each.mark for each in world.nodes.values()), seed
        assert {n for n, each in world.nodes.items() if each.cordoned} == world.by_person, seed
        seen += world.kinds
    assert set(seen) == {"cordon", "wait", "evict", "uncordon", "clear_mark", "set_condition"}
    assert seen["cordon"] > 500


BEGIN = datetime(2026, 11, 21, 21, tzinfo=UTC).timestamp()


def reporter(
    name: str, uid: str, *, slow: str = "gpu-node-0", run: str = "r1", at: float = 0
) -> Pod:
    message = f"preflight: slow node {slow}: 2.1 GB/s"
    finished = datetime.fromtimestamp(BEGIN + at, UTC).isoformat()
    state = ended(1, at=finished, message=f"slow node {slow}: 2.1 GB/s\n{message}")
    made = document(name, state)
    made["metadata"] |= {"uid": uid, "labels": {"gpu-platform.dev/run": run}}
    return Pod.from_dict(made)


def test_pods_of_one_start_count_as_one_report() -> None:
    reports = SlowReports()
    for pod in (reporter("worker-0", "1"), reporter("worker-1", "2"), reporter("worker-0", "1")):
        reports.add(pod, BEGIN)
    assert reports.count(BEGIN) == {"gpu-node-0": 1}
    reports.add(reporter("worker-0", "3", at=10), BEGIN + 10)
    reports.add(reporter("worker-0", "4", run="r2", at=10), BEGIN + 10)
    assert reports.count(BEGIN + 20) == {"gpu-node-0": 3}
    assert reports.count(BEGIN + 24 * 3600 + 5) == {"gpu-node-0": 2}


def test_a_pod_that_is_listed_again_reports_at_the_time_of_its_end() -> None:
    reports, kept = SlowReports(), reporter("worker-0", "1")
    day = 24 * 3600
    for hours in (0, 12, 25):
        reports.add(kept, BEGIN + hours * 3600)
    assert reports.count(BEGIN + day - 1) == {"gpu-node-0": 1}
    assert reports.count(BEGIN + day + 1) == {}
    reports.add(kept, BEGIN + day + 1)
    assert reports.count(BEGIN + day + 1) == {}


def test_a_run_cannot_report_a_node_without_a_pod_of_it() -> None:
    reports = SlowReports()
    reports.add(reporter("worker-0", "1", slow="gpu-node-9"), BEGIN)
    assert reports.count(BEGIN) == {}


def test_errors_of_all_gpus_of_a_node_are_read() -> None:
    result = [
        {"metric": {"Hostname": "a", "gpu": "0"}, "value": [1, "79"]},
        {"metric": {"Hostname": "a", "gpu": "1"}, "value": [1, "0"]},
        {"metric": {"Hostname": "b", "gpu": "0"}, "value": [1, "31"]},
    ]
    assert xids_of({"data": {"result": result}}) == {"a": {79}, "b": {31}}


class Api:
    """An API server with one node, and what was written to it."""

    def __init__(self, offered: int = 8, **metadata: Any) -> None:
        self.node: dict[str, Any] = {
            "metadata": {"name": "gpu-node-0", "resourceVersion": "41", **metadata},
            "spec": {},
            "status": {
                "capacity": {"cpu": "8", "nvidia.com/gpu": "8"},
                "allocatable": {"cpu": "8", "nvidia.com/gpu": str(offered)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self.pods = [document()]
        self.writes: list[tuple[str, str, Any]] = []
        self.refused = ""

    def controller(self) -> Controller:
        config = KubeConfig.from_one(
            cluster=Cluster(server="http://api"), user=User(token="token"), namespace="ml"
        )
        client = AsyncClient(config, transport=httpx2.MockTransport(self._answer))
        return Controller(client, replace(POLICY, fault_seconds=0), "ml")

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if request.method == "GET" and path.endswith("/nodes"):
            return httpx2.Response(200, json={"metadata": {}, "items": [self.node]})
        if request.method == "GET":
            assert request.url.params["fieldSelector"] == "spec.nodeName=gpu-node-0"
            over = document("over") | {"status": {"phase": "Succeeded"}}
            return httpx2.Response(200, json={"metadata": {}, "items": [*self.pods, over]})
        body = json.loads(request.content)
        self.writes.append((request.method, path, body))
        if self.refused and path.endswith(self.refused):
            refusal = {"kind": "Status", "code": 409, "message": "changed"}
            return httpx2.Response(409, json=refusal)
        return httpx2.Response(200, json=self.node if "/nodes/" in path else body)


def test_shares_and_mig_devices_are_gpus_and_other_resources_are_not() -> None:
    resources = {
        "cpu": "8",
        "nvidia.com/gpu": "0",
        "nvidia.com/gpu.shared": "1k",
        "nvidia.com/mig-1g.10gb": "7",
        "nvidia.com/rdma": "4",
    }
    document = {"metadata": {"name": "a"}, "status": {"capacity": resources}}
    state = node_state(Node.from_dict(document), "nvidia.com/gpu", None)
    assert (state.gpus, state.offered, state.ready) == (1007, 0, False)


async def test_a_faulty_node_is_cordoned_with_condition_and_event() -> None:
    api = Api(offered=7)
    await api.controller().check(0)
    (_, _, patch), (_, status, condition), (_, events, event) = api.writes
    assert patch["spec"] == {"unschedulable": True}
    assert patch["metadata"]["resourceVersion"] == "41"
    assert json.loads(patch["metadata"]["annotations"][MARK])["gpus"] == 8
    assert status == "/api/v1/nodes/gpu-node-0/status"
    [written_condition] = condition["status"]["conditions"]
    assert (written_condition["type"], written_condition["status"]) == (CONDITION, "True")
    assert written_condition["reason"] == "DevicesUnhealthy"
    assert written_condition["message"] == "the device plugin offers 7 of 8 GPUs"
    assert events == "/api/v1/namespaces/default/events"
    assert event["involvedObject"]["name"] == "gpu-node-0"


async def test_a_node_that_changed_meanwhile_is_not_touched_further() -> None:
    api = Api(offered=7)
    api.refused = "/nodes/gpu-node-0"
    await api.controller().check(0)
    assert len(api.writes) == 1


async def test_running_pods_of_runs_are_evicted_from_a_faulty_node() -> None:
    api = Api(offered=7, annotations={MARK: to_annotation(DEVICES)})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    await api.controller().check(0)
    [(method, path, body)] = api.writes
    assert (method, path) == ("POST", "/api/v1/namespaces/ml/pods/worker-0/eviction")
    assert body["kind"] == "Eviction"


async def test_only_pods_of_runs_that_reported_a_slow_node_are_evicted_from_it() -> None:
    api = Api(annotations={MARK: to_annotation(Fault("SlowInGangs", "", 8))})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    api.pods = [document("worker-0"), document("worker-1")]
    api.pods[1]["metadata"]["labels"] = {"gpu-platform.dev/run": "r1"}
    controller = api.controller()
    assert controller.reports.add(reporter("worker-0", "1"), BEGIN)
    assert not controller.reports.add(reporter("worker-0", "1"), BEGIN)
    await controller.check(BEGIN)
    assert [path.split("/")[-2] for _, path, _ in api.writes] == ["worker-1"]


async def test_a_refused_eviction_does_not_keep_the_other_pods() -> None:
    api = Api(offered=7, annotations={MARK: to_annotation(DEVICES)})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    api.pods = [document("worker-0"), document("worker-1")]
    api.refused = "worker-0/eviction"
    await api.controller().check(0)
    pods = [path.split("/")[-2] for _, path, _ in api.writes]
    assert pods == ["worker-0", "worker-1"]


async def test_reports_before_an_uncordon_do_not_count_also_after_a_restart() -> None:
    api = Api(annotations={MARK: to_annotation(Fault("SlowInGangs", "", 8))})
    await api.controller().check(BEGIN + 20)
    annotations = api.writes[0][2]["metadata"]["annotations"]
    assert "spec" not in api.writes[0][2]
    assert annotations.pop(MARK) is None

    restarted = Api(annotations=annotations)
    controller = restarted.controller()
    for uid in "123":
        controller.reports.add(reporter("worker-0", uid, at=int(uid)), BEGIN + 30)
    for now in (30, 45):
        await controller.check(BEGIN + now)
    assert restarted.writes == []
    for uid in "456":
        controller.reports.add(reporter("worker-0", uid, at=50 + int(uid)), BEGIN + 60)
    await controller.check(BEGIN + 60)
    assert "SlowInGangs" in restarted.writes[0][2]["metadata"]["annotations"][MARK]


async def test_a_healthy_node_returns_without_its_mark() -> None:
    api = Api(annotations={MARK: to_annotation(DEVICES)})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    controller = api.controller()
    await controller.check(0)
    assert api.writes == []
    await controller.check(POLICY.settle_seconds)
    assert api.writes[0][2]["spec"] == {"unschedulable": False}
    annotations = api.writes[0][2]["metadata"]["annotations"]
    assert annotations == {MARK: None, RETURNED_ANNOTATION: "1970-01-01T00:02:00+00:00"}
    assert api.writes[1][2]["status"]["conditions"][0]["status"] == "False"
