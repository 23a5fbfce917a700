"""The gitops benchmark compares runs of the same turn."""

from tools.bench.gitops import PACK, REPORT, _ratio
from tools.bench.processes import child_cpu_seconds


def test_ratios_compare_runs_of_the_same_turn() -> None:
    samples = {
        PACK: {"clock": [2.0, 4.0, 1.0], "cpu": [1.0, 1.0, 1.0]},
        REPORT: {"clock": [2.2, 4.0, 2.0], "cpu": [1.5, 2.0, 1.0]},
    }
    assert _ratio(samples, PACK) == {"median": 1.1, "minimum": 1.0, "maximum": 2.0}
    assert _ratio(samples, PACK, "cpu") == {"median": 1.5, "minimum": 1.0, "maximum": 2.0}


def test_processor_time_never_decreases() -> None:
    assert 0 <= child_cpu_seconds() <= child_cpu_seconds()
