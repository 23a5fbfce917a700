"""Outliers of a gang, computed from values with random noise."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.gang.measurements import (
    MEASUREMENTS,
    Report,
    described,
    find_outliers,
    medians,
    outliers,
    rounds,
)
from workload.progress import SlowNode

WORSE = {name: 100.0 if each.lower_is_better else 0.01 for name, each in MEASUREMENTS.items()}
"""Factor by which each measurement becomes much worse."""


def reports(name: str, *values: float, nodes: str = "abcdefghij") -> list[Report]:
    return [Report(node, {name: value}) for node, value in zip(nodes, values, strict=False)]


def found(name: str, *values: float, nodes: str = "abcdefghij") -> list[int]:
    """Return the ranks that are outliers."""
    return [slow.rank for slow in outliers(reports(name, *values, nodes=nodes))]


def noise(name: str) -> st.SearchStrategy[float]:
    """Return factors, any two of which differ by less than an outlier."""
    root = math.sqrt(MEASUREMENTS[name].factor * 0.99)
    return st.floats(1 / root, root)


def usual(name: str) -> float:
    return 10 * max(MEASUREMENTS[name].difference, 1)


NOISY = [name for name, each in MEASUREMENTS.items() if each.factor > 1]


@pytest.mark.parametrize("name", NOISY)
@given(st.data())
def test_noise_below_the_factor_makes_no_outlier(name: str, data: st.DataObject) -> None:
    factors = data.draw(st.lists(noise(name), min_size=1, max_size=10))
    assert found(name, *(usual(name) * factor for factor in factors)) == []


@pytest.mark.parametrize("name", NOISY)
@given(st.data())
def test_a_minority_that_is_much_worse_is_found_in_any_noise(
    name: str, data: st.DataObject
) -> None:
    factors = data.draw(st.lists(noise(name), min_size=3, max_size=10))
    count = (len(factors) - 1) // 2
    slow = data.draw(st.sets(st.integers(0, len(factors) - 1), min_size=1, max_size=count))
    values = [
        usual(name) * factor * (WORSE[name] if rank in slow else 1)
        for rank, factor in enumerate(factors)
    ]
    assert found(name, *values) == sorted(slow)


@pytest.mark.parametrize(
    ("name", "values", "ranks"),
    [
        ("matmul", (10, 10, 10, 5), [3]),
        ("matmul", (10, 10, 10, 5.1), []),
        ("latency", (0.1, 0.1, 0.1, 0.9), []),
        ("latency", (0.1, 0.1, 0.1, 2), [3]),
        ("disk", (0.01, 0.01, 0.9), []),
        ("disk", (0.01, 0.01, 1.1), [2]),
        ("clock", (0, 0, 0.9), []),
        ("clock", (0, 0, 1), [2]),
        ("locked_memory", (2.0**63, 2.0**63, 2.0**23), [2]),
        ("locked_memory", (2.0**63, 2.0**63, 2.0**63), []),
        ("locked_memory", (0, 0, 0), []),
        ("shared_memory", (2**30, 2**26, 2**30), [1]),
    ],
)
def test_an_outlier_is_worse_by_a_factor_and_by_a_difference(
    name: str, values: tuple[float, ...], ranks: list[int]
) -> None:
    assert found(name, *values) == ranks


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_two_processes_have_no_outlier(name: str) -> None:
    assert found(name, usual(name), usual(name) * WORSE[name]) == []


def test_only_processes_with_the_same_index_are_compared_between_nodes() -> None:
    second_ones_share_a_link = (10, 4, 10, 4, 10)
    assert found("bandwidth", *second_ones_share_a_link, nodes="aabbc") == []
    assert found("matmul", *second_ones_share_a_link, nodes="aabbc") == [1, 3]
    assert found("bandwidth", 10, 4, 10, 1, 10, 4, nodes="aabbcc") == [3]


def test_a_measurement_that_a_process_could_not_make_is_left_out() -> None:
    gang = [*reports("disk", 0.1, 0.1, 9), Report("d", {})]
    assert [slow.node for slow in outliers(gang)] == ["c"]
    assert medians(gang) == {"disk": 0.1}


def repeated(*attempts: list[Report]) -> tuple[Callable[[], list[Report]], list[list[Report]]]:
    left = list(attempts)
    return lambda: left.pop(0), left


def test_an_outlier_is_measured_again_and_a_short_disturbance_is_forgotten() -> None:
    measure, left = repeated(reports("matmul", 9, 9, 1), reports("matmul", 8, 8, 8), [])
    best, slow = find_outliers(measure)
    assert slow == []
    assert [report.values["matmul"] for report in best] == [9, 9, 8]
    assert left == [[]], "no third measurement was needed"


def test_two_disturbances_of_different_nodes_are_not_added_up() -> None:
    measure, _ = repeated(
        reports("matmul", 9, 9, 1), reports("matmul", 9, 1, 9), reports("matmul", 1, 9, 9)
    )
    assert find_outliers(measure)[1] == []


def test_a_process_must_be_an_outlier_in_each_attempt() -> None:
    measure, left = repeated(
        reports("matmul", 5, 5, 2), reports("matmul", 9, 9, 5), reports("matmul", 9, 9, 1)
    )
    assert find_outliers(measure)[1] == []
    assert len(left) == 1


def test_a_node_that_stays_slow_is_an_outlier_with_its_best_value() -> None:
    measure, left = repeated(
        reports("latency", 1, 1, 90), reports("latency", 1, 1, 70), reports("latency", 1, 1, 80)
    )
    assert find_outliers(measure)[1] == [
        SlowNode(node="c", rank=2, measurement="latency", value=70, median=1, unit="ms")
    ]
    assert left == []


def test_a_measurement_without_an_outlier_is_not_repeated() -> None:
    measure, left = repeated(reports("matmul", 9, 9, 9), [])
    assert find_outliers(measure)[1] == []
    assert left == [[]]


def test_each_slow_node_has_one_line() -> None:
    gang = [
        Report(node, {"matmul": speed, "clock": offset})
        for node, speed, offset in (("a", 50, 0), ("b", 4.2, 3), ("c", 50, 0), ("d", 1, 0))
    ]
    assert described(list(outliers([*gang, gang[0]]))).splitlines() == [
        "slow node b: matmul of rank 1 is 4.2 GFLOP/s, the median of its gang is 50 GFLOP/s; "
        "clock of rank 1 is 3 s, the median of its gang is 0 s",
        "slow node d: matmul of rank 3 is 1 GFLOP/s, the median of its gang is 50 GFLOP/s",
    ]


@given(st.integers(1, 40), st.integers(1, 6))
def test_rounds_are_disjoint_pairs_that_never_meet_twice(count: int, maximum: int) -> None:
    schedule = rounds(count, maximum)
    assert len(schedule) <= maximum
    seen: set[frozenset[int]] = set()
    for pairs in schedule:
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members)) == count - count % 2
        assert set(members) <= set(range(count))
        seen |= {frozenset(pair) for pair in pairs}
    assert len(seen) == sum(map(len, schedule))
    if maximum >= count:
        assert len(seen) == count * (count - 1) // 2


@given(st.integers(3, 40))
def test_each_node_meets_at_least_two_others(count: int) -> None:
    met = [node for pairs in rounds(count, 4) for pair in pairs for node in pair]
    assert min(map(met.count, range(count))) >= 2
