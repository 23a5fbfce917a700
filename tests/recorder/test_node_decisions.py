"""Node health decisions: when nodes are cordoned, drained and uncordoned."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from infra.settings.node_health import NodeHealthSettings
from recorder.node_decisions import Action, Fault, Memory, NodeState, Policy, decide, health

POLICY = Policy(
    max_nodes=2, fault_seconds=60, settle_seconds=120, slow_reports=3, xids=frozenset({48, 79})
)
DEVICES = Fault("DevicesUnhealthy", "the device plugin offers 7 of 8 GPUs", 8)


def node(name: str = "a", **fields: Any) -> NodeState:
    return replace(NodeState(name, ready=True, gpus=8, offered=8), **fields)


def kinds(actions: list[Action]) -> list[tuple[str, str]]:
    return [(action.kind, action.node.name) for action in actions]


def actions_after(
    seconds: float, *nodes: NodeState, policy: Policy = POLICY
) -> list[tuple[str, str]]:
    """Return the actions for nodes whose state has not changed for `seconds`."""
    _, memory = decide(nodes, {}, 0, policy)
    return kinds(decide(nodes, memory, seconds, policy)[0])


def test_node_is_cordoned_once_its_fault_has_lasted_long_enough() -> None:
    assert actions_after(59, node(offered=7)) == []
    assert actions_after(60, node(offered=7)) == [("cordon", "a")]


def test_device_plugin_restart_does_not_cordon_the_node() -> None:
    _, memory = decide([node(offered=0)], {}, 0, POLICY)
    _, memory = decide([node()], memory, 50, POLICY)
    assert decide([node(offered=0)], memory, 61, POLICY)[0] == []


def test_default_delay_exceeds_the_time_that_the_kubelet_counts_removed_devices() -> None:
    """The kubelet counts the devices of a stopped plugin for 300 s and reports every 10 s."""
    assert actions_after(310, node(gpus=12, offered=8), policy=Policy()) == []
    assert Policy().fault_seconds == NodeHealthSettings().fault_seconds


def test_nodes_with_the_oldest_faults_are_cordoned_first_up_to_the_limit() -> None:
    _, memory = decide([node("c", offered=0)], {}, 0, POLICY)
    faulty = [node(name, offered=0) for name in "abc"]
    _, memory = decide(faulty, memory, 10, POLICY)
    assert kinds(decide(faulty, memory, 100, POLICY)[0]) == [
        *(("cordon", "c"), ("cordon", "a"), ("wait", "b"))
    ]
    others = [node("m", cordoned=True, condition=True, mark=DEVICES, ready=False) for _ in "xy"]
    pending = kinds(decide([*others, *faulty], memory, 100, POLICY)[0])
    assert pending == [("wait", "c"), ("wait", "a"), ("wait", "b")]


@pytest.mark.parametrize(
    "fields",
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
def test_nodes_without_a_known_fault_and_nodes_managed_by_others_are_not_changed(
    fields: dict[str, Any],
) -> None:
    assert actions_after(1000, node(**fields)) == []


def test_slow_node_is_cordoned_at_once_and_only_reporting_runs_are_evicted() -> None:
    """A reporting run restarts before its node is cordoned, and each restart uses one retry."""
    assert actions_after(0, node(reports=3)) == [("cordon", "a")]
    slow = {**MARKED, "mark": Fault("SlowInGangs", "", 8)}
    for seconds in (0, 10_000):
        assert actions_after(seconds, node(**slow, reports=3)) == [("evict_reporting_runs", "a")]
        assert actions_after(seconds, node(**slow)) == [("evict_reporting_runs", "a")]
    assert actions_after(0, node(**slow, offered=7)) == [("evict", "a")]


def test_listed_xids_and_enough_slow_reports_are_faults() -> None:
    assert health(node(xids=frozenset({31, 79})), POLICY) == ("XidError", "Xid 79")
    assert health(node(reports=3), POLICY)[0] == "SlowInGangs"
    assert health(node(reports=3), Policy())[0] == "Healthy"


MARKED: dict[str, Any] = {"cordoned": True, "condition": True, "mark": DEVICES}


def test_node_is_uncordoned_once_its_gpus_have_been_back_long_enough() -> None:
    assert actions_after(119, node(**MARKED)) == []
    assert actions_after(120, node(**MARKED)) == [("uncordon", "a")]


@pytest.mark.parametrize(
    "fields",
    [
        # The kubelet drops the GPUs of a device plugin that does not come back.
        {"gpus": 0, "offered": 0},
        {"gpus": 7, "offered": 7},
        {"offered": 7},
    ],
)
def test_cordoned_node_with_fewer_gpus_than_before_is_drained(fields: dict[str, Any]) -> None:
    assert actions_after(1000, node(**MARKED, **fields)) == [("evict", "a")]


@pytest.mark.parametrize(
    "fields",
    [
        {"ready": False},
        {"xids": None},
        {"mark": Fault("UnreadableMark", "", 0)},
        {"xids": None, "mark": Fault("XidError", "Xid 79", 8)},
    ],
)
def test_node_is_not_uncordoned_unless_it_is_known_to_be_healthy(fields: dict[str, Any]) -> None:
    assert actions_after(10_000, node(**{**MARKED, **fields})) == []


def test_node_cordoned_for_an_xid_is_uncordoned_once_no_xid_is_reported() -> None:
    marked = {**MARKED, "mark": Fault("XidError", "Xid 79", 8)}
    assert actions_after(1000, node(**marked, xids=frozenset({31}))) == [("evict", "a")]
    assert actions_after(120, node(**marked)) == [("uncordon", "a")]
    assert actions_after(120, node(**MARKED, xids=frozenset({31}))) == [("uncordon", "a")]


def test_further_fault_of_a_cordoned_node_is_marked_if_it_needs_more_to_recover() -> None:
    """The device plugin reports GPUs with Xid errors as unhealthy, often at the same time."""
    assert health(node(xids=frozenset({79}), offered=7), POLICY)[0] == "XidError"
    xid, slow = Fault("XidError", "Xid 79", 8), Fault("SlowInGangs", "", 8)
    for fault, fields in ((DEVICES, {"xids": frozenset({79})}), (xid, {"reports": 3})):
        marked = node(**{**MARKED, "mark": fault}, **fields)
        [action], _ = decide([marked], {}, 0, POLICY)
        assert action.kind == "mark"
        assert action.fault is not None
        assert action.fault.reason == (xid if fault is DEVICES else slow).reason
        assert actions_after(10_000, replace(marked, mark=action.fault)) != [("mark", "a")]
    assert actions_after(0, node(**{**MARKED, "mark": slow}, offered=7)) == [("evict", "a")]


def test_controller_mark_is_removed_from_a_manually_uncordoned_node() -> None:
    marked = node(**{**MARKED, "cordoned": False})
    assert actions_after(0, marked) == [("clear_mark", "a")]


def test_fault_duration_restarts_after_a_manual_uncordon() -> None:
    _, memory = decide([node(offered=7)], {}, 0, POLICY)
    checked = node(offered=7, checked_at=1000)
    for now, expected in ((1015, []), (1059, []), (1060, [("cordon", "a")])):
        actions, memory = decide([checked], memory, now, POLICY)
        assert kinds(actions) == expected


def test_interrupted_condition_update_is_completed() -> None:
    assert actions_after(0, node(**{**MARKED, "condition": False})) == [("set_condition", "a")]
    assert actions_after(0, node(condition=True)) == [("set_condition", "a")]


class World:
    """Nodes whose GPU faults, readiness and manual cordons change at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  a reproducible history
        self.nodes = {name: node(name) for name in "abcdef"}
        self.memory: Memory = {}
        self.now = 0.0
        self.faulty_since: dict[str, float] = {}
        self.healthy_since = dict.fromkeys(self.nodes, 0.0)
        self.manual_cordons: set[str] = set()
        self.kinds: Counter[str] = Counter()

    def change_at_random(self) -> None:
        name = self.random.choice("abcdef")
        node_state = self.nodes[name]
        match self.random.randrange(12):
            case 0 | 1 | 2:
                self.nodes[name] = replace(node_state, offered=self.random.randrange(9))
            case 3 | 4 | 5:
                self.nodes[name] = replace(node_state, offered=8, gpus=8, xids=frozenset())
            case 6:
                self.nodes[name] = replace(node_state, ready=not node_state.ready)
            case 7:
                self.nodes[name] = replace(node_state, gpus=0, offered=0)
            case 8:
                xids = self.random.choice([None, frozenset(), frozenset({79})])
                self.nodes[name] = replace(node_state, xids=xids)
            case 9 if node_state.mark is None:
                self.manual_cordons ^= {name}
                self.nodes[name] = replace(node_state, cordoned=name in self.manual_cordons)
            case 10 if node_state.mark is not None:
                self.nodes[name] = replace(node_state, cordoned=False)
            case 11:
                self.memory = {}  # the controller was restarted

    def observe(self) -> None:
        for name, node_state in self.nodes.items():
            state = health(node_state, POLICY)[0]
            for group, is_present in (
                (self.faulty_since, state not in ("Healthy", "Unknown")),
                (self.healthy_since, state == "Healthy"),
            ):
                if is_present:
                    group.setdefault(name, self.now)
                else:
                    group.pop(name, None)

    def check(self) -> None:
        self.observe()
        actions, self.memory = decide(self.nodes.values(), self.memory, self.now, POLICY)
        for action in actions:
            name = action.node.name
            node_state = self.nodes[name]
            self.kinds[action.kind] += 1
            if self.random.random() < 0.2:
                continue  # rejected by the API server, for example because of a conflict
            if action.kind == "cordon":
                assert node_state.mark is None
                assert name not in self.manual_cordons
                since = max(self.faulty_since[name], node_state.checked_at)
                assert self.now - since >= POLICY.fault_seconds
                # The second of two requests may fail.
                condition_is_set = self.random.random() < 0.9
                self.nodes[name] = replace(
                    node_state, cordoned=True, mark=action.fault, condition=condition_is_set
                )
            elif action.kind == "mark":
                assert node_state.mark is not None
                self.nodes[name] = replace(node_state, mark=action.fault)
            elif action.kind == "uncordon":
                assert node_state.mark is not None
                assert node_state.cordoned
                assert self.now - self.healthy_since[name] >= POLICY.settle_seconds
                self.nodes[name] = replace(node_state, cordoned=False, mark=None, condition=False)
            elif action.kind == "clear_mark":
                assert not node_state.cordoned
                self.nodes[name] = replace(
                    node_state, mark=None, condition=False, checked_at=self.now
                )
            elif action.kind in ("evict", "evict_reporting_runs"):
                assert node_state.mark is not None
            elif action.kind == "set_condition":
                self.nodes[name] = replace(node_state, condition=action.fault is not None)
        assert sum(each.mark is not None for each in self.nodes.values()) <= POLICY.max_nodes
        for name in self.manual_cordons:
            assert self.nodes[name].cordoned


def test_random_histories_respect_the_limits_and_end_with_all_nodes_uncordoned() -> None:
    action_counts: Counter[str] = Counter()
    for seed in range(200):
        world = World(seed)
        for _ in range(300):
            if world.random.random() < 0.2:
                world.change_at_random()
            world.now += 15
            world.check()
        for name, node_state in world.nodes.items():
            world.nodes[name] = replace(node_state, ready=True, gpus=8, offered=8, xids=frozenset())
        for _ in range(60):
            world.now += 15
            world.check()
        assert not any(each.mark for each in world.nodes.values()), seed
        assert {n for n, each in world.nodes.items() if each.cordoned} == world.manual_cordons, seed
        action_counts += world.kinds
    assert set(action_counts) == {
        "cordon",
        "wait",
        "mark",
        "evict",
        "uncordon",
        "clear_mark",
        "set_condition",
    }
    assert action_counts["cordon"] > 500
