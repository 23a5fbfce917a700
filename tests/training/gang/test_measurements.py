"""Preflight measurements in real gangs with gloo on one host, and detection of outliers."""

import functools
import math
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.training.forked_gang import run_gang
from tests.training.programs import arguments, free_port, start
from training.config import TrainingConfig
from training.gang import measurements
from training.gang.distributed import joined
from training.gang.measurements import (
    MEASUREMENTS,
    Report,
    SlowNodeError,
    check_gang,
    describe_slow_nodes,
    find_outliers,
    medians,
    outliers,
    rounds,
)
from training.gang.world import World
from workload import exit_codes
from workload.progress import Failed, Preflight, SlowNode, parse

OUTLIER_FACTORS = {
    name: 100.0 if each.lower_is_better else 0.01 for name, each in MEASUREMENTS.items()
}
"""Factors that make each measurement much worse."""
SLOW = 1
PAUSE = 0.1
SECONDS = 0.05
"""Duration (s) of a measurement, enough for several matrix products in all processes at once."""


def reports(name: str, *values: float, nodes: str = "abcdefghij") -> list[Report]:
    return [Report(node, {name: value}) for node, value in zip(nodes, values, strict=False)]


def outlier_ranks(name: str, *values: float, nodes: str = "abcdefghij") -> list[int]:
    """Return the ranks of the outliers."""
    return [slow.rank for slow in outliers(reports(name, *values, nodes=nodes))]


def noise(name: str) -> st.SearchStrategy[float]:
    """Return a strategy for factors so similar that no process is an outlier."""
    root = math.sqrt(MEASUREMENTS[name].factor * 0.99)
    return st.floats(1 / root, root)


def typical_value(name: str) -> float:
    return 10 * max(MEASUREMENTS[name].difference, 1)


WITH_FACTOR = [name for name, each in MEASUREMENTS.items() if each.factor > 1]


@pytest.mark.parametrize("name", WITH_FACTOR)
@given(st.data())
def test_noise_below_the_factor_is_not_an_outlier(name: str, data: st.DataObject) -> None:
    factors = data.draw(st.lists(noise(name), min_size=1, max_size=10))
    assert outlier_ranks(name, *(typical_value(name) * factor for factor in factors)) == []


@pytest.mark.parametrize("name", WITH_FACTOR)
@given(st.data())
def test_much_slower_minority_is_detected_despite_noise(name: str, data: st.DataObject) -> None:
    factors = data.draw(st.lists(noise(name), min_size=3, max_size=10))
    count = (len(factors) - 1) // 2
    slow = data.draw(st.sets(st.integers(0, len(factors) - 1), min_size=1, max_size=count))
    values = [
        typical_value(name) * factor * (OUTLIER_FACTORS[name] if rank in slow else 1)
        for rank, factor in enumerate(factors)
    ]
    assert outlier_ranks(name, *values) == sorted(slow)


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
def test_outlier_exceeds_both_a_factor_and_a_difference(
    name: str, values: tuple[float, ...], ranks: list[int]
) -> None:
    assert outlier_ranks(name, *values) == ranks


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_gang_of_two_processes_has_no_outlier(name: str) -> None:
    assert (
        outlier_ranks(name, typical_value(name), typical_value(name) * OUTLIER_FACTORS[name]) == []
    )


def test_bandwidth_is_compared_only_between_processes_with_the_same_local_index() -> None:
    values = (10, 4, 10, 4, 10)
    assert outlier_ranks("bandwidth", *values, nodes="aabbc") == []
    assert outlier_ranks("matmul", *values, nodes="aabbc") == [1, 3]
    assert outlier_ranks("bandwidth", 10, 4, 10, 1, 10, 4, nodes="aabbcc") == [3]


def test_missing_measurement_of_a_process_is_ignored() -> None:
    gang = [*reports("disk", 0.1, 0.1, 9), Report("d", {})]
    assert [slow.node for slow in outliers(gang)] == ["c"]
    assert medians(gang) == {"disk": 0.1}


def repeated(*attempts: list[Report]) -> tuple[Callable[[], list[Report]], list[list[Report]]]:
    remaining = list(attempts)
    return lambda: remaining.pop(0), remaining


def test_outlier_that_is_not_confirmed_by_a_second_measurement_is_ignored() -> None:
    measure, remaining = repeated(reports("matmul", 9, 9, 1), reports("matmul", 8, 8, 8), [])
    best, slow = find_outliers(measure)
    assert slow == []
    assert [report.values["matmul"] for report in best] == [9, 9, 8]
    assert remaining == [[]], "an unnecessary third measurement was made"


def test_disturbances_on_different_nodes_are_not_combined() -> None:
    measure, _ = repeated(
        reports("matmul", 9, 9, 1), reports("matmul", 9, 1, 9), reports("matmul", 1, 9, 9)
    )
    assert find_outliers(measure)[1] == []


def test_process_is_an_outlier_only_if_every_attempt_finds_it() -> None:
    measure, remaining = repeated(
        reports("matmul", 5, 5, 2), reports("matmul", 9, 9, 5), reports("matmul", 9, 9, 1)
    )
    assert find_outliers(measure)[1] == []
    assert len(remaining) == 1


def test_node_that_stays_slow_is_reported_with_its_best_value() -> None:
    measure, remaining = repeated(
        reports("latency", 1, 1, 90), reports("latency", 1, 1, 70), reports("latency", 1, 1, 80)
    )
    assert find_outliers(measure)[1] == [
        SlowNode(node="c", rank=2, measurement="latency", value=70, median=1, unit="ms")
    ]
    assert remaining == []


def test_a_measurement_without_an_outlier_is_not_repeated() -> None:
    measure, remaining = repeated(reports("matmul", 9, 9, 9), [])
    assert find_outliers(measure)[1] == []
    assert remaining == [[]]


def test_each_slow_node_is_described_in_one_line() -> None:
    gang = [
        Report(node, {"matmul": speed, "clock": offset})
        for node, speed, offset in (("a", 50, 0), ("b", 4.2, 3), ("c", 50, 0), ("d", 1, 0))
    ]
    assert describe_slow_nodes(list(outliers([*gang, gang[0]]))).splitlines() == [
        "slow node b: matmul of rank 1 is 4.2 GFLOP/s, but the median of its gang is 50 GFLOP/s; "
        "clock of rank 1 is 3 s, but the median of its gang is 0 s",
        "slow node d: matmul of rank 3 is 1 GFLOP/s, but the median of its gang is 50 GFLOP/s",
    ]


@given(st.integers(1, 40), st.integers(1, 6))
def test_rounds_consist_of_disjoint_pairs_that_are_never_repeated(count: int, maximum: int) -> None:
    schedule = rounds(count, maximum)
    assert len(schedule) <= maximum
    all_pairs: set[frozenset[int]] = set()
    for pairs in schedule:
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members)) == count - count % 2
        assert set(members) <= set(range(count))
        all_pairs |= {frozenset(pair) for pair in pairs}
    assert len(all_pairs) == sum(map(len, schedule))
    if maximum >= count:
        assert len(all_pairs) == count * (count - 1) // 2


@given(st.integers(3, 40))
def test_each_node_is_paired_with_at_least_two_others(count: int) -> None:
    met = [node for pairs in rounds(count, 4) for pair in pairs for node in pair]
    assert min(map(met.count, range(count))) >= 2


def check_with_fault(preflight: str, fault: str, folder: Path, world: World) -> str:
    """Run the check in a gang on three nodes, one of which is faulty; return its error."""
    os.environ["NODE_NAME"] = "abca"[world.rank]
    # Skip the disk writes: a busy disk on the host would hide the simulated slow disk.
    measurements.write_probe = lambda *_: None  # type: ignore[attr-defined]
    measurements.MEASUREMENT_SECONDS = SECONDS  # type: ignore[misc]
    if world.rank == SLOW:
        FAULTS[fault]()
    config = TrainingConfig.model_validate({"preflight": preflight, "run_dir": str(folder)})
    device = torch.device("cpu")
    torch.set_num_threads(1)
    with joined(world, device, 60):
        # A process that fails early would close connections that others are still establishing.
        dist.barrier()
        try:
            check_gang(config, world, device, lambda: None)
        except SlowNodeError as error:
            return str(error)
    return ""


def slow_products() -> None:
    multiply = torch.mm

    def multiply_slowly(*arguments: Any, **options: Any) -> torch.Tensor:
        time.sleep(10 * PAUSE)
        return multiply(*arguments, **options)

    torch.mm = multiply_slowly


def slow_messages() -> None:
    send = torch.distributed.send

    def send_slowly(*arguments: Any, **options: Any) -> None:
        time.sleep(PAUSE)
        send(*arguments, **options)

    torch.distributed.send = send_slowly


def slow_disk() -> None:
    measurements.write_probe = lambda *_: time.sleep(1.5)  # type: ignore[attr-defined]


def wrong_clock() -> None:
    true_time = time.time
    time.time = lambda: true_time() + 5


FAULTS: dict[str, Callable[[], None]] = {
    "matmul": slow_products,
    "latency": slow_messages,
    "disk": slow_disk,
    "clock": wrong_clock,
}


def events(folder: Path, rank: int) -> list[Any]:
    return [parse(line) for line in (folder / f"rank-{rank}").read_text().splitlines()]


@pytest.mark.parametrize("fault", FAULTS)
def test_error_of_every_process_names_the_slow_node(fault: str, tmp_path: Path) -> None:
    errors = run_gang(
        4, functools.partial(check_with_fault, "strict", fault, tmp_path / "run"), tmp_path
    )
    assert len(set(errors)) == 1
    [line] = [line for line in errors[0].splitlines() if line.startswith("slow node b: ")]
    assert f"{fault} of rank {SLOW} is " in line
    slow_nodes = [each for each in events(tmp_path, 0) if isinstance(each, SlowNode)]
    assert (fault, "b", SLOW) in {(each.measurement, each.node, each.rank) for each in slow_nodes}
    assert not [each for each in events(tmp_path, 2) if each], "a rank other than 0 printed events"


def test_report_mode_names_the_slow_node_and_does_not_end_the_run(tmp_path: Path) -> None:
    action = functools.partial(check_with_fault, "report", "clock", tmp_path / "run")
    assert run_gang(4, action, tmp_path) == [""] * 4
    first, *slow_nodes = (each for each in events(tmp_path, 0) if each)
    assert isinstance(first, Preflight)
    assert set(first.line()) == {"event", "seconds", "all_reduce", *MEASUREMENTS}
    [slow] = [each for each in slow_nodes if each.measurement == "clock"]
    assert (slow.node, slow.rank, slow.unit) == ("b", SLOW, "s")
    assert slow.value == pytest.approx(5, abs=0.5)
    assert slow.median < 0.5
    assert not list((tmp_path / "run").iterdir())


def test_gang_with_gpus_is_not_measured_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "gather", pytest.fail)
    world = World(rank=0, size=8, local_rank=0, master="gang:29500", local_size=8)
    check_gang(TrainingConfig(), world, torch.device("cuda"), lambda: None)


@pytest.mark.parametrize(("preflight", "size"), [("off", 3), ("strict", 2)])
def test_gang_too_small_for_a_median_or_without_preflight_is_not_measured(
    preflight: str, size: int, tmp_path: Path
) -> None:
    action = functools.partial(check_with_fault, preflight, "clock", tmp_path / "run")
    assert run_gang(size, action, tmp_path) == [""] * size
    assert not [each for each in events(tmp_path, 0) if each]


def test_read_only_run_dir_is_not_reported_by_the_measurements() -> None:
    assert measurements.disk_seconds(Path("/proc/run")) == {}
    assert measurements.memory_limits()["locked_memory"] > 0


def test_strict_run_with_a_deviating_node_exits_with_69_before_training(tmp_path: Path) -> None:
    shared = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    gang = []
    for rank, node in enumerate("abc"):
        environment = {"RANK": str(rank), "NODE_NAME": node, "OMP_NUM_THREADS": "1", **shared}
        strict = arguments(tmp_path / "run", "--preflight=strict")
        gang.append(start("training", strict, environment, tmp_path / f"rank-{rank}"))
        if node == "b":
            # The gang is still waiting for its last process.
            pid = gang[-1].process.pid
            assert pid is not None
            _, hard = resource.prlimit(pid, resource.RLIMIT_MEMLOCK)
            resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (2**20, hard))
    assert [program.exit_code() for program in gang] == [exit_codes.SLOW_NODE] * 3
    for program in gang:
        error = parse(program.text.splitlines()[-1])
        assert isinstance(error, Failed)
        assert error.exit_code == exit_codes.SLOW_NODE
        assert "slow node b: locked_memory of rank 1 is 1.05e+06 bytes" in error.message
    assert '"event": "start"' not in gang[0].text
