"""The summary at the end of `make test`."""

from pathlib import Path

import pytest

from tests.durations import Phase, summary, tier_of


@pytest.mark.parametrize(
    ("path", "tier"),
    [
        ("cluster/real/test_1_up.py", "cluster"),
        ("operators/test_4_rollout.py", "operators"),
        ("training/test_main.py", "unit"),
        ("test_run.py", "unit"),
    ],
)
def test_tier_is_derived_from_the_directory(path: str, tier: str) -> None:
    assert tier_of(Path(path)) == tier


def test_summary_sorts_tests_by_total_time_and_lists_wall_time_per_tier() -> None:
    phases = [
        Phase("tests/test_a.py::test_quick", "unit", "call", 0.0, 2.0),
        Phase("tests/test_a.py::test_slow", "unit", "setup", 5.0, 6.0),
        Phase("tests/test_a.py::test_slow", "unit", "call", 6.0, 9.0),
        Phase("tests/test_a.py::test_slow", "unit", "teardown", 9.0, 9.0, [], 1.5),
        Phase(
            "tests/engine/test_b.py::test_c",
            "engine",
            "teardown",
            8.0,
            8.5,
            [("s", 40.0)],
            9.0,
            "gw1",
        ),
        Phase("tests/engine/test_b.py::test_d", "engine", "call", 9.0, 9.5, process="gw1"),
        Phase("tests/cluster/test_e.py::test_f[a/b]", "cluster", "call", 10.0, 12.0, process="gw1"),
        Phase("tests/engine/test_g.py::test_h", "engine", "call", 9.0, 9.5, process="gw0"),
    ]
    assert list(summary(phases)) == [
        "slowest 20 tests (seconds, with setup and teardown):",
        "     4.0  tests/test_a.py::test_slow",
        "     2.0  tests/test_a.py::test_quick",
        "     2.0  tests/cluster/test_e.py::test_f[a/b]",
        "     0.5  tests/engine/test_b.py::test_c",
        "     0.5  tests/engine/test_b.py::test_d",
        "     0.5  tests/engine/test_g.py::test_h",
        "20 tests with the most CPU time (seconds, with setup and teardown):",
        "     9.0  tests/engine/test_b.py::test_c",
        "     1.5  tests/test_a.py::test_slow",
        "     0.0  tests/test_a.py::test_quick",
        "     0.0  tests/engine/test_b.py::test_d",
        "     0.0  tests/cluster/test_e.py::test_f[a/b]",
        "     0.0  tests/engine/test_g.py::test_h",
        "setup of shared fixtures, including clusters and stacks (seconds):",
        "    40.0  s",
        "tests of each process by directory, except unit tests (seconds):",
        "     0.5  gw0 from 1 s: tests/engine",
        "     1.5  gw1 from 0 s: tests/engine",
        "     2.0  gw1 from 2 s: tests/cluster",
        "wall and CPU time of each tier (seconds; tiers of one process group overlap):",
        "     9.0      1.5  unit: 2 tests",
        "     1.5      9.0  engine: 3 tests",
        "     2.0      0.0  cluster: 1 tests",
    ]


def test_a_run_without_tests_has_no_summary() -> None:
    assert list(summary([])) == []
