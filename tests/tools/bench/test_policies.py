"""Assumptions of the policy benchmark: its stack passes all rules; goals can be missed."""

from typing import Any

import pytest
import yaml

from policies.check import main
from tools.bench.policies import WITH, WITHOUT, _goals, _ratios
from tools.bench.workloads import stack


def test_the_measured_stack_passes_every_rule(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(yaml.safe_dump_all(stack(6)))
    assert main([str(path)]) == 0
    assert "0 mandatory and 0 advisory" in capsys.readouterr().out


def test_ratios_compare_runs_of_the_same_turn() -> None:
    samples = {"no pack": [10.0, 20.0, 10.0], "empty pack": [20.0, 20.0, 30.0]}
    pods = {WITHOUT: [0.002, 0.002, 0.004], WITH: [0.004, 0.003, 0.004]}
    found = _ratios({**samples, **pods, "ours": [22.0, 26.0, 30.0]})
    assert found["oursToEmpty"] == {"median": 1.1, "minimum": 1.0, "maximum": 1.3}
    assert found["emptyToNone"] == {"median": 2.0, "minimum": 1.0, "maximum": 3.0}
    assert found["admissionToNone"] == {"median": 1.5, "minimum": 1.0, "maximum": 2.0}


@pytest.mark.parametrize(("ratio", "seconds", "met"), [(1.1, 3.0, True), (1.11, 3.1, False)])
def test_goals_are_written_whether_met_or_not(ratio: float, seconds: float, met: bool) -> None:
    result = {"oursToEmpty": {"median": ratio}, "seconds": {"check": [seconds]}}
    goals = _goals(result)
    assert [goal.met for goal in goals] == [met, met]
    assert [goal.value for goal in goals] == [ratio, seconds]
    assert [goal.goal for goal in goals] == [1.1, 3.0]
