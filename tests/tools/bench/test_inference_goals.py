"""Goals of the inference benchmark."""

from typing import Any

import pytest

from tools.bench.inference.contestants import OURS
from tools.bench.inference.measure import Series, at_load_of
from tools.bench.inference.report import BEGIN, END, inserted
from tools.bench.inference.sections import goals_of
from tools.bench.inference.workloads import WORKLOADS
from tools.bench.outcome import Goal


def series(
    rate: float,
    p99: float | None = 0.1,
    goodput: float = 0.0,
    rejected: int = 0,
    errors: int = 0,
    cpu: float = 1e-6,
) -> Series:
    def turn(**given: Any) -> dict[str, Any]:
        base = {"throughput": rate, "goodput": rate, "rejected": 0, "errors": 0, "cpu": cpu}
        return base | given

    levels = {
        "64 clients": [turn(), turn()],
        "80% load": [turn(throughput=rate * 0.8), turn(throughput=rate * 0.8)],
        "120% load": [turn(goodput=goodput, rejected=rejected, errors=errors)] * 2,
    }
    return Series(levels=levels, pools={"80% load": {"p99": p99}})


def found(name: str, servers: dict[str, Series], bare: list[float]) -> list[Goal]:
    return goals_of(WORKLOADS[name], servers, bare)


def named(goals: list[Goal], text: str) -> Goal:
    (goal,) = [goal for goal in goals if text in goal.name]
    return goal


def test_throughput_is_compared_with_the_fastest_peer() -> None:
    servers = {OURS: series(90), "slow": series(50), "fast": series(110)}
    goals = [
        named(found(name, servers, []), "best peer")
        for name in ("simple-cnn", "simple-cnn-plain", "resnet18")
    ]
    assert all("fast" in goal.name for goal in goals)
    assert [goal.value for goal in goals] == [pytest.approx(90 / 110)] * 3
    assert [goal.goal for goal in goals] == [0.85, 0.85, 1]


def test_cpu_time_per_request_without_network_is_limited() -> None:
    goal = named(found("no-op", {OURS: series(1, cpu=49e-6)}, []), "CPU time")
    assert goal.value == pytest.approx(49)
    assert goal.met


def test_p99_is_compared_with_the_lowest_p99_of_the_peers() -> None:
    servers = {OURS: series(1, 0.2), "long": series(1, 0.4), "short": series(1, 0.1)}
    goal = named(found("no-op", servers, []), "p99 ratio at 80% load")
    assert "short" in goal.name
    assert goal.value == pytest.approx(2)
    assert not goal.met


def test_p99_is_compared_with_each_peer_at_its_load() -> None:
    ours = series(2, 0.3)
    ours.pools |= {at_load_of("slow"): {"p99": 0.1}, at_load_of("near"): {"p99": 0.27}}
    servers = {OURS: ours, "slow": series(0.5, 0.2), "near": series(1.8, 0.3), "more": series(3)}
    goal = named(found("no-op", servers, []), "capacity")
    assert "near" in goal.name
    assert goal.value == pytest.approx(0.9)
    assert goal.met


def test_peer_without_responses_is_not_compared() -> None:
    goals = found("no-op", {OURS: series(1), "dead": series(1, None)}, [])
    assert not [goal for goal in goals if "p99" in goal.name]


def test_resnet_is_compared_with_the_bare_loop() -> None:
    goal = named(found("resnet18", {OURS: series(95)}, [100.0, 100.0]), "bare loop")
    assert goal.value == pytest.approx(0.95)
    assert goal.met


def test_overload_requires_goodput_and_rejections_without_other_errors() -> None:
    goals = found("no-op", {OURS: series(100, goodput=95, rejected=7)}, [])
    assert all(goal.met for goal in goals)
    bad = found("no-op", {OURS: series(100, goodput=80, errors=1)}, [])
    assert [goal.met for goal in bad] == [True, False, False, False]


def test_goals_require_a_measurement_of_our_server() -> None:
    assert found("no-op", {"fast": series(1)}, []) == []


def test_new_tables_replace_old_ones_on_the_page() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert inserted(page, "new") == f"before\n{BEGIN}\n\nnew\n{END}\nafter\n"


def test_a_page_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="must contain the lines"):
        inserted("nothing", "new")
