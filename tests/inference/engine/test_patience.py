from inference.engine.patience import Limits, Patience

LIMITS = Limits(deaths=3, calm=60, first_delay=1, longest_delay=30)


def test_single_deaths_are_nothing() -> None:
    patience = Patience(LIMITS)
    assert [patience.died(100 * turn, "signal 9") for turn in range(1, 9)] == [0] * 8
    assert patience.reason(900) == ""


def test_deaths_in_a_row_are_waited_for_longer_and_longer() -> None:
    patience = Patience(LIMITS)
    assert [patience.died(turn, "why") for turn in range(10)] == [0, 0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert patience.reason(10) == "workers died 10 times in a row: why"
    assert patience.reason(69) != ""
    assert patience.reason(70) == ""
    assert patience.died(71, "why") == 0
