import pytest

from notebooks.idle import Idle


@pytest.mark.parametrize(
    ("seconds", "limit", "warned", "over"),
    [
        (0, 3600, False, False),
        (2999, 3600, False, False),
        (3000, 3600, True, False),
        (3599, 3600, True, False),
        (3600, 3600, True, True),
        (9999, 3600, True, True),
        (29, 60, False, False),
        (30, 60, True, False),
    ],
)
def test_warning_appears_ten_minutes_or_half_the_limit_before_the_end(
    seconds: float, limit: float, warned: bool, over: bool
) -> None:
    idle = Idle(seconds, limit)
    assert (idle.warning_due, idle.expired) == (warned, over)
    assert idle.remaining == max(limit - seconds, 0)
