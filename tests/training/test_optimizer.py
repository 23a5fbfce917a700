import pytest

from training.config import TrainingConfig
from training.optimizer import learning_rate


def rates(**settings: object) -> list[float]:
    config = TrainingConfig.model_validate({"learning_rate": 0.5, **settings})
    return [learning_rate(config, step / 1000) for step in range(1001)]


@pytest.mark.parametrize("schedule", ["one-cycle", "linear"])
def test_the_learning_rate_warms_up_and_decays_to_nearly_zero(schedule: str) -> None:
    found = rates(schedule=schedule)
    peak = found.index(max(found))
    assert max(found) == pytest.approx(0.5)
    assert peak == 200
    assert found[: peak + 1] == sorted(found[: peak + 1])
    assert found[peak:] == sorted(found[peak:], reverse=True)
    assert 0 < found[-1] < 0.005


def test_a_constant_schedule_only_warms_up() -> None:
    found = rates(schedule="constant", warm_up=0.1)
    assert found[0] == pytest.approx(0.05)
    assert set(found[100:]) == {0.5}


def test_no_warm_up_starts_at_the_peak() -> None:
    assert rates(warm_up=0)[0] == 0.5
