"""The table of sweeps that members see."""

from typing import Any

import pytest

from gitops.errors import GitopsError
from gpu_platform.runs.sweeps import sweep_lines


def summary(**changes: Any) -> dict[str, Any]:
    trial = {
        "run": "digits-1a2b3c4d",
        "phase": "succeeded",
        "trained": 9,
        "value": 0.1234567,
        "hyperparameters": {"learning_rate": 0.0123, "optimizer": "sgd"},
    }
    chosen = {**trial, "run": "digits-5e6f7a8b", "phase": "asked", "trained": 0, "value": None}
    return {
        "state": "running",
        "objective": {"metric": "held_out_loss", "goal": "minimize"},
        "unit": "epochs",
        "length": 9,
        "chosen": 2,
        "maximum_trials": 24,
        "gpu_hours": 1.5,
        "maximum_gpu_hours": 12,
        "problem": "",
        "winner": None,
        "cost": None,
        "maximum_cost": None,
        "trials": [trial, chosen],
        **changes,
    }


def test_sweep_is_shown_with_its_limits_and_best_trials_first() -> None:
    head, names, best, other = sweep_lines({"digits": summary()})
    assert head == ("digits: running, 2 of 24 trials, 1.5 of 12 GPU-hours, minimize held_out_loss")
    assert names.split() == ["run", "phase", "epochs", "held_out_loss", "hyperparameters"]
    assert best.endswith("  learning_rate: 0.0123, optimizer: sgd")
    assert "9/9     0.123457" in best
    assert "asked      0/9" in other


def test_rejection_by_the_api_server_is_shown() -> None:
    lines = [*sweep_lines({"digits": summary(problem="policy gpu-limit-present")})]
    assert lines[1] == "  rejected by the API server: policy gpu-limit-present"


def test_succeeded_trials_without_the_metric_are_shown() -> None:
    trial = {**summary()["trials"][0], "value": None}
    lines = [*sweep_lines({"digits": summary(trials=[trial], chosen=1)})]
    assert lines[1] == (
        "  digits-1a2b3c4d succeeded, but its export has no finite value of held_out_loss, so it "
        "cannot win: check `objective.metric`"
    )


def test_spent_money_is_shown_for_a_monetary_budget() -> None:
    cost = {"amount": 3.6, "currency": "USD"}
    head, *_ = sweep_lines({"digits": summary(cost=cost, maximum_cost=100.0)})
    assert ", 1.5 of 12 GPU-hours, 3.60 of 100.00 USD, minimize" in head


def test_the_winner_is_shown() -> None:
    lines = [*sweep_lines({"digits": summary(winner="digits-1a2b3c4d")})]
    assert lines[1] == "  digits-1a2b3c4d won; services with `sweep: digits` serve it"


def test_only_the_best_of_many_trials_are_listed() -> None:
    # The controller reports at most 300 trials.
    many = summary(trials=summary()["trials"] * 10, chosen=500)
    assert [*sweep_lines({"digits": many})][-1] == "  and 490 more"


def test_sweep_whose_controller_has_not_started_is_shown() -> None:
    assert [*sweep_lines({"digits": {}})] == ["digits: the controller has not started yet"]


@pytest.mark.parametrize("key", ["unit", "objective"])
def test_summary_of_an_earlier_version_causes_an_error(key: str) -> None:
    earlier = {name: value for name, value in summary().items() if name != key}
    with pytest.raises(GitopsError, match="earlier version of the controller"):
        list(sweep_lines({"digits": earlier}))
