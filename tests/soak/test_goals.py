import math
from pathlib import Path
from typing import Any

from tests.soak.goals import draw, goals_of, trend, trends
from tests.soak.inventory import added, numbered
from tools.bench.outcome import Goal

MINUTES = [number / 10 for number in range(200)]


def wave(base: float, per_minute: float = 0.0) -> list[float]:
    """Return the memory of a program with garbage collection, with one peak."""
    found = [base + per_minute * at + 5 * math.sin(at * 9) for at in MINUTES]
    return [*found[:100], base * 3, *found[101:]]


def result(server: list[float], **changed: Any) -> dict[str, Any]:
    samples = [
        {"minute": at, "mib": {"server": mib, "trainer": 300.0, "etcd": 40.0}, "processes": 40}
        for at, mib in zip(MINUTES, server, strict=True)
    ]
    return {
        "memory": samples,
        "left": {},
        "leftOnHost": {},
        "requests": {"answered": 100, "failed": {}},
        "turns": 10,
        **changed,
    }


def missed(found: list[Goal]) -> list[str]:
    return [goal.name for goal in found if not goal.met]


def test_periodic_memory_use_with_one_peak_does_not_count_as_growth() -> None:
    found = trend(MINUTES, wave(200.0))
    assert found.growth < 1.0
    assert abs(found.slope_per_hour) < 5


def test_leak_is_detected_despite_periodic_memory_use() -> None:
    found = trend(MINUTES, wave(200.0, per_minute=1.0))
    assert 50 < found.slope_per_hour < 70
    assert 15 < found.growth < 20


def test_the_warm_up_is_not_counted() -> None:
    filling = [min(at * 40, 200.0) for at in MINUTES]
    assert trends(result(filling)["memory"])["server"].growth == 0.0


def test_a_steady_soak_meets_every_goal() -> None:
    assert missed(goals_of(result(wave(200.0)))) == []


def test_leaking_server_misses_its_goal() -> None:
    assert missed(goals_of(result(wave(200.0, 1.0)))) == [
        "memory growth of server in MiB (lower bound)"
    ]


def test_leftovers_and_lost_requests_miss_the_goals() -> None:
    left = {"Service": ["ml-dev/gang-1"]}
    host = {"mounts": ["/a"]}
    requests = {"answered": 100, "failed": {"503": 1}}
    found = goals_of(result(wave(200.0), left=left, leftOnHost=host, requests=requests))
    assert len(missed(found)) == 3


def test_temporary_programs_are_not_evaluated() -> None:
    made = result(wave(200.0))
    del made["memory"][150]["mib"]["etcd"]
    assert "etcd" not in trends(made["memory"])


def test_the_plot_is_reproducible(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw(result(wave(200.0)), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "server" in (tmp_path / "a.svg").read_text()


def test_additional_objects_are_leftovers() -> None:
    first = {"Pod": frozenset({"ml/a"})}
    last = {"Pod": frozenset({"ml/a", "ml/b"}), "Service": frozenset({"ml/c"})}
    assert added(first, last) == {"Pod": ["ml/b"], "Service": ["ml/c"]}
    assert added(first, first) == {}


def test_removed_objects_are_not_leftovers() -> None:
    assert added({"Pod": frozenset({"ml/a"})}, {"Pod": frozenset()}) == {}


def test_additional_mounts_of_the_same_kind_are_counted() -> None:
    one = ["/run/0123456789abcdef/rootfs", "/sys"]
    other = ["/sys", "/run/fedcba9876543210/rootfs"]
    assert set(numbered(one)) == set(numbered(other))
    assert set(numbered([*one, one[0]])) - set(numbered(other)) == {"/run/#/rootfs 2"}
